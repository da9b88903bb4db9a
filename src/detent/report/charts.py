"""Charts of a page, as SVG.

A chart has no fixed width: places are percentages, so that text stays readable from a phone to a desktop. The plot is
the SVG's own box, and labels stand beside it, where the style sheet leaves room. Curves cannot be written in
percentages: they are drawn in a box of 100 by 100 that is stretched over the plot.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from markupsafe import Markup, escape

from detent.report.figures import in_the_middle, printable_lines
from detent.results.paired import Interval
from detent.results.tensors import ActivationHistogram, ChannelSizes

TICKS = 5  # of an axis, about

MANY = 100  # dots beyond which they are drawn smaller

ONE_VALUE = 0.3  # of a decade: how far a count of one stands above the axis, so that a single outlier can be seen

TICK_NAMES = 5  # places along the network that are named
CANDIDATE_LETTERS = 26  # of a candidate's name
# Pixels: of a front on a phone, as its style sheet has it, of a letter and a line, and of names from their dots.
FRONT_WIDTH, FRONT_HEIGHT = 280, 260
LETTER, LINE = 7.0, 15.0
NAME_ASIDE = 10
NAME_PLACES = (-8, 18, -24, 34, -40, 50)

Value = str | int | None


def tag(element: str, /, *children: str | None, **attributes: Value) -> Markup:
    """Return an element. Texts and values are escaped; `class_` is class, and `data_row` is data-row."""
    opened = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{element}{opened}>{joined(children)}</{element}>")


def joined(children: Iterable[str | None]) -> Markup:
    """Return markup and texts, one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children if child))


def _escaped(text: str) -> str:
    return str(escape(printable_lines(text)))


@dataclass(frozen=True)
class Axis:
    """Numbers from low to high, with round ones between them that are labelled."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Iterable[float]) -> Axis:
        """Return an axis that has room for all finite values, and ends at round numbers."""
        # Below the least normal number a step between two ticks would itself round to 0.
        tiny = sys.float_info.min * TICKS
        finite = [value if abs(value) > tiny else 0.0 for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if not high > low:
            low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
        step = round_step((high - low) / TICKS)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(first * step, last * step, tuple(number * step for number in range(first, last + 1)))

    @classmethod
    def around(cls, values: Iterable[float], ticks: int = TICKS) -> Axis:
        """Return an axis that ends a little beyond the finite values; its labels are round."""
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite), max(finite)
        margin = 0.02 * (high - low) or 1.0
        low, high = low - margin, high + margin
        step = round_step((high - low) / ticks)
        inside = range(math.ceil(low / step), math.floor(high / step) + 1)
        return cls(low, high, tuple(number * step for number in inside))

    def along(self, value: float) -> float:
        """Return 0 at the low end, 1 at the high end, and never more or less."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, no smaller than `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


