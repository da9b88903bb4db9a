"""The picture of docs/how-it-works.md: `python -m tools.draw_flow docs/pictures/flow.svg` writes it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT = 760, 318
FIRST = (("load", "read, check"), ("prepare", "same function"), ("lay out", "which values"))
FIRST += (("equalize", "scale channels"), ("calibrate", "count values"))
SECOND = (("plan", "scales"), ("constrain", "device rules"), ("refine", "layer by layer"))
SECOND += (("emit", "encode, write"), ("measure", "beside float"), ("save", "check, move"))
FIRST_PLACES, SECOND_PLACES = (28, 174, 320, 466, 612), (26, 146, 266, 400, 518, 636)
FIRST_WIDTH, SECOND_WIDTH, BOX_HEIGHT = 116, 100, 46
FIRST_TOP, SECOND_TOP = 62, 208

STYLE = """
:root { color-scheme: light dark; }
.paper { fill: #fbfbfa; stroke: #dddddd; }
text { font: 12px system-ui, sans-serif; fill: #222222; text-anchor: middle; }
.name { font-weight: 600; font-size: 13px; }
.quiet { fill: #666666; }
.box { fill: #ffffff; stroke: #14507a; stroke-width: 1.5; }
.band { fill: #e8eef4; }
.way { stroke: #14507a; stroke-width: 1.5; fill: none; }
.head { fill: #14507a; }
.data { stroke: #b58900; stroke-width: 1.5; fill: none; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #16181c; stroke: #33363c; }
  text { fill: #e8e8e8; }
  .quiet { fill: #a0a0a0; }
  .box { fill: #20242a; stroke: #8cc4ee; }
  .band { fill: #1d2630; }
  .way { stroke: #8cc4ee; }
  .head { fill: #8cc4ee; }
}
"""


def draw() -> str:
    """The picture as the text of an SVG file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-label="How a model flows through Detent">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>',
        *_band(16, 50, 728, "a float graph"),
        *_band(16, 196, 364, "a plan: decisions as data"),
        *_band(392, 196, 352, "a quantized graph"),
        *_row(FIRST, FIRST_PLACES, FIRST_TOP, FIRST_WIDTH),
        *_row(SECOND, SECOND_PLACES, SECOND_TOP, SECOND_WIDTH),
        '<path class="way" d="M670 108V160H9V231H20"/><path class="head" d="M19 227l7 4l-7 4z"/>',
        *_down(86, 28, "float model"),
        *_down(378, 28, "recipe"),
        _text(597, 22, "calibration samples, one at a time", "quiet"),
        '<path class="data" d="M524 62V30H670V62"/>',
        _text(442, 178, "the same samples, and some that were held out", "quiet"),
        '<path class="data" d="M316 208V186H568V208"/>',
        '<path class="way" d="M686 254V288"/><path class="head" d="M682 287l4 7l4-7z"/>',
        _text(686, 309, "ONNX file, report", "name"),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _band(left: int, top: int, width: int, text: str) -> list[str]:
    shape = f'<rect class="band" x="{left}" y="{top}" width="{width}" height="86" rx="6"/>'
    return [shape, _text(left + width / 2, top + 78, text, "quiet")]


def _row(stages: Sequence[tuple[str, str]], places: Sequence[int], top: int, width: int) -> list[str]:
    """Boxes from left to right, with arrows between them."""
    parts = []
    for (name, what), left in zip(stages, places, strict=True):
        parts.append(f'<rect class="box" x="{left}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="5"/>')
        parts += [_text(left + width / 2, top + 20, name, "name"), _text(left + width / 2, top + 37, what, "quiet")]
    middle = top + BOX_HEIGHT // 2
    for left, right in itertools.pairwise(places):
        parts.append(f'<path class="way" d="M{left + width} {middle}H{right - 6}"/>')
        parts.append(f'<path class="head" d="M{right - 7} {middle - 4}l7 4l-7 4z"/>')
    return parts


def _down(x: int, top: int, text: str) -> list[str]:
    """What comes into the first row from above."""
    return [
        _text(x, top - 6, text, "name"),
        f'<path class="way" d="M{x} {top}V{FIRST_TOP - 6}"/>',
        f'<path class="head" d="M{x - 4} {FIRST_TOP - 7}l4 7l4-7z"/>',
    ]


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{text}</text>'


def main(arguments: list[str]) -> None:
    """Write the picture to the file that is named."""
    Path(arguments[0]).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
