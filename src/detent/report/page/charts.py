"""Charts as SVG without a fixed width: places are percentages, so that text stays readable from a phone to a desktop.

The plot is the SVG's own box. Labels stand beside it, where the style sheet leaves room. Curves cannot be written in
percentages: they are drawn in a box of 100 by 100 that is stretched over the plot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from detent.report.page.html import Markup, joined, tag
from detent.results.tensors import ChannelSizes, Distribution

TICKS = 5

MANY = 100
"""Dots beyond which they are drawn smaller."""


@dataclass(frozen=True)
class Axis:
    """Numbers from low to high, with round ones between them that are labelled."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Iterable[float]) -> Axis:
        """An axis that has room for all finite values, and ends at round numbers."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if not high > low:
            low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
        step = round_step((high - low) / TICKS)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(first * step, last * step, tuple(number * step for number in range(first, last + 1)))

    def along(self, value: float) -> float:
        """0 at the low end, 1 at the high end, and never beyond."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, no smaller than `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


@dataclass(frozen=True)
class Point:
    """A value of a chart along the network: what is said where it is pointed at, and the row of the table it opens."""

    label: str
    value: float
    row: str | None = None
    marked: bool = False


def depth_chart(series: Sequence[Sequence[Point | None]], unit: str, names: Sequence[str] = ()) -> Markup:
    """Values in the order of the network, a line for each series; None leaves a place empty.

    Values that are not finite are at the edge.
    """
    axis = Axis.over(point.value for line in series for point in line if point is not None)
    parts = [*_horizontal_grid(axis), *_ends("first", "last")]
    styles = [f"line s{number}" for number in range(len(series))]
    for number, line in enumerate(series):
        placed = [
            (_place(index, len(line)), 1 - axis.along(point.value), point)
            for index, point in enumerate(line)
            if point is not None
        ]
        parts.append(_curve(((x, y) for x, y, _ in placed), styles[number]))
        radius = 3 if len(line) <= MANY else 2
        parts += [
            _dot(x, y, radius, point, f"dot s{number}{' marked' if point.marked else ''}") for x, y, point in placed
        ]
    return _figure(parts, "plot tall", f"{unit}, along the network", _legend(names, styles[: len(names)]))


def histogram_chart(shown: Distribution, label: str) -> Markup:
    """Counts on a logarithmic axis, the range that has codes, and in another colour what lies outside of it."""
    span = shown.span or (0.0, 0.0)
    axis = _tight((0.0, *span, *(edge for left, right, _ in shown.columns for edge in (left, right))))
    decades = max(1, math.ceil(math.log10(max(count for *_, count in shown.columns) + 1)))
    inside: list[str] = []
    outside: list[str] = []
    for left, right, count in shown.columns:
        clipped = shown.span is not None and not shown.span[0] <= (left + right) / 2 <= shown.span[1]
        height = 100 * (math.log10(count) + 0.3) / (decades + 0.3)  # one value stands a little above the axis
        start, end = 100 * axis.along(left), 100 * axis.along(right)
        (outside if clipped else inside).append(f"M{start:.2f} 100V{100 - height:.1f}H{end:.2f}V100z")
    parts = [*_vertical_labels(axis), *_decades(decades), _stretched(inside, "bars"), _stretched(outside, "bars out")]
    if shown.span is not None:
        parts += [_vertical(axis.along(end), "range") for end in shown.span]
    names = ("values that were counted", *(["beyond the range: clipped"] if outside else []))
    styles = ["bars", *(["bars out"] if outside else [])]
    if shown.span is not None:
        names, styles = (*names, "ends of the codes"), [*styles, "range"]
    return _figure(parts, "plot", label, _legend(names, styles))


def channel_chart(sizes: ChannelSizes, label: str) -> Markup:
    """The channels of a weight from the largest to the smallest, before and after, on a logarithmic axis."""
    drawn = [value for value in (*sizes.before, *sizes.after) if value > 0]
    if not drawn:
        return tag("p", "All channels are zero.", class_="quiet")
    low, high = math.floor(math.log10(min(drawn))), math.ceil(math.log10(max(drawn)))
    low = max(low, high - 6)  # what is a millionth of the largest is nothing
    axis = Axis(low, max(high, low + 1), tuple(float(power) for power in range(low, max(high, low + 1) + 1)))
    parts = [*_horizontal_grid(axis, _power), *_ends("largest channel", "smallest")]
    for style, curve in (("line old", sizes.before), ("line s0", sizes.after)):
        heights = (1 - axis.along(math.log10(value) if value > 0 else -math.inf) for value in curve)
        places = (_place(index, len(curve)) for index in range(len(curve)))
        parts.append(_curve(zip(places, heights, strict=True), style))
    return _figure(parts, "plot", label, _legend(("before", "after"), ("line old", "line s0")))


@dataclass(frozen=True)
class Loss:
    """One line of an interval chart. `ends` is None where no interval is known."""

    name: str
    value: float
    ends: tuple[float, float] | None
    marked: bool = False


