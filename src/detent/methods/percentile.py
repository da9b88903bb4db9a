"""Percentile: the smallest range that holds p percent of the values.

    symmetric:    ±t, with t the least magnitude that at most n (100 - p) / 100 of the n values exceed
    asymmetric:   at most n (100 - p) / 200 values are below the range, and as many above

Both ends are observed values. On a histogram they are the outer ends of the bins that hold these values, so the range
holds at least p percent, and is at most a bin wider than needed.

If more than p percent of the values are zero, the range would be zero alone and erase the tensor. The percentage is
then taken of the other values.

LayerwisePercentile tries several percentages and takes the one whose parameters round the tensor with the least error:
candidates are compared by the scale and zero point that they lead to, not by the ranges themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

from detent.errors import UsageError, nearest
from detent.methods import method as base
from detent.numerics.formats import IntegerFormat, QuantParams

Metric = Literal["mae", "mse"]


@dataclass(frozen=True)
class Percentile(base.Method):
    """The range that holds `percentile` percent of the values; `by_tensor` names tensors with another percentage.

    A symmetric format cuts the largest magnitudes, an asymmetric one half of the rest at either end.
    """

    percentile: float = 99.999
    by_tensor: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        base.check_percentage("Percentile", self.percentile)
        for tensor, percentile in self.by_tensor:
            base.check_percentage(f"Percentile for '{tensor}'", percentile)

    def of(self, tensor: str) -> float:
        return dict(self.by_tensor).get(tensor, self.percentile)

    def check_tensors(self, tensors: Collection[str]) -> None:
        """Raise UsageError where `by_tensor` names one that is not quantized."""
        for tensor, _ in self.by_tensor:
            if tensor not in tensors:
                raise UsageError(
                    f"Percentile has a percentage for '{tensor}', but no quantized tensor has that name."
                    f"{nearest(tensor, tensors)}"
                )

    def choose(self, points: base.Points, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters of the range that holds the percentage."""
        return base.fit(fmt, percentile_range(points, self.of(tensor), fmt.symmetric))


@dataclass(frozen=True)
class LayerwisePercentile(base.Method):
    """For each tensor, the one of several percentages that rounds it with the least error; on ties the first.

    `metric` is the mean absolute error or the mean squared error.
    """

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    metric: Metric = "mae"

    def __post_init__(self) -> None:
        if not self.candidates:
            raise UsageError("LayerwisePercentile has no candidates. Give at least one percentage, such as 99.999.")
        for percentile in self.candidates:
            base.check_percentage("A candidate of LayerwisePercentile", percentile)
        base.check_choice("The metric of LayerwisePercentile", self.metric, get_args(Metric))

    def choose(self, points: base.Points, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters of the best candidate; on ties the first."""
        error = base.absolute_error if self.metric == "mae" else base.squared_error

        def error_of(params: QuantParams) -> float:
            zero_point = int(params.zero_point)
            low, high = float(fmt.low - zero_point), float(fmt.high - zero_point)
            return error(points.lower, points.upper, points.counts, float(params.scale), low, high)

        ranges = percentile_ranges(points, self.candidates, fmt.symmetric)
        return min((base.fit(fmt, candidate) for candidate in ranges), key=error_of)


def percentile_range(points: base.Points, percentile: float, symmetric: bool) -> base.Range:
    """Return the range that holds `percentile` percent."""
    return percentile_ranges(points, (percentile,), symmetric)[0]


def percentile_ranges(points: base.Points, percentiles: Sequence[float], symmetric: bool) -> list[base.Range]:
    """Return the ranges that hold each of several percentages."""
    if points.largest == 0.0:
        return [base.Range(0.0, 0.0)] * len(percentiles)
    ranges = _ranges(points, percentiles, symmetric)
    if base.Range(0.0, 0.0) not in ranges:
        return ranges
    without_zeros = _ranges(points.without_zeros(), percentiles, symmetric)
    return [
        chosen if any(chosen) else base.Range(min(other.low, 0.0), max(other.high, 0.0))
        for chosen, other in zip(ranges, without_zeros, strict=True)
    ]


def _ranges(points: base.Points, percentiles: Sequence[float], symmetric: bool) -> list[base.Range]:
    if symmetric:
        magnitudes = points.magnitudes()
        allowed = [_allowed(points, percentile, sides=1) for percentile in percentiles]
        thresholds = _ends(magnitudes.upper, magnitudes.counts, allowed)
        return [base.Range(max(points.minimum, -end), min(points.maximum, end)) for end in thresholds]
    allowed = [_allowed(points, percentile, sides=2) for percentile in percentiles]
    lows = _ends(-points.lower[::-1], points.counts[::-1], allowed)
    highs = _ends(points.upper, points.counts, allowed)
    return [base.Range(-low, high) for low, high in zip(lows, highs, strict=True)]


def _allowed(points: base.Points, percentile: float, sides: int) -> int:
    """Return how many values may be outside at one of `sides` ends."""
    # Exact decimals: 100 - 99.9 is not 0.1 in binary.
    outside = int(points.total) * (100 - Fraction(str(percentile))) / 100
    return int(outside / sides)


def _ends(ends: base.FloatArray, counts: base.FloatArray, allowed: Sequence[int]) -> list[float]:
    """Return, for each count in `allowed`, the first of the ascending `ends` with at most so many values beyond it."""
    beyond = np.cumsum(counts[::-1])  # values in the last one, two, three ... points
    from_the_end = np.searchsorted(beyond, np.asarray(allowed, np.float64), side="right")
    places = np.maximum(ends.size - 1 - from_the_end, 0)
    return [float(end) for end in ends[places]]
