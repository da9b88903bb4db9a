"""Draws one number format as SVG: its bits as boxes, and below them number lines with a tick for each number it holds.

The pictures are plain text without scripts or outside references. They have a paper of their own, and their colours
follow the viewer's light or dark mode, so that they can be read on any page.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

WIDTH, EDGE, LEFT, RIGHT = 760, 16, 118, 112
BITS_TOP, BIT, BIT_HEIGHT = 40, 15, 22
LINES_TOP, LINE_HEIGHT, TICK, FINE_TICK = 84, 46, 16, 9
PIXEL = 0.5
"""Ticks closer than this run together into a bar."""

COLOURS = {"sign": "#d55e00", "exponent": "#0072b2", "fraction": "#009e73", "code": "#cc79a7", "shared": "#b58900"}
"""Told apart with any colour vision, and on white as well as on near-black."""

STYLE = """
:root { color-scheme: light dark; }
.paper { fill: #fbfbfa; stroke: #dddddd; }
text { font: 12px system-ui, sans-serif; fill: #222222; }
.title { font-size: 14px; font-weight: 600; }
.quiet { fill: #666666; }
.bit { fill: #ffffff; font: 11px ui-monospace, monospace; text-anchor: middle; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.axis { stroke: #888888; }
.data { fill: #f0c000; fill-opacity: 0.45; }
.tick { stroke: #14507a; stroke-width: 1; }
.bar { fill: #14507a; }
.fine { fill: #d55e00; stroke: #d55e00; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #16181c; stroke: #33363c; }
  text { fill: #e8e8e8; }
  .quiet { fill: #a0a0a0; }
  .bit { fill: #ffffff; }
  .tick { stroke: #8cc4ee; }
  .bar { fill: #8cc4ee; }
}
"""


@dataclass(frozen=True)
class Field:
    """A run of bits with one meaning: its letter once for each bit, a key of COLOURS, and what stands before it."""

    letters: str
    kind: str
    before: str = ""


@dataclass(frozen=True)
class Line:
    """A stretch of the number line, the numbers that lie on it, and those that only some of a block may take."""

    low: float
    high: float
    numbers: Numbers
    fine: Numbers | None = None
    label: str = ""

    def within(self, numbers: Numbers) -> Numbers:
        """The numbers that lie on this stretch."""
        return numbers[(numbers >= self.low) & (numbers <= self.high)]

    def place(self, number: float) -> float:
        """Where on the picture a number is, from left to right."""
        share = (number - self.low) / (self.high - self.low)
        return round((LEFT + share * (WIDTH - LEFT - RIGHT)) / PIXEL) * PIXEL


@dataclass(frozen=True)
class Picture:
    """All that is drawn of one format; `data` is the range of the numbers that it was fitted to."""

    name: str
    title: str
    fields: tuple[Field, ...]
    note: str
    lines: tuple[Line, ...]
    data: tuple[float, float] | None = None


def draw(picture: Picture) -> str:
    """The picture as the text of an SVG file."""
    height = LINES_TOP + LINE_HEIGHT * len(picture.lines) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(picture.title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        _text(EDGE, 25, picture.title, "title"),
        *_bits(picture),
    ]
    for index, line in enumerate(picture.lines):
        parts += _line(line, LINES_TOP + index * LINE_HEIGHT, picture.data)
    return "\n".join([*parts, "</svg>", ""])


def _bits(picture: Picture) -> list[str]:
    parts, left = [], float(EDGE)
    for field in picture.fields:
        if field.before:
            parts.append(_text(left, BITS_TOP + 15, field.before, "quiet"))
            left += 7 * len(field.before) + 4
        for letter in field.letters:
            parts.append(
                f'<rect x="{left:g}" y="{BITS_TOP}" width="{BIT - 1}" height="{BIT_HEIGHT}" rx="2" '
                f'fill="{COLOURS[field.kind]}"/>'
            )
            parts.append(_text(left + (BIT - 1) / 2, BITS_TOP + 15, letter, "bit"))
            left += BIT
        left += 4
    return [*parts, _text(left + 10, BITS_TOP + 15, picture.note, "quiet")]


def _line(line: Line, top: int, data: tuple[float, float] | None) -> list[str]:
    base = top + TICK + 6
    parts = []
    if data is not None:
        start, end = (line.place(min(max(each, line.low), line.high)) for each in data)
        if end > start:
            parts.append(f'<rect class="data" x="{start:g}" y="{base}" width="{end - start:g}" height="4"/>')
    numbers = line.within(line.numbers)
    parts += _ticks(line, numbers, base, TICK, "tick")
    if line.fine is not None:
        only = np.setdiff1d(line.within(line.fine), numbers)
        parts += _ticks(line, only, base, FINE_TICK, "fine")
        numbers = np.union1d(numbers, only)
    count = f"{len(numbers)} number{'' if len(numbers) == 1 else 's'}"
    parts += [
        f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>',
        _text(EDGE, base, line.label or f"{line.low:g} to {line.high:g}", ""),
        _text(WIDTH - RIGHT + 12, base, count, "quiet"),
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        number = line.low + share * (line.high - line.low)
        parts.append(_text(line.place(number), base + 17, f"{number:g}", "quiet middle"))
    return parts


def _ticks(line: Line, numbers: Numbers, base: int, height: int, style: str) -> list[str]:
    """A tick for each number, and a bar where they lie too close to be told apart."""
    places = np.unique([round(line.place(number) / PIXEL) for number in numbers])
    if not len(places):
        return []
    runs = np.split(places, np.flatnonzero(np.diff(places) > 2) + 1)
    single = [f"M{run[0] * PIXEL:g} {base}v-{height}" for run in runs if len(run) == 1]
    parts = [f'<path class="{style}" d="{"".join(single)}"/>'] if single else []
    for run in runs:
        if len(run) > 1:
            left, right = run[0] * PIXEL - 0.5, run[-1] * PIXEL + 0.5
            shape = f'x="{left:g}" y="{base - height}" width="{right - left:g}" height="{height}"'
            parts.append(f'<rect class="{"bar" if style == "tick" else style}" {shape}/>')
    return parts


def _text(x: float, y: float, text: str, style: str) -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(text)}</text>'
