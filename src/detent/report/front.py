"""Candidates on a plane: what each costs against what it loses, and the front of those that none beats in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from detent.report import document as doc
from detent.report.charts import Axis, tag
from detent.report.figures import in_the_middle
from detent.results.paired import Interval

LETTERS = 26


@dataclass(frozen=True)
class FrontPoint:
    """What one costs and loses, the interval of its loss if it is known, and whether it was chosen."""

    name: str
    cost: float
    loss: float
    ends: Interval | None = None
    marked: bool = False


def front_of(candidates: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return those that no other beats, the cheapest first: none costs as little and loses less, or the reverse."""
    found: list[FrontPoint] = []
    for each in sorted(candidates, key=lambda candidate: (candidate.cost, candidate.loss)):
        if not found or each.loss < found[-1].loss:
            found.append(each)
    return found


@dataclass(frozen=True)
class FrontChart:
    """A dot for each candidate, a line for the interval of its loss, and the front as steps below and left of all."""

    candidates: Sequence[FrontPoint]
    cost: str
    loss: str

    def draw(self) -> Markup:
        """Return the chart as markup."""
        across = Axis.over([0.0, *(each.cost for each in self.candidates)])
        losses = [end for each in self.candidates for end in (each.loss, *(each.ends or ()))]
        up = Axis.over([0.0, *losses])
        label = f"Loss in {self.loss} against {self.cost}: down and left is better"
        parts = [*self._grid(across, up), self._steps(across, up)]
        for each in self.candidates:
            parts += self._dot(each, across, up)
        svg = tag("svg", *parts, class_="plot front", role="img", aria_label=label)
        return tag("figure", svg, tag("figcaption", f"{label}. The line is the front: nothing beats what is on it."))

    def _grid(self, across: Axis, up: Axis) -> Iterator[Markup]:
        for value in up.ticks:
            y = _share(1 - up.along(value))
            yield tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid" if value else "zero")
            yield tag("text", f"{value:.4g}", x=-8, y=y, dy="0.32em", text_anchor="end")
        for value in across.ticks:
            yield tag("text", f"{value:.4g}", x=_share(across.along(value)), y="100%", dy=18, text_anchor="middle")

    def _steps(self, across: Axis, up: Axis) -> Markup:
        places = [
            (100 * across.along(each.cost), 100 * (1 - up.along(each.loss))) for each in front_of(self.candidates)
        ]
        path = f"M{places[0][0]:.2f} 0V{places[0][1]:.2f}"
        path += "".join(f"H{x:.2f}V{y:.2f}" for x, y in places[1:])
        drawn = tag("path", d=f"{path}H100", class_="line")
        return tag("svg", drawn, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height="100%")

    def _dot(self, each: FrontPoint, across: Axis, up: Axis) -> Iterator[Markup]:
        x, y = across.along(each.cost), 1 - up.along(each.loss)
        style = " marked" if each.marked else ""
        if each.ends is not None:
            low, high = (_share(1 - up.along(end)) for end in each.ends)
            yield tag("line", x1=_share(x), x2=_share(x), y1=low, y2=high, class_=f"whisker{style}")
        about = tag("title", f"{each.name}: {each.cost:.4g} {self.cost}, {each.loss:.4g} {self.loss}")
        yield tag("circle", about, cx=_share(x), cy=_share(y), r=5, class_=f"dot{style}")
        aside, anchor = (-10, "end") if x > 0.6 else (10, "start")
        place = {"x": _share(x), "y": _share(y), "text_anchor": anchor}
        # Names above and below by turns: candidates of about the same cost stand close together.
        above = self.candidates.index(each) % 2 == 0
        yield tag("text", in_the_middle(each.name, LETTERS), **place, dx=aside, dy=-8 if above else 18, class_="who")


def front_section(candidates: Sequence[tuple[str, Sequence[FrontPoint]]], loss: str) -> doc.Section | None:
    """Draw a front for each cost, such as the size or the time; None if there are not two candidates to choose from."""
    drawn = [
        doc.Figure(FrontChart(each, cost, loss)) for cost, each in candidates if len({one.cost for one in each}) > 1
    ]
    if not drawn:
        return None
    meaning = "What each candidate costs and what it loses against the first model, with the 95 % interval of the loss."
    return doc.Section("Front", meaning, drawn, folded=False, on="page")


def _share(value: float) -> str:
    return f"{100 * value:.2f}%"
