"""Percentile: the smallest range that holds p percent of the values.

    symmetric:    ±t, with t the least magnitude that at most n (100 - p) / 100 of the n values exceed
    asymmetric:   at most n (100 - p) / 200 values are below the range, and as many above

Both ends are observed values. On a histogram they are the outer ends of the bins that hold these values, so that the
range holds no less than it says, and it is at most a bin wider.

Where more than p percent of the values are zero, that range is nothing but zero and would erase the tensor: the
percentage is then one of the others alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction

import numpy as np

from detent.errors import UsageError, nearest
from detent.methods import Method, Percentile
from detent.observe.methods.points import FloatArray, Points
from detent.observe.methods.ranges import Range


def percentile_range(points: Points, percentile: float, symmetric: bool) -> Range:
    """The range that holds `percentile` percent."""
    return percentile_ranges(points, (percentile,), symmetric)[0]


def percentile_ranges(points: Points, percentiles: Sequence[float], symmetric: bool) -> list[Range]:
    """The ranges that hold each of several percentages."""
    if points.largest == 0.0:
        return [Range(0.0, 0.0)] * len(percentiles)
    ranges = _ranges(points, percentiles, symmetric)
    if Range(0.0, 0.0) not in ranges:
        return ranges
    of_the_others = _ranges(points.without_zeros(), percentiles, symmetric)
    return [
        chosen if any(chosen) else Range(min(other.low, 0.0), max(other.high, 0.0))
        for chosen, other in zip(ranges, of_the_others, strict=True)
    ]


def check_tensors(method: Method, tensors: Collection[str]) -> None:
    """Raise UsageError where `by_tensor` names one that is not among `tensors`."""
    if not isinstance(method, Percentile):
        return
    for tensor, _ in method.by_tensor:
        if tensor not in tensors:
            raise UsageError(
                f"Percentile has a percentage for '{tensor}', but no quantized tensor has that name."
                f"{nearest(tensor, tensors)}"
            )


def _ranges(points: Points, percentiles: Sequence[float], symmetric: bool) -> list[Range]:
    if symmetric:
        magnitudes = points.magnitudes()
        allowed = [_allowed(points, percentile, sides=1) for percentile in percentiles]
        thresholds = _ends(magnitudes.upper, magnitudes.counts, allowed)
        return [Range(max(points.minimum, -end), min(points.maximum, end)) for end in thresholds]
    allowed = [_allowed(points, percentile, sides=2) for percentile in percentiles]
    lows = _ends(-points.lower[::-1], points.counts[::-1], allowed)
    highs = _ends(points.upper, points.counts, allowed)
    return [Range(-low, high) for low, high in zip(lows, highs, strict=True)]


def _allowed(points: Points, percentile: float, sides: int) -> int:
    """How many values may be outside at one of `sides` ends; in exact decimals, as 100 - 99.9 is not 0.1 in binary."""
    outside = int(points.total) * (100 - Fraction(str(percentile))) / 100
    return int(outside / sides)


def _ends(ends: FloatArray, counts: FloatArray, allowed: Sequence[int]) -> list[float]:
    """For each count in `allowed`, the first of the ascending `ends` that no more values are beyond."""
    beyond = np.cumsum(counts[::-1])  # of the last one, two, three ... points
    from_the_end = np.searchsorted(beyond, np.asarray(allowed, np.float64), side="right")
    places = np.maximum(ends.size - 1 - from_the_end, 0)
    return [float(end) for end in ends[places]]
