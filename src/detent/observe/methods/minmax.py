"""MinMax: the observed range, or the mean over the samples of each one's range.

    moving average:   low = sum(min(sample)) / samples        high = sum(max(sample)) / samples

The sums are exact, so the mean does not depend on the order of the samples.
"""

from __future__ import annotations

from detent.observe.methods.points import Points
from detent.observe.methods.ranges import Range
from detent.observe.statistics import TensorStatistics


def observed_range(points: Points) -> Range:
    """From the least to the greatest value."""
    return Range(points.minimum, points.maximum)


def mean_range(statistics: TensorStatistics) -> Range:
    """From the mean of the samples' minima to that of their maxima."""
    return Range(*statistics.mean_extremes)
