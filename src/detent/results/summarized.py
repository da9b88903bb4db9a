"""What statistics say about each tensor: its range, how sparse it is, its outliers, and what each method would choose.

The outlier ratio is the largest magnitude over the one that 99.9 % of the values stay within. Near 1, all of the range
is in use; at 10, a method that keeps everything leaves nine tenths of the codes to one value in a thousand.

A histogram tells values apart down to its bin width w, at most 1/4096 of the largest magnitude: "near zero" is the
share of values with |x| < w, and exact zeros are at most the share of 0 <= x < w.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat
from detent.observe.counting import HALF
from detent.observe.statistics import Histogram, TensorStatistics
from detent.observe.statistics_file import StatisticsFile
from detent.plan.plan import method_choices
from detent.plan.select import names_matching
from detent.results import Result

OUTLIER_PERCENTILE = 99.9

Choices = Mapping[str, tuple[float, float]]  # the range that each method chooses, by the name of the method

Choose = Callable[[TensorStatistics, str], Choices]  # the choices for the statistics of a tensor and its name

Order = Literal["graph", "outliers"]


@dataclass(frozen=True)
class TensorSummary:
    """One tensor. `number` is its place in the graph; `minimum` and `maximum` are None if nothing was counted.

    `near_zero` and `zeros_at_most` are fractions of all values.
    """

    number: int
    name: str
    samples: int
    values: int
    minimum: float | None
    maximum: float | None
    bin_width: float
    near_zero: float
    zeros_at_most: float
    outlier_ratio: float
    choices: Choices = field(default_factory=dict)


@dataclass(frozen=True)
class StatisticsView(Result):
    """The summaries of the tensors that were asked for, and what the statistics are of."""

    description: str
    samples: int
    detent_version: str
    model: str
    data: str | None
    tensors: Sequence[TensorSummary]
    of: int
    """How many tensors there are in all."""


def choices_of(statistics: TensorStatistics, name: str) -> Choices:
    """Return what each method would choose for 8 bits: with float scales and any zero point, or with powers of two."""
    return method_choices(
        statistics, IntegerFormat("uint8", symmetric=False), IntegerFormat("uint8", scale="power_of_two"), name
    )


def view_statistics(
    file: StatisticsFile, choose: Choose | None = None, *, patterns: Sequence[str] = (), order: Order = "graph"
) -> StatisticsView:
    """Summarize the tensors that match a pattern (`*` and `?` stand for other characters), or of all.

    In the order of the graph, or by outlier ratio, the largest first.
    """
    wanted = selected(file, patterns)
    tensors = [
        summarise(number, name, statistics, choose)
        for number, (name, statistics) in enumerate(file.statistics.items())
        if name in wanted
    ]
    if order == "outliers":
        tensors.sort(key=lambda tensor: -tensor.outlier_ratio)
    return StatisticsView(
        file.description, file.samples, file.detent_version, file.model, file.data, tensors, len(file.statistics)
    )


def selected(file: StatisticsFile, patterns: Sequence[str]) -> set[str]:
    """Return the names that match any pattern, or all. Raise UsageError if a pattern matches none."""
    names = list(file.statistics)
    wanted = set() if patterns else set(names)
    for pattern in patterns:
        hits = names_matching(pattern, names)
        if not hits:
            raise UsageError(f"--tensor '{pattern}' matches no tensor of the statistics.{nearest(pattern, names)}")
        wanted.update(hits)
    return wanted


def summarise(number: int, name: str, statistics: TensorStatistics, choose: Choose | None = None) -> TensorSummary:
    """Summarize one tensor."""
    histogram = statistics.histogram
    total = histogram.total
    below, above = (int(histogram.counts[bin_]) for bin_ in (HALF - 1, HALF))
    return TensorSummary(
        number=number,
        name=name,
        samples=statistics.samples,
        values=total,
        minimum=histogram.minimum if total else None,
        maximum=histogram.maximum if total else None,
        bin_width=histogram.width,
        near_zero=(below + above) / max(total, 1),
        zeros_at_most=above / max(total, 1),
        outlier_ratio=outlier_ratio(histogram),
        choices={} if choose is None or not total else dict(choose(statistics, name)),
    )


def outlier_ratio(histogram: Histogram) -> float:
    """Return the largest magnitude over the upper edge of the bin that reaches the percentile; 1 if all is zero."""
    largest = histogram.largest
    if largest == 0.0:
        return 1.0
    magnitudes = histogram.counts[HALF:] + histogram.counts[HALF - 1 :: -1]
    within = np.searchsorted(np.cumsum(magnitudes), OUTLIER_PERCENTILE / 100 * histogram.total)
    return largest / min(largest, float(within + 1) * histogram.width)
