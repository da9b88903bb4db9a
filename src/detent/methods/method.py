"""What a calibration method is: a comparable value with settings, and the code that chooses parameters.

A method sees weighted points, never a file or a graph. It chooses a range, which the format fits its codes to. On a
power-of-two scale that is the position whose scale is nearest to the one that spreads the range over the codes; it may
clip by up to sqrt(2). A constant is its own only sample: the mean of its extremes is its extremes.

Points are weighted values, the one form of data that every method works on. A point is a count of values that are
spread evenly over lower..upper. A raw value has both ends equal, so a method can be tried on the data themselves; the
occupied bins of a histogram are points of some width, sharper in three places:

- The outermost bins end at the exact minimum and maximum. A tensor of one value is that value, and what a Clip
  saturated sits at its bound and not half a bin beside it.
- Bin 0 holds zeros beside the small positive numbers, and after a Relu most of a tensor. What it holds beyond the
  fuller one of its two neighbours is taken as exact zeros, which every format represents without error.

A point that is spread over a..b may reach over several codes (16-bit grids are finer than the bins of a histogram), so
its error is the mean over a..b and not that of its centre. With n(x) = clip(round(x / s), low, high), the integral of
the error from 0 to x has a closed form, whose first term counts the whole steps:

    squared:    n s^3 / 12 + (x - n s)^3 / 3              absolute:   n s^2 / 4 + (x - n s) |x - n s| / 2

Over many steps the squared error is the familiar s^2 / 12 for each value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.numerics.compiled import compiled
from detent.numerics.floats import FloatFormat, FloatParams
from detent.numerics.formats import IntegerFormat, QuantParams, base_position

FloatArray = npt.NDArray[np.float64]


class Counts(Protocol):
    """A histogram: how many values are in each of its bins, half of which are negative."""

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Values per bin, from the most negative bin to the most positive."""

    @property
    def total(self) -> int:
        """All values."""

    @property
    def width(self) -> float:
        """The width of a bin."""

    @property
    def minimum(self) -> float:
        """The least value, exactly."""

    @property
    def maximum(self) -> float:
        """The greatest value, exactly."""


class Range(NamedTuple):
    """All from low to high."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        return max(-self.low, self.high, 0.0)


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
        distinct, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
        distinct = distinct + 0.0  # no negative zero
        if distinct.size == 0:
            return cls(distinct, distinct, counts.astype(np.float64), 0.0, 0.0)
        return cls(distinct, distinct, counts.astype(np.float64), float(distinct[0]), float(distinct[-1]))

    @classmethod
    def of_histogram(cls, histogram: Counts) -> Points:
        """Return the occupied bins of a histogram."""
        if not histogram.total:
            return cls.of_values(())
        bins, half = np.flatnonzero(histogram.counts), histogram.counts.size // 2
        lower = (bins - half).astype(np.float64) * histogram.width
        upper = lower + histogram.width
        lower[0], upper[-1] = histogram.minimum, histogram.maximum
        zeros = _zeros(histogram)
        counts = histogram.counts.astype(np.float64)
        counts[half] -= zeros
        points = cls(lower, upper, counts[bins], histogram.minimum, histogram.maximum)
        return points._with_zeros(int(np.searchsorted(bins, half)), zeros) if zeros else points

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    @property
    def largest(self) -> float:
        return max(-self.minimum, self.maximum, 0.0)

    @property
    def centres(self) -> FloatArray:
        """The mean of each point's values."""
        return (self.lower + self.upper) * 0.5

    def within(self, low: float, high: float) -> Points:
        """Return the points whose centres are in low..high."""
        first, last = np.searchsorted(self.centres, (low, np.nextafter(high, np.inf)))
        lower, upper, counts = self.lower[first:last], self.upper[first:last], self.counts[first:last]
        if lower.size == 0:
            return Points(lower, upper, counts, 0.0, 0.0)
        return Points(lower, upper, counts, float(lower[0]), float(upper[-1]))

    def without_zeros(self) -> Points:
        """Return the points that are not exactly zero."""
        others = (self.lower != 0.0) | (self.upper != 0.0)
        return Points(self.lower[others], self.upper[others], self.counts[others], self.minimum, self.maximum)

    def magnitudes(self) -> Points:
        """Return the absolute values."""
        ends = np.abs(self.lower), np.abs(self.upper)
        order = np.argsort(np.maximum(*ends), kind="stable")
        lower, upper = np.minimum(*ends)[order], np.maximum(*ends)[order]
        least = 0.0 if self.minimum <= 0.0 <= self.maximum else min(abs(self.minimum), abs(self.maximum))
        return Points(lower, upper, self.counts[order], least, self.largest)

    def _with_zeros(self, place: int, zeros: int) -> Points:
        """Return the same points, and `zeros` exact ones before the one at `place`; an empty one there goes."""
        kept = slice(place, None) if self.counts[place] else slice(place + 1, None)
        lower = np.concatenate((self.lower[:place], [0.0], self.lower[kept]))
        upper = np.concatenate((self.upper[:place], [0.0], self.upper[kept]))
        counts = np.concatenate((self.counts[:place], [float(zeros)], self.counts[kept]))
        return Points(lower, upper, counts, self.minimum, self.maximum)


def _zeros(histogram: Counts) -> int:
    """Return an estimate of the exact zeros in bin 0; none where every value is positive."""
    if histogram.minimum > 0.0:
        return 0
    half = histogram.counts.size // 2
    before, here, after = (int(count) for count in histogram.counts[half - 1 : half + 2])
    if histogram.maximum == 0.0:
        return here
    others = max(before, after, int(histogram.maximum < histogram.width))
    return max(here - others, 0)