def interval_chart(losses: Sequence[Loss], limit: float | None, unit: str) -> Markup:
    """A row for each loss: a dot, its interval, and a line at zero and at the limit."""
    ends = [end for loss in losses for end in (loss.value, *(loss.ends or ()))]
    axis = Axis.over([0.0, *ends, *([] if limit is None else [limit])])
    rows = [
        tag(
            "div",
            tag("div", loss.name, class_="who"),
            tag("svg", *_interval(loss, axis, limit), class_="interval", aria_hidden="true"),
            class_="row",
        )
        for loss in losses
    ]
    scale = tag("svg", *_vertical_labels(axis, grid=False), class_="interval scale", aria_hidden="true")
    names = [] if limit is None else [_key("range", "the loss to accept")]
    return tag(
        "figure",
        *rows,
        tag("div", tag("div", class_="who"), scale, class_="row"),
        tag("figcaption", f"Loss in {unit}. ", *names),
        class_="intervals",
    )


def bar(share: float) -> Markup:
    """A bar beside a number in a table; full at 1."""
    width = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    return tag("svg", tag("rect", width=width, height="100%"), class_="bar", aria_hidden="true")


def _tight(values: Iterable[float]) -> Axis:
    """An axis that ends a little beyond the values; its labels are round."""
    low, high = min(values := list(values)), max(values)
    margin = 0.02 * (high - low) or 1.0
    low, high = low - margin, high + margin
    step = round_step((high - low) / TICKS)
    inside = range(math.ceil(low / step), math.floor(high / step) + 1)
    return Axis(low, high, tuple(number * step for number in inside))


def _interval(loss: Loss, axis: Axis, limit: float | None) -> Iterator[Markup]:
    yield _vertical(axis.along(0.0), "zero")
    if limit is not None:
        yield _vertical(axis.along(limit), "range")
    style = " marked" if loss.marked else ""
    if loss.ends is not None:
        low, high = (_percent(axis.along(end)) for end in loss.ends)
        yield tag("line", x1=low, x2=high, y1="50%", y2="50%", class_=f"whisker{style}")
    yield tag("circle", cx=_percent(axis.along(loss.value)), cy="50%", r=5, class_=f"dot s0{style}")


def _figure(parts: Sequence[Markup], style: str, label: str, legend: Markup | None = None) -> Markup:
    drawn = tag("svg", *parts, class_=style, role="img", aria_label=label)
    return tag("figure", drawn, tag("figcaption", label, " ", legend))


def _legend(names: Sequence[str], styles: Sequence[str]) -> Markup:
    return joined(_key(style, name) for name, style in zip(names, styles, strict=True))


def _key(style: str, name: str) -> Markup:
    return tag("span", tag("svg", tag("rect", width="100%", height="100%"), class_=style), name, class_="key")


def _horizontal_grid(axis: Axis, spell: Callable[[float], str] = "{:.6g}".format) -> Iterator[Markup]:
    for value in axis.ticks:
        y = _percent(1 - axis.along(value))
        yield _level(1 - axis.along(value), "grid")
        label = spell(value)
        yield tag("text", label, x=-8, y=y, dy="0.32em", text_anchor="end")


def _vertical_labels(axis: Axis, *, grid: bool = True) -> Iterator[Markup]:
    for value in axis.ticks:
        x = _percent(axis.along(value))
        if grid:
            yield _vertical(axis.along(value), "grid")
        yield tag("text", f"{value:.4g}", x=x, y="100%", dy=18, text_anchor="middle")


def _decades(decades: int) -> Iterator[Markup]:
    for power in range(0, decades + 1, 1 + decades // 5):
        y = 1 - (power + 0.3) / (decades + 0.3)
        yield tag("text", _power(power), x=-8, y=_percent(y), dy="0.32em", text_anchor="end")


def _power(power: float) -> str:
    return f"{10.0**power:,.6g}" if -4 <= power < 5 else f"1e{power:.0f}"


def _ends(left: str, right: str) -> Iterator[Markup]:
    yield tag("text", left, x=0, y="100%", dy=18)
    yield tag("text", right, x="100%", y="100%", dy=18, text_anchor="end")


def _curve(points: Iterable[tuple[float, float]], style: str) -> Markup:
    places = " ".join(f"{100 * x:.2f},{100 * y:.2f}" for x, y in points)
    return _box(tag("polyline", points=places, class_=style))


def _stretched(paths: Sequence[str], style: str) -> Markup:
    return _box(tag("path", d="".join(paths), class_=style)) if paths else Markup("")


def _box(child: Markup) -> Markup:
    return tag("svg", child, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height="100%")


def _dot(x: float, y: float, radius: int, point: Point, style: str) -> Markup:
    said = tag("title", point.label)
    return tag("circle", said, cx=_percent(x), cy=_percent(y), r=radius, class_=style, data_opens=point.row)


def _vertical(x: float, style: str) -> Markup:
    return tag("line", x1=_percent(x), x2=_percent(x), y1="0", y2="100%", class_=style)


def _level(y: float, style: str) -> Markup:
    return tag("line", x1="0", x2="100%", y1=_percent(y), y2=_percent(y), class_=style)


def _place(index: int, count: int) -> float:
    return index / (count - 1) if count > 1 else 0.5


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
