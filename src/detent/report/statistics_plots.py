"""The plots of `detent stats`: a file for each tensor, 1000 pixels wide, with colors of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from markupsafe import Markup

from detent.errors import OutputError
from detent.graph.save import write_text
from detent.observe.statistics import Histogram, TensorStatistics
from detent.report.charts import TICKS, Axis, CountAxis, tag
from detent.report.figures import file_stem, printable
from detent.results.paired import Interval
from detent.results.tensors import Choices, columns_of

WIDTH, LEFT, RIGHT = 1000, 175, 135
PLOT_HEIGHT, ROW, TITLE, GAP, FOOT = 280, 18, 56, 34, 34
COLUMNS = 400  # of a plot: more than a screen shows
_TITLE_LENGTH = 90

# Told apart with any color vision, and on white as well as on near-black.
COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7f7f7f", "#8c564b")

STYLE = """
:root { color-scheme: light dark; }
.paper { fill: #ffffff; }
text { font: 12px system-ui, sans-serif; fill: #222222; }
.title { font-size: 15px; font-weight: 600; }
.quiet { fill: #666666; }
.bar { fill: #8ab4d8; }
.axis { stroke: #888888; }
.grid { stroke: #e4e4e4; }
@media screen and (prefers-color-scheme: dark) {
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
    """Draw each tensor that `choices` names, with its ranges, into `folder`, which is made if it is missing.

    Return the files. They are numbered by the place of the tensor in `statistics`. Raise OutputError if the folder or a
    file cannot be written.
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
    """Return the plot of one tensor: its histogram, and above it the range that each method would choose."""
    top = TITLE + ROW * len(choices) + GAP
    bottom = top + PLOT_HEIGHT
    histogram = statistics.histogram
    body = list(_title(name, statistics))
    if histogram.total:
        ends = [end for choice in choices.values() for end in choice]
        axis = Axis.around([0.0, histogram.minimum, histogram.maximum, *ends], ticks=2 * TICKS)
        body += [*_counts(histogram, axis, bottom), *_axis(axis, bottom)]
        body.append(_text(LEFT - 8, top - 14, "values", "end", "quiet"))
        for row, (method, choice) in enumerate(choices.items()):
            color = COLORS[row % len(COLORS)]
            body += _choice(method, choice, axis, TITLE + ROW * (row + 0.5), bottom, color)
    else:
        body.append(_text(WIDTH / 2, (bottom + FOOT) / 2, "No values were counted.", "middle", "quiet"))
    drawn = tag(
        "svg",
        tag("title", printable(name)),
        Markup(f"<style>{STYLE}</style>"),
        tag("rect", class_="paper", width="100%", height="100%"),
        *body,
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH,
        height=bottom + FOOT,
        viewBox=f"0 0 {WIDTH} {bottom + FOOT}",
        role="img",
    )
    return f"{drawn}\n"


def _title(name: str, statistics: TensorStatistics) -> Iterator[Markup]:
    shown = printable(name)
    shown = shown if len(shown) <= _TITLE_LENGTH else f"{shown[: _TITLE_LENGTH - 1]}…"
    yield _text(LEFT, 24, shown, "start", "title")
    histogram = statistics.histogram
    if histogram.total:
        extent = f"{histogram.minimum:.5g} to {histogram.maximum:.5g}"
        counted = f"{histogram.total:,} values of {statistics.samples:,} samples, {extent}"
        yield _text(LEFT, 42, counted, "start", "quiet")


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.along(value) * (WIDTH - LEFT - RIGHT)


def _counts(histogram: Histogram, axis: Axis, bottom: float) -> Iterator[Markup]:
    """Draw the columns, on a logarithmic axis of powers of ten."""
    columns = list(columns_of(histogram, axis.low, axis.high, COLUMNS))
    counts = CountAxis.over(count for *_, count in columns)
    for power in counts.powers(7):
        y = bottom - PLOT_HEIGHT * counts.along(10.0**power)
        yield _line(LEFT, y, WIDTH - RIGHT, y, "grid")
        yield _text(LEFT - 8, y + 4, f"{10**power:,}" if power < 7 else f"1e{power}", "end", "quiet")
    for left, right, count in columns:
        x, height = _x(axis, left), PLOT_HEIGHT * counts.along(count)
        # Bars overlap by a hair: where two meet within a pixel, the background would shine through.
        width = _x(axis, right) - x + 0.3
        place = {"x": f"{x:.2f}", "y": f"{bottom - height:.2f}", "width": f"{width:.2f}", "height": f"{height:.2f}"}
        yield tag("rect", class_="bar", **place)


def _axis(axis: Axis, bottom: float) -> Iterator[Markup]:
    yield _line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
    for value in axis.ticks:
        x = _x(axis, value)
        yield _line(x, bottom, x, bottom + 5, "axis")
        yield _text(x, bottom + 20, f"{value:.6g}", "middle", "quiet")


def _choice(method: str, choice: Interval, axis: Axis, y: float, bottom: float, color: str) -> Iterator[Markup]:
    """Draw a bar from the low to the high end of a method's range, and thin lines from its ends down to the axis."""
    yield _text(LEFT - 8, y + 4, method, "end")
    ends = [_x(axis, end) for end in choice]
    yield _line(ends[0], y, ends[1], y, stroke=color, stroke_width="4")
    for x, value in zip(ends, choice, strict=True):
        if value:  # all methods agree on zero
            yield _line(x, y - 5, x, bottom, stroke=color, stroke_width="1", stroke_dasharray="3 3")
    yield _text(WIDTH - RIGHT + 10, y + 4, f"{choice[0]:.4g} .. {choice[1]:.4g}", "start", "quiet")


def _line(x1: float, y1: float, x2: float, y2: float, style: str | None = None, **more: str) -> Markup:
    return tag("line", class_=style, x1=f"{x1:.2f}", y1=f"{y1:.2f}", x2=f"{x2:.2f}", y2=f"{y2:.2f}", **more)


def _text(x: float, y: float, text: str, anchor: str, style: str | None = None) -> Markup:
    return tag("text", text, x=f"{x:.2f}", y=f"{y:.2f}", text_anchor=anchor, class_=style)