@compiled
def squared_error(
    lower: FloatArray, upper: FloatArray, counts: FloatArray, scale: float, low: float, high: float
) -> float:
    """Return the sum of squared errors on the grid of low*scale .. high*scale."""
    total = 0.0
    for i in range(counts.size):
        first = min(max(np.rint(lower[i] / scale), low), high)
        last = min(max(np.rint(upper[i] / scale), low), high)
        a = lower[i] - first * scale
        b = upper[i] - last * scale
        if lower[i] == upper[i]:
            total += counts[i] * (a * a)
        elif first == last:
            total += counts[i] * (a * a + a * b + b * b) / 3.0
        else:
            integral = (last - first) * scale * scale * scale / 12.0 + (b * b * b - a * a * a) / 3.0
            total += counts[i] * integral / (upper[i] - lower[i])
    return total


@compiled
def absolute_error(
    lower: FloatArray, upper: FloatArray, counts: FloatArray, scale: float, low: float, high: float
) -> float:
    """Return the sum of absolute errors on the grid of low*scale .. high*scale."""
    total = 0.0
    for i in range(counts.size):
        first = min(max(np.rint(lower[i] / scale), low), high)
        last = min(max(np.rint(upper[i] / scale), low), high)
        a = lower[i] - first * scale
        b = upper[i] - last * scale
        if first == last and a * b >= 0.0:
            total += counts[i] * abs(a + b) * 0.5
        else:
            integral = (last - first) * scale * scale / 4.0 + (b * abs(b) - a * abs(a)) / 2.0
            total += counts[i] * integral / (upper[i] - lower[i])
    return total


Vote = Callable[[Counts], int]  # the position that a method would choose for one sample alone


class ObservedTensor(Protocol):
    """What calibration remembers of one activation."""

    @property
    def histogram(self) -> Counts:
        """The values of all samples."""

    @property
    def samples(self) -> int:
        """How many samples there were."""

    @property
    def votes(self) -> Mapping[int, int]:
        """How many samples asked for each position."""

    @property
    def mean_extremes(self) -> tuple[float, float]:
        """The mean over the samples of their minima and of their maxima."""


class Method(ABC):
    """Chooses the parameters of a tensor."""

    averages: bool = False
    """Whether it wants the mean of each sample's extremes."""

    @property
    def name(self) -> str:
        """The name that users give."""
        return type(self).__name__

    def check(self, fmt: IntegerFormat) -> None:  # noqa: B027  (most methods take every integer format)
        """Raise UsageError where the method cannot choose parameters for integers of `fmt`."""

    def check_float(self, fmt: FloatFormat) -> None:
        """Raise UsageError where the method cannot choose the scale of a small float, if that has one."""
        if fmt.scaled:
            others = "MinMax or Distribution" if fmt.bits == 8 else "MinMax"
            raise UsageError(f"{self.name} chooses between integers, and this is {fmt.label}. Choose {others}.")

    def check_tensors(self, tensors: Collection[str]) -> None:  # noqa: B027  (most methods name no tensor)
        """Raise UsageError where the method names a tensor that is not among the quantized ones."""

    @abstractmethod
    def choose(self, points: Points, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters for points."""

    def choose_observed(self, observed: ObservedTensor, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters of an activation."""
        return self.choose(Points.of_histogram(observed.histogram), fmt, tensor)

    def choose_values(
        self, values: npt.NDArray[np.float32], fmt: IntegerFormat, tensor: str, points_of: Callable[[Any], Points]
    ) -> QuantParams:
        """Return the parameters of a constant, whose points are `points_of(values)`."""
        return self.choose(points_of(values), fmt, tensor)

    def choose_each(
        self,
        rows: Iterable[npt.NDArray[np.float32]],
        fmt: IntegerFormat,
        tensor: str,
        points_of: Callable[[Any], Points],
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the scale and zero point of each of several channels or groups of a constant."""
        chosen = [self.choose_values(row, fmt, tensor, points_of) for row in rows]
        return np.array([each.scale for each in chosen]), np.array([each.zero_point for each in chosen])

    def choose_extremes(self, extremes: Range, fmt: IntegerFormat) -> QuantParams:
        """Return the parameters where only the extremes are known."""
        return fit(fmt, extremes)

    def choose_float(self, points_of: Callable[[], Points], largest: float, fmt: FloatFormat) -> FloatParams:
        """Return the scale of a small float from the largest magnitude, or from its points."""
        return fmt.fit(0.0, largest)

    def vote(self, fmt: IntegerFormat) -> Vote | None:
        """Return what each sample is asked while calibrating; None for a method that does not ask."""
        return None


def fit(fmt: IntegerFormat, chosen: Range) -> QuantParams:
    if fmt.power_of_two:
        return QuantParams.at(fmt, base_position(chosen.largest, fmt))
    return fmt.fit(chosen.low, chosen.high)


def alternatives(fmt: IntegerFormat) -> str:
    """Name the methods that can choose for `fmt`, for a message."""
    other = "NonOverflow" if fmt.power_of_two else "Entropy"
    return f"MinMSE, MinMax, Percentile, LayerwisePercentile or {other}"


def check_percentage(what: str, percentile: float) -> None:
    """Raise UsageError for a number that is not a percentage."""
    if not 0.0 < percentile <= 100.0:
        raise UsageError(f"{what} is {percentile}: it must be above 0 and at most 100, such as 99.999.")


def check_choice(what: str, value: str, known: tuple[str, ...]) -> None:
    """Raise UsageError for a setting that is not one of the known ones."""
    if value not in known:
        raise UsageError(f"{what} is '{value}'. Choose from {', '.join(known)}.")
