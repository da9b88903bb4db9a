"""What calibration remembers of every tensor: small, mergeable, and the same whatever the order of the samples.

The histogram answers most questions. Two methods ask about single samples, and what they need adds up exactly too: the
moving-average MinMax wants the mean of each sample's extremes, which is kept as a sum in whole multiples of the least
float32; MinMSE's MostCommon mode wants each sample's own best position, which is kept as votes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from detent.methods.method import Vote
from detent.observe.histogram import Histogram

LEAST_FLOAT_EXPONENT = 149
"""Every finite float32 is a whole multiple of 2^-149, so sums of them as integers are exact in any order."""


@dataclass
class TensorStatistics:
    """The histogram of a tensor, the sums of each sample's extremes, and the votes of each sample (where asked for)."""

    histogram: Histogram = field(default_factory=Histogram)
    samples: int = 0
    sum_of_minima: int = 0
    sum_of_maxima: int = 0
    votes: Counter[int] = field(default_factory=Counter)

    def add(self, values: npt.NDArray[Any], vote: Vote | None = None) -> None:
        """Count one sample. Raises NonFiniteError, and counts nothing, where a value is NaN or infinite."""
        extremes = self.histogram.add(values)
        if extremes is None:
            return
        self.samples += 1
        self.sum_of_minima += fixed_point(extremes[0])
        self.sum_of_maxima += fixed_point(extremes[1])
        if vote is not None:
            alone = Histogram()
            alone.add(values)
            self.votes[vote(alone)] += 1

    def merge(self, other: TensorStatistics) -> None:
        """Add everything that `other` counted."""
        self.histogram.merge(other.histogram)
        self.samples += other.samples
        self.sum_of_minima += other.sum_of_minima
        self.sum_of_maxima += other.sum_of_maxima
        self.votes.update(other.votes)

    @property
    def mean_extremes(self) -> tuple[float, float]:
        """The mean over the samples of their minima and of their maxima; zeros where there was none."""
        unit = self.samples << LEAST_FLOAT_EXPONENT
        return (self.sum_of_minima / unit, self.sum_of_maxima / unit) if unit else (0.0, 0.0)


Statistics = dict[str, TensorStatistics]
"""The statistics of every site, by its name."""


def merge(into: Statistics, other: Mapping[str, TensorStatistics]) -> None:
    """Add the statistics of the same sites, counted over other samples."""
    for name, statistics in other.items():
        into[name].merge(statistics)


def fixed_point(value: float) -> int:
    """A float32 as a whole multiple of 2^-149."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << LEAST_FLOAT_EXPONENT) // denominator