@dataclass(frozen=True)
class CountAxis:
    """A logarithmic axis of counts, up to a power of ten."""

    decades: int

    @classmethod
    def over(cls, counts: Iterable[int]) -> CountAxis:
        """Return an axis that has room for all counts."""
        return cls(max(1, math.ceil(math.log10(max(counts) + 1))))

    def along(self, count: float) -> float:
        """Return 0 at the bottom, 1 at the top."""
        return (math.log10(count) + ONE_VALUE) / (self.decades + ONE_VALUE)

    def powers(self, most: int) -> range:
        """Return the powers of ten to label, about as many as `most`."""
        return range(0, self.decades + 1, 1 + self.decades // most)


@dataclass(frozen=True)
class Point:
    """A value along the network, its tooltip, and the row of a table that it opens.

    `name` is what it is called on the axis, and beside it if it is an extreme.
    """

    label: str
    value: float
    row: str | None = None
    marked: bool = False
    name: str = ""


@dataclass(frozen=True)
class DepthChart:
    """Values in the order of the network, a line for each series; None leaves a place empty.

    Values that are not finite are drawn at the edge. `limits` are heights that get a line, if they are in sight, and
    the meaning of it. If points have names, some are named along the axis, and so are the two lowest and the highest.
    """

    series: Sequence[Sequence[Point | None]]
    unit: str
    names: Sequence[str] = ()
    limits: Mapping[float, str] = field(default_factory=dict)

    def draw(self) -> Markup:
        axis = Axis.over(point.value for line in self.series for point in line if point is not None)
        named = [point for point in self.series[0] if point is not None and point.name]
        parts = [*_horizontal_grid(axis), *(self._ticks() if named else _ends("first", "last"))]
        limits = [each for each in self.limits if axis.low < each < axis.high]
        heights = [_percent(1 - axis.along(each)) for each in limits]
        parts += [tag("line", x1="0", x2="100%", y1=y, y2=y, class_="range") for y in heights]
        for number, line in enumerate(self.series):
            parts += self._line(line, axis, f"s{number}")
        # Limits are named in the legend: beside the lines, hundreds of dots would lie below the words.
        meanings = [legend_key("range", self.limits[each]) for each in limits]
        legend = joined([_legend(self.names, [f"line s{number}" for number in range(len(self.series))]), *meanings])
        return _figure(parts, "plot tall", f"{self.unit}, along the network", legend)

    def _line(self, line: Sequence[Point | None], axis: Axis, style: str) -> Iterator[Markup]:
        """Draw one series: a line, a dot for each point, and the names of its extremes."""
        places = [_place(index, len(line)) for index in range(len(line))]
        placed = [(x, 1 - axis.along(point.value), point) for x, point in zip(places, line, strict=True) if point]
        yield _curve(((x, y) for x, y, _ in placed), f"line {style}")
        radius = 3 if len(line) <= MANY else 2
        for x, y, point in placed:
            yield _dot(x, y, radius, point, f"dot {style}{' marked' if point.marked else ''}")
        yield from self._extremes(placed)

    def _ticks(self) -> Iterator[Markup]:
        """Name a few places along the network: the first, the last and some between."""
        line = [(at, point) for at, point in enumerate(self.series[0]) if point is not None]
        for number in range(TICK_NAMES):
            at, point = line[round(number * (len(line) - 1) / (TICK_NAMES - 1))]
            anchor = "start" if number == 0 else "end" if number == TICK_NAMES - 1 else "middle"
            x, style = _percent(_place(at, len(self.series[0]))), "minor" if 0 < number < TICK_NAMES - 1 else None
            yield tag("text", in_the_middle(point.name, 20), x=x, y="100%", dy=18, text_anchor=anchor, class_=style)

    def _extremes(self, placed: Sequence[tuple[float, float, Point]]) -> Iterator[Markup]:
        """Name the two lowest and the highest point, unless they stand too close for two names."""
        finite = sorted((each for each in placed if each[2].name and math.isfinite(each[2].value)), key=itemgetter(1))
        shown: list[float] = []
        for x, y, point in (*finite[-1:-3:-1], *finite[:1]):
            if all(abs(x - other) > 0.25 for other in shown):
                shown.append(x)
                text = f"{in_the_middle(point.name, 30)} {point.value:.1f}"
                aside, anchor = (-8, "end") if x > 0.5 else (8, "start")
                place = {"x": _percent(x), "y": _percent(y), "dy": "0.32em"}
                yield tag("text", text, **place, dx=aside, text_anchor=anchor, class_="who")


@dataclass(frozen=True)
class HistogramChart:
    """Counts on a logarithmic axis, and the range that has codes; counts outside of it have another color."""

    shown: ActivationHistogram
    label: str

    def draw(self) -> Markup:
        columns, span = self.shown.columns, self.shown.span
        axis = Axis.around((0.0, *(span or ()), *(edge for left, right, _ in columns for edge in (left, right))))
        counts = CountAxis.over(count for *_, count in columns)
        paths: dict[str, list[str]] = {"bars": [], "bars out": []}
        for left, right, count in columns:
            clipped = span is not None and not span[0] <= (left + right) / 2 <= span[1]
            top, start, end = 100 * (1 - counts.along(count)), 100 * axis.along(left), 100 * axis.along(right)
            path = paths["bars out" if clipped else "bars"]
            # Columns side by side are one outline: half the length.
            begun = f"H{start:.2f}V100z"
            if path and path[-1] == begun:
                path[-1:] = [f"H{start:.2f}V{top:.1f}", f"H{end:.2f}V100z"]
            else:
                path += [f"M{start:.2f} 100V{top:.1f}", f"H{end:.2f}V100z"]
        parts = [*_vertical_labels(axis), *_count_labels(counts)]
        parts += [_box(tag("path", d="".join(drawn), class_=style)) for style, drawn in paths.items() if drawn]
        names = {"bars": "values that were counted"}
        if paths["bars out"]:
            names["bars out"] = "beyond the range: clipped"
        if span is not None:
            parts += [_vertical(axis.along(end), "range") for end in span]
            names["range"] = "ends of the codes"
        return _figure(parts, "plot", self.label, _legend(list(names.values()), list(names)))


@dataclass(frozen=True)
class ChannelChart:
    """The channels of a weight from the largest to the smallest, before and after, on a logarithmic axis."""

    sizes: ChannelSizes
    label: str

    def draw(self) -> Markup:
        drawn = [value for value in (*self.sizes.before, *self.sizes.after) if value > 0]
        if not drawn:
            return tag("p", "All channels are zero.", class_="quiet")
        low, high = math.floor(math.log10(min(drawn))), math.ceil(math.log10(max(drawn)))
        low = max(low, high - 6)  # a millionth of the largest does not matter
        high = max(high, low + 1)
        axis = Axis(low, high, tuple(float(power) for power in range(low, high + 1)))
        parts = [*_horizontal_grid(axis, _power), *_ends("largest channel", "smallest")]
        for style, curve in (("line old", self.sizes.before), ("line s0", self.sizes.after)):
            heights = (1 - axis.along(math.log10(value) if value > 0 else -math.inf) for value in curve)
            places = (_place(index, len(curve)) for index in range(len(curve)))
            parts.append(_curve(zip(places, heights, strict=True), style))
        return _figure(parts, "plot", self.label, _legend(("before", "after"), ("line old", "line s0")))


@dataclass(frozen=True)
class Estimate:
    """What a candidate loses, the interval of that if it is known, whether it was chosen, and what it costs."""

    name: str
    loss: float
    ends: Interval | None = None
    marked: bool = False
    cost: float = 0.0


@dataclass(frozen=True)
class IntervalChart:
    """A row for each loss: a dot, its interval, and a line at zero and at the limit."""

    losses: Sequence[Estimate]
    limit: float | None
    unit: str

    def draw(self) -> Markup:
        ends = [end for loss in self.losses for end in (loss.loss, *(loss.ends or ()))]
        axis = Axis.over([0.0, *ends, *([] if self.limit is None else [self.limit])])
        rows = [
            tag(
                "div",
                tag("div", loss.name, class_="who"),
                tag("svg", *self._interval(loss, axis), class_="interval", aria_hidden="true"),
                class_="row",
            )
            for loss in self.losses
        ]
        scale = tag("svg", *_vertical_labels(axis, grid=False), class_="interval scale", aria_hidden="true")
        names = [] if self.limit is None else [legend_key("range", "the loss to accept")]
        return tag(
            "figure",
            *rows,
            tag("div", tag("div", class_="who"), scale, class_="row"),
            tag("figcaption", f"Loss in {self.unit}. ", *names),
            class_="intervals",
        )

    def _interval(self, loss: Estimate, axis: Axis) -> Iterator[Markup]:
        yield _vertical(axis.along(0.0), "zero")
        if self.limit is not None:
            yield _vertical(axis.along(self.limit), "range")
        style = " marked" if loss.marked else ""
        if loss.ends is not None:
            low, high = (_percent(axis.along(end)) for end in loss.ends)
            yield tag("line", x1=low, x2=high, y1="50%", y2="50%", class_=f"whisker{style}")
        yield tag("circle", cx=_percent(axis.along(loss.loss)), cy="50%", r=5, class_=f"dot s0{style}")


def front_of(candidates: Sequence[Estimate]) -> list[Estimate]:
    """Return the Pareto front, the cheapest first: for none of these another costs no more and loses less."""
    found: list[Estimate] = []
    for each in sorted(candidates, key=lambda candidate: (candidate.cost, candidate.loss)):
        if not found or each.loss < found[-1].loss:
            found.append(each)
    return found


@dataclass(frozen=True)
class FrontChart:
    """A dot for each candidate, a line for the interval of its loss, and the Pareto front as steps."""

    candidates: Sequence[Estimate]
    cost: str
    loss: str

    def draw(self) -> Markup:
        across = Axis.over([0.0, *(each.cost for each in self.candidates)])
        losses = [end for each in self.candidates for end in (each.loss, *(each.ends or ()))]
        up = Axis.over([0.0, *losses])
        label = f"Loss in {self.loss} against {self.cost}: down and left is better"
        parts = [*_horizontal_grid(up, "{:.4g}".format, zero="zero"), *_vertical_labels(across, grid=False)]
        parts.append(self._steps(across, up))
        for each in self.candidates:
            parts += self._dot(each, across, up)
        parts += self._names(across, up)
        svg = tag("svg", *parts, class_="plot front", role="img", aria_label=label)
        return tag("figure", svg, tag("figcaption", f"{label}. The line is the front: nothing beats what is on it."))

    def _steps(self, across: Axis, up: Axis) -> Markup:
        places = [
            (100 * across.along(each.cost), 100 * (1 - up.along(each.loss))) for each in front_of(self.candidates)
        ]
        path = f"M{places[0][0]:.2f} 0V{places[0][1]:.2f}"
        path += "".join(f"H{x:.2f}V{y:.2f}" for x, y in places[1:])
        return _box(tag("path", d=f"{path}H100", class_="line"))

    def _dot(self, each: Estimate, across: Axis, up: Axis) -> Iterator[Markup]:
        x, y = across.along(each.cost), 1 - up.along(each.loss)
        style = " marked" if each.marked else ""
        if each.ends is not None:
            low, high = (_percent(1 - up.along(end)) for end in each.ends)
            yield tag("line", x1=_percent(x), x2=_percent(x), y1=low, y2=high, class_=f"whisker{style}")
        about = tag("title", f"{each.name}: {each.cost:.4g} {self.cost}, {each.loss:.4g} {self.loss}")
        yield tag("circle", about, cx=_percent(x), cy=_percent(y), r=5, class_=f"dot{style}")

    def _names(self, across: Axis, up: Axis) -> Iterator[Markup]:
        """Name the dots: above or below, and further away where candidates of about the same cost stand close."""
        taken: list[tuple[float, float, float]] = []  # left and right end, and height
        for each in sorted(self.candidates, key=lambda candidate: candidate.cost):
            x, y = across.along(each.cost), 1 - up.along(each.loss)
            name = in_the_middle(each.name, CANDIDATE_LETTERS)
            wide = LETTER * len(name) + NAME_ASIDE
            left = x * FRONT_WIDTH > wide  # where there is room, all on one side: neighbours do not swap names
            aside, anchor = (-NAME_ASIDE, "end") if left else (NAME_ASIDE, "start")
            ends = (x * FRONT_WIDTH - wide * left, x * FRONT_WIDTH + wide * (not left))
            free = (
                dy
                for dy in NAME_PLACES
                if not any(
                    first < ends[1] and ends[0] < last and abs(y * FRONT_HEIGHT + dy - height) < LINE
                    for first, last, height in taken
                )
            )
            dy = next(free, NAME_PLACES[0])
            taken.append((*ends, y * FRONT_HEIGHT + dy))
            yield tag("text", name, x=_percent(x), y=_percent(y), text_anchor=anchor, dx=aside, dy=dy, class_="who")


class Chart(Protocol):
    """Anything that a page can draw."""

    def draw(self) -> Markup:
        """Return the chart as markup."""


def _figure(parts: Sequence[Markup], style: str, label: str, legend: Markup | None = None) -> Markup:
    drawn = tag("svg", *parts, class_=style, role="img", aria_label=label)
    return tag("figure", drawn, tag("figcaption", label, " ", legend))


def _legend(names: Sequence[str], styles: Sequence[str]) -> Markup:
    return joined(legend_key(style, name) for name, style in zip(names, styles, strict=False))


def legend_key(style: str, name: str) -> Markup:
    """Return a patch in the color of a style, and what it stands for."""
    return tag("span", tag("svg", tag("rect", width="100%", height="100%"), class_=style), name, class_="key")


def _horizontal_grid(
    axis: Axis, spell: Callable[[float], str] = "{:.6g}".format, zero: str = "grid"
) -> Iterator[Markup]:
    for value in axis.ticks:
        y = _percent(1 - axis.along(value))
        yield tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid" if value else zero)
        yield tag("text", spell(value), x=-8, y=y, dy="0.32em", text_anchor="end")


def _vertical_labels(axis: Axis, *, grid: bool = True) -> Iterator[Markup]:
    for value in axis.ticks:
        if grid:
            yield _vertical(axis.along(value), "grid")
        yield tag("text", f"{value:.4g}", x=_percent(axis.along(value)), y="100%", dy=18, text_anchor="middle")


def _count_labels(counts: CountAxis) -> Iterator[Markup]:
    for power in counts.powers(5):
        y = _percent(1 - counts.along(10.0**power))
        yield tag("text", _power(power), x=-8, y=y, dy="0.32em", text_anchor="end")


def _power(power: float) -> str:
    return f"{10.0**power:,.6g}" if -4 <= power < 5 else f"1e{power:.0f}"


def _ends(left: str, right: str) -> Iterator[Markup]:
    yield tag("text", left, x=0, y="100%", dy=18)
    yield tag("text", right, x="100%", y="100%", dy=18, text_anchor="end")


def _curve(points: Iterable[tuple[float, float]], style: str) -> Markup:
    places = " ".join(f"{100 * x:.2f},{100 * y:.2f}" for x, y in points)
    return _box(tag("polyline", points=places, class_=style))


def _box(child: Markup) -> Markup:
    return tag("svg", child, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height="100%")


def _dot(x: float, y: float, radius: int, point: Point, style: str) -> Markup:
    title = tag("title", point.label)
    return tag("circle", title, cx=_percent(x), cy=_percent(y), r=radius, class_=style, data_opens=point.row)


def _vertical(x: float, style: str) -> Markup:
    return tag("line", x1=_percent(x), x2=_percent(x), y1="0", y2="100%", class_=style)


def _place(index: int, count: int) -> float:
    return index / (count - 1) if count > 1 else 0.5


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
