"""One SVG per tensor: its histogram on a logarithmic axis, and above it the range that each method would choose.

The pictures are plain text without scripts or outside references. Colours follow the viewer's light or dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from detent.errors import OutputError
from detent.graph.save import write_text
from detent.observe.histogram import Histogram
from detent.observe.statistics import TensorStatistics
from detent.report.names import file_stem, printable
from detent.results.summarized import Choices
from detent.results.tensors import columns_of

WIDTH, LEFT, RIGHT = 1000, 175, 135
PLOT_HEIGHT, ROW, TITLE, GAP, FOOT = 280, 18, 56, 34, 34
COLUMNS = 400
MARGIN = 0.02  # of the width of the plot, left free beside the outermost value
_TITLE_LENGTH = 90

# Told apart with any colour vision, and on white as well as on near-black.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7f7f7f", "#8c564b")

STYLE = """
:root { color-scheme: light dark; }
.paper { fill: #ffffff; }
text { font: 12px system-ui, sans-serif; fill: #222222; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #666666; }
.bar { fill: #8ab4d8; }
.axis { stroke: #888888; }
.grid { stroke: #e4e4e4; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #16181c; }
  text { fill: #e8e8e8; }
  .quiet { fill: #a0a0a0; }
  .bar { fill: #4a7ba6; }
  .axis { stroke: #8a8a8a; }
  .grid { stroke: #2c3036; }
}
"""


def plot_statistics(
    statistics: Mapping[str, TensorStatistics], folder: Path, choices: Mapping[str, Choices]
) -> list[Path]:
    """Draw each tensor that `choices` names, with its ranges, into `folder`, which is made where it is missing.

    Returns the files. They are numbered by the place of the tensor in `statistics`. Raises OutputError where the folder
    or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot make the folder {folder} for the plots: {error.strerror}.") from error
    files = []
    for number, (name, each) in enumerate(statistics.items()):
        if name in choices:
            files.append(folder / f"{file_stem(number, name)}.svg")
            write_text(svg_of(name, each, choices[name]), files[-1])
    return files


def svg_of(name: str, statistics: TensorStatistics, choices: Choices) -> str:
    """The picture of one tensor."""
    top = TITLE + ROW * len(choices) + GAP
    height = top + PLOT_HEIGHT + FOOT
    histogram = statistics.histogram
    body = list(_title(name, statistics))
    if histogram.total:
        axis = _Axis(*_span(histogram, choices))
        body += [*_counts(histogram, axis, top), *_horizontal_axis(axis, top + PLOT_HEIGHT)]
        body += [
            line
            for row, (method, choice) in enumerate(choices.items())
            for line in _choice(method, choice, axis, TITLE + ROW * row + ROW / 2, top + PLOT_HEIGHT, row)
        ]
    else:
        body.append(_text(WIDTH / 2, height / 2, "No values were counted.", "middle", "quiet"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{_escaped(name)}</title>",
            f"<style>{STYLE}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *body,
            "</svg>\n",
        ]
    )


class _Axis:
    """Values to horizontal places."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, value: float) -> float:
        return LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)


def _span(histogram: Histogram, choices: Choices) -> tuple[float, float]:
    """What the plot shows: all values and all finite choices, zero too, and a margin."""
    ends = [0.0, histogram.minimum, histogram.maximum, *(end for choice in choices.values() for end in choice)]
    finite = [end for end in ends if math.isfinite(end)]
    low, high = min(finite), max(finite)
    margin = MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def _title(name: str, statistics: TensorStatistics) -> Iterator[str]:
    shown = printable(name)
    shown = shown if len(shown) <= _TITLE_LENGTH else f"{shown[: _TITLE_LENGTH - 1]}…"
    yield _text(LEFT, 24, shown, "start", "title")
    histogram = statistics.histogram
    if histogram.total:
        extent = f"{histogram.minimum:.5g} to {histogram.maximum:.5g}"
        yield _text(
            LEFT, 42, f"{histogram.total:,} values of {statistics.samples:,} samples, {extent}", "start", "quiet"
        )


def _counts(histogram: Histogram, axis: _Axis, top: float) -> Iterator[str]:
    """The columns, on a logarithmic axis of powers of ten."""
    columns = list(columns_of(histogram, axis.low, axis.high, COLUMNS))
    decades = max(1, math.ceil(math.log10(max(count for _, _, count in columns) + 1)))
    bottom = top + PLOT_HEIGHT

    def place(count: float) -> float:
        # One count stands a little above the axis, so that a single outlier can be seen.
        return bottom - PLOT_HEIGHT * (math.log10(count) + 0.3) / (decades + 0.3)

    for power in range(0, decades + 1, 1 + decades // 7):
        yield _line(LEFT, place(10**power), WIDTH - RIGHT, place(10**power), "grid")
        yield _text(LEFT - 8, place(10**power) + 4, _power_of_ten(power), "end", "quiet")
    yield _text(LEFT - 8, top - 14, "values", "end", "quiet")
    for left, right, count in columns:
        x, y = axis(left), place(count)
        # Bars overlap by a hair: where two meet within a pixel, the background would shine through.
        width = axis(right) - x + 0.3
        yield f'<rect class="bar" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{bottom - y:.2f}"/>'


def _horizontal_axis(axis: _Axis, bottom: float) -> Iterator[str]:
    yield _line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
    for value in _ticks(axis.low, axis.high):
        yield _line(axis(value), bottom, axis(value), bottom + 5, "axis")
        yield _text(axis(value), bottom + 20, f"{value:.6g}", "middle", "quiet")


def _ticks(low: float, high: float) -> Sequence[float]:
    """Five to thirteen round numbers within the range."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (5, 2, 1) if (high - low) / (step * factor) >= 5 or factor == 1)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _choice(method: str, choice: tuple[float, float], axis: _Axis, y: float, bottom: float, row: int) -> Iterator[str]:
    """A bar from the low to the high end of a method's range, and thin lines from its ends down to the axis."""
    colour = COLOURS[row % len(COLOURS)]
    yield _text(LEFT - 8, y + 4, method, "end")
    ends = [axis(min(max(end, axis.low), axis.high)) for end in choice]
    yield f'<line x1="{ends[0]:.2f}" y1="{y:.2f}" x2="{ends[1]:.2f}" y2="{y:.2f}" stroke="{colour}" stroke-width="4"/>'
    for end in (place for place, value in zip(ends, choice, strict=True) if value):  # all methods agree on zero
        yield (
            f'<line x1="{end:.2f}" y1="{y - 5:.2f}" x2="{end:.2f}" y2="{bottom:.2f}" stroke="{colour}" '
            'stroke-width="1" stroke-dasharray="3 3"/>'
        )
    yield _text(WIDTH - RIGHT + 10, y + 4, f"{choice[0]:.4g} .. {choice[1]:.4g}", "start", "quiet")


def _power_of_ten(power: int) -> str:
    return f"{10**power:,}" if power < 7 else f"1e{power}"


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}"{kind}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return escape(printable(text))
