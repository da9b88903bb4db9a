"""The methods on power-of-two scales: each chooses a position.

- MinMax, Percentile: the base position of the range, whose scale is nearest to the one that spreads the range over the
  codes. It may clip by up to sqrt(2); NonOverflow is the one that does not.
- MinMSE: of five positions around the base, the one with the least squared error; over all values ("All"), or over
  those within a percentage, the others being dropped and not clipped ("Percentile"), or over each sample apart, the
  position that won most often being taken ("MostCommon", on ties the larger scale).
- NonOverflow: the largest position at which nothing saturates.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from detent.errors import UsageError
from detent.methods import MinMSE
from detent.numerics.formats import IntegerFormat
from detent.numerics.power_of_two import base_position, min_mse_position, non_overflow_position, scale_of
from detent.observe.counting import HALF
from detent.observe.histogram import Histogram
from detent.observe.methods.percentile import percentile_range
from detent.observe.methods.points import Points
from detent.observe.methods.ranges import Range
from detent.observe.methods.rounding import squared_error
from detent.observe.statistics import TensorStatistics, Vote

BITS_WITHIN_BINS = 8
"""Up to this width, all values of a histogram's bin round to one code, and its centre speaks for them."""


def range_position(chosen: Range, fmt: IntegerFormat) -> int:
    """The base position of a range."""
    return base_position(chosen.largest, fmt)


def non_overflow(chosen: Range, fmt: IntegerFormat) -> int:
    """The largest position at which neither end of a range saturates."""
    return non_overflow_position(min(chosen.low, 0.0), max(chosen.high, 0.0), fmt)


def min_mse(statistics: TensorStatistics, fmt: IntegerFormat, method: MinMSE, tensor: str) -> int:
    """The position that MinMSE chooses for an activation."""
    histogram = statistics.histogram
    if method.mode == "Percentile":
        return min_mse_within(Points.of_histogram(histogram), fmt, method.percentile)
    if method.mode == "MostCommon" and statistics.samples:
        return _most_common(statistics, tensor)
    return min_mse_of_histogram(histogram, fmt)


def min_mse_of_histogram(histogram: Histogram, fmt: IntegerFormat) -> int:
    """The position with the least squared error over all values."""
    if fmt.bits > BITS_WITHIN_BINS:
        return min_mse_of_points(Points.of_histogram(histogram), fmt)
    if not histogram.total:
        return min_mse_of_points(Points.of_values(()), fmt)
    bins = np.flatnonzero(histogram.counts)
    centres = (bins.astype(np.float64) - HALF + 0.5) * histogram.width
    counts = histogram.counts[bins].astype(np.float64)
    return min_mse_of_points(Points(centres, centres, counts, histogram.minimum, histogram.maximum), fmt)


def min_mse_within(points: Points, fmt: IntegerFormat, percentile: float) -> int:
    """The position with the least squared error over the values within a percentage."""
    return min_mse_of_points(points.within(*percentile_range(points, percentile, fmt.symmetric)), fmt)


def min_mse_of_points(points: Points, fmt: IntegerFormat) -> int:
    """The position with the least squared error over points."""
    low, high = map(float, fmt.levels)

    def error(position: int) -> float:
        return squared_error(points.lower, points.upper, points.counts, scale_of(position), low, high)

    return min_mse_position(points.largest, fmt, error)


def vote_of(fmt: IntegerFormat, method: MinMSE) -> Vote | None:
    """What each sample is asked while calibrating, where the method wants to know."""
    if method.mode != "MostCommon":
        return None
    return partial(min_mse_of_histogram, fmt=fmt)  # picklable: it may be asked on another machine


def _most_common(statistics: TensorStatistics, tensor: str) -> int:
    if not statistics.votes:
        raise UsageError(
            f"MinMSE with mode MostCommon needs each sample's own best position, and these statistics have none for "
            f"'{tensor}': they were collected for another method. Calibrate again with this method, or choose mode All."
        )
    most = max(statistics.votes.values())
    return min(position for position, votes in statistics.votes.items() if votes == most)
