"""Weighted values: the one form of data that every calibration method works on.

A point is a count of values that are spread evenly over lower..upper. A raw value has both ends equal, so a method can
be tried on the data themselves; the occupied bins of a histogram are points of some width, sharper in three places:

- The outermost bins end at the exact minimum and maximum. A tensor of one value is that value, and what a Clip
  saturated sits at its bound and not half a bin beside it.
- Bin 0 holds zeros beside the small positive numbers, and after a Relu most of a tensor. What it holds beyond the
  fuller one of its two neighbours is taken as exact zeros, which every format represents without error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.observe.counting import HALF
from detent.observe.histogram import Histogram

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Points:
    """Counts of values, in ascending order, each spread over lower..upper; the extremes are exact, 0 for no data."""

    lower: FloatArray
    upper: FloatArray
    counts: FloatArray
    minimum: float
    maximum: float

    @classmethod
    def of_values(cls, values: npt.ArrayLike) -> Points:
        """Every value of an array, as it is."""
        distinct, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
        distinct = distinct + 0.0  # no negative zero
        if distinct.size == 0:
            return cls(distinct, distinct, counts.astype(np.float64), 0.0, 0.0)
        return cls(distinct, distinct, counts.astype(np.float64), float(distinct[0]), float(distinct[-1]))

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> Points:
        """The occupied bins of a histogram."""
        if not histogram.total:
            return cls.of_values(())
        bins = np.flatnonzero(histogram.counts)
        lower = (bins - HALF).astype(np.float64) * histogram.width
        upper = lower + histogram.width
        lower[0], upper[-1] = histogram.minimum, histogram.maximum
        zeros = _zeros(histogram)
        counts = histogram.counts.astype(np.float64)
        counts[HALF] -= zeros
        points = cls(lower, upper, counts[bins], histogram.minimum, histogram.maximum)
        return points._with_zeros(int(np.searchsorted(bins, HALF)), zeros) if zeros else points

    @property
    def total(self) -> float:
        """The number of values."""
        return float(self.counts.sum())

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.minimum, self.maximum, 0.0)

    @property
    def centres(self) -> FloatArray:
        """The mean of each point's values."""
        return (self.lower + self.upper) * 0.5

    def within(self, low: float, high: float) -> Points:
        """The points whose centres are in low..high."""
        first, last = np.searchsorted(self.centres, (low, np.nextafter(high, np.inf)))
        lower, upper, counts = self.lower[first:last], self.upper[first:last], self.counts[first:last]
        if lower.size == 0:
            return Points(lower, upper, counts, 0.0, 0.0)
        return Points(lower, upper, counts, float(lower[0]), float(upper[-1]))

    def without_zeros(self) -> Points:
        """The points that are not exactly zero."""
        others = (self.lower != 0.0) | (self.upper != 0.0)
        return Points(self.lower[others], self.upper[others], self.counts[others], self.minimum, self.maximum)

    def magnitudes(self) -> Points:
        """The absolute values."""
        ends = np.abs(self.lower), np.abs(self.upper)
        order = np.argsort(np.maximum(*ends), kind="stable")
        lower, upper = np.minimum(*ends)[order], np.maximum(*ends)[order]
        least = 0.0 if self.minimum <= 0.0 <= self.maximum else min(abs(self.minimum), abs(self.maximum))
        return Points(lower, upper, self.counts[order], least, self.largest)

    def _with_zeros(self, place: int, zeros: int) -> Points:
        """The same points, and `zeros` exact ones before the one at `place`, which goes where nothing is left in it."""
        kept = slice(place, None) if self.counts[place] else slice(place + 1, None)
        lower = np.concatenate((self.lower[:place], [0.0], self.lower[kept]))
        upper = np.concatenate((self.upper[:place], [0.0], self.upper[kept]))
        counts = np.concatenate((self.counts[:place], [float(zeros)], self.counts[kept]))
        return Points(lower, upper, counts, self.minimum, self.maximum)


def _zeros(histogram: Histogram) -> int:
    """An estimate of the exact zeros in bin 0; none where every value is positive."""
    if histogram.minimum > 0.0:
        return 0
    before, here, after = (int(count) for count in histogram.counts[HALF - 1 : HALF + 2])
    if histogram.maximum == 0.0:
        return here
    others = max(before, after, int(histogram.maximum < histogram.width))
    return max(here - others, 0)
