"""What calibration keeps of every tensor: small, mergeable, and independent of the order of the samples.

The histogram's bins are aligned to powers of two, so that growing and merging it are exact. The range is ±2^k in 2^14
bins of width w = 2^(k-13). Bin j >= 0 holds j*w <= x < (j+1)*w, and bin -1-j holds its mirror image; zero (of either
sign) is in bin 0. When a value does not fit, k grows and bins merge in pairs: that is the same histogram as if k had
been larger from the start. So the result depends neither on the order of the samples nor on how they were batched or
sharded, and two shards merge to what one pass would have given.

Every rounding threshold of a power-of-two grid down to a step of 2w falls on a bin edge: all values of a bin round to
the same code, and a search over positions needs the counts alone. (A value exactly on a threshold may be rounded the
other way, to the even code; it is half a step off in either case.)

Two methods ask about single samples, and what they need adds up exactly too: the moving-average MinMax wants the mean
of each sample's extremes, which is kept as a sum in whole multiples of the least float32; MinMSE's MostCommon mode
wants each sample's own best position, which is kept as votes.
"""

from __future__ import annotations

import math
import struct
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.methods.method import Vote
from detent.observe.counting import BINS, BLOCK, HALF, ROW, TABLES, count_tensors

LOWEST_EXPONENT = -100  # from -114 down the inverse of the bin width exceeds float32; such values are nearly zero
_INFINITY_KEY = 0x7F800000
_NO_KEYS = (2**31 - 1, -(2**31))  # the order-preserving keys of an empty set's extremes


class NonFiniteError(ValueError):
    """The tensor of this `number`, of those counted together, held NaN or infinity. The caller knows its name."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.number = number


class _Scratch(threading.local):
    """What counting works in: one for each thread, so that it is in the cache whichever tensor comes next."""

    def __init__(self) -> None:
        self.indices: npt.NDArray[np.uint16] = np.zeros(BLOCK, np.uint16)
        self.tables: npt.NDArray[np.uint32] = np.zeros((TABLES, ROW), np.uint32)


_scratch = _Scratch()


def _count(
    flat: Sequence[npt.NDArray[np.float32]],
    rows: Sequence[int],
    inverse_widths: npt.NDArray[np.float32],
    limits: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> list[tuple[int, int, bool]]:
    """Put all values of each array into its row of bins, whose number is in `rows`, or none where one does not fit.

    Return the extreme keys of each, and whether it fitted.
    """
    addresses = np.array([each.__array_interface__["data"][0] for each in flat], np.int64)
    sizes = np.array([each.size for each in flat], np.int64)
    found = np.zeros((len(flat), 3), np.int32)
    numbers = np.array(rows, np.int64)
    count_tensors(addresses, sizes, numbers, inverse_widths, limits, counts, found, _scratch.indices, _scratch.tables)
    return [(low, high, bool(fitted)) for low, high, fitted in found.tolist()]


class Histogram:
    """Counts, and the exact minimum and maximum, of all the values added so far."""

    def __init__(self) -> None:
        self.total = 0
        self._keys = _NO_KEYS
        self._set_exponent(LOWEST_EXPONENT)
        # Values per bin, from the most negative bin to the most positive.
        self.counts: npt.NDArray[np.int64] = np.zeros(BINS, np.int64)

    @classmethod
    def restore(cls, exponent: int, counts: npt.NDArray[np.int64], minimum: float, maximum: float) -> Histogram:
        """Return the histogram that once had these contents. `counts` belongs to it from now on."""
        histogram = cls()
        histogram._set_exponent(exponent)
        histogram.counts = counts
        histogram.total = int(counts.sum())
        histogram._keys = (_key_of(minimum), _key_of(maximum)) if histogram.total else _NO_KEYS
        return histogram

    @property
    def minimum(self) -> float:
        """The least value seen, exactly; infinity where nothing was."""
        return _float_of(self._keys[0]) if self.total else math.inf

    @property
    def maximum(self) -> float:
        """The greatest value seen, exactly; minus infinity where nothing was."""
        return _float_of(self._keys[1]) if self.total else -math.inf

    @property
    def width(self) -> float:
        return bin_width(self.exponent)

    @property
    def largest(self) -> float:
        """The largest magnitude seen; 0 where nothing was."""
        return max(0.0, -self.minimum, self.maximum) if self.total else 0.0

    def add(self, values: npt.NDArray[Any]) -> tuple[float, float] | None:
        """Count all `values` and return their extremes; None if there are no values.

        Raise NonFiniteError, and count nothing, if one is NaN or infinite.
        """
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        if flat.size == 0:
            return None
        low, high, counted = self.count(flat)
        extremes = _float_of(low), _float_of(high)
        if not counted:
            self.grow_for(low, high)
            self.count(flat)
        self.note(low, high, flat.size)
        return extremes

    def count(self, flat: npt.NDArray[np.float32]) -> tuple[int, int, bool]:
        """Put all values into their bins, or none where one does not fit; their extreme keys, and which it was."""
        widths, limits = np.array([self.inverse_width], np.float32), np.array([self.limit], np.int64)
        return _count([flat], [0], widths, limits, self.counts[np.newaxis])[0]

    def grow_for(self, low: int, high: int) -> None:
        """Make room for values between two keys. Raise NonFiniteError if one stands for NaN or infinity."""
        self._grow_to(_exponent_of(max(-_float_of(low), _float_of(high))))

    def note(self, low: int, high: int, size: int) -> None:
        """Take `size` values between two keys, which are in their bins already, into the total and the extremes."""
        self.total += size
        self._keys = min(self._keys[0], low), max(self._keys[1], high)

    def merge(self, other: Histogram) -> None:
        """Add everything that `other` counted."""
        self._grow_to(other.exponent)
        self.counts += merged_bins(other.counts, self.exponent - other.exponent)
        self.total += other.total
        self._keys = min(self._keys[0], other._keys[0]), max(self._keys[1], other._keys[1])

    def _grow_to(self, exponent: int) -> None:
        if exponent > self.exponent:
            self.counts = merged_bins(self.counts, exponent - self.exponent)
            self._set_exponent(exponent)

    def _set_exponent(self, exponent: int) -> None:
        self.exponent = exponent
        self.inverse_width = np.float32(1.0 / self.width)
        self.limit = (exponent + 127) << 23  # the bits of 2^exponent as float32; of infinity for the largest of all


def bin_width(exponent: int) -> float:
    """Return the width of a bin where the range is ±2^exponent."""
    return math.ldexp(1.0, exponent - HALF.bit_length() + 1)


def merged_bins(counts: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.int64]:
    """Return the counts of the same data with a range 2^steps times as wide."""
    if steps == 0:
        return counts
    factor = 1 << min(steps, HALF.bit_length() - 1)  # from here on each half is one bin, the one beside zero
    middle = BINS // (2 * factor)
    wide = np.zeros_like(counts)
    wide[HALF - middle : HALF + middle] = counts.reshape(-1, factor).sum(axis=1)
    return wide


def _exponent_of(magnitude: float) -> int:
    """Return the least k with magnitude < 2^k."""
    return max(math.frexp(magnitude)[1], LOWEST_EXPONENT) if magnitude else LOWEST_EXPONENT


def _key_of(value: float) -> int:
    """Return the order-preserving key of a float32."""
    bits = int(np.float32(value).view(np.int32))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def _float_of(key: int) -> float:
    """Return the float32 of an order-preserving key; 0.0 for either zero, so that order does not matter."""
    bits = int(key) if key >= 0 else int(key) ^ 0x7FFFFFFF
    if abs(bits & 0x7FFFFFFF) >= _INFINITY_KEY:
        raise NonFiniteError
    return float(struct.unpack("=f", struct.pack("=i", bits))[0]) + 0.0


# Every finite float32 is a whole multiple of 2^-149, so sums of them as integers are exact in any order.
LEAST_FLOAT_EXPONENT = 149


def fixed_point(value: float) -> int:
    """Return a float32 as a whole multiple of 2^-149."""
    return int(math.ldexp(value, LEAST_FLOAT_EXPONENT))  # exact: the exponents of a double reach far beyond


@dataclass
class TensorStatistics:
    """The histogram of a tensor, the sums of each sample's extremes, and the votes of each sample (where asked for)."""

    histogram: Histogram = field(default_factory=Histogram)
    samples: int = 0
    sum_of_minima: int = 0
    sum_of_maxima: int = 0
    votes: Counter[int] = field(default_factory=Counter)

    def note(self, low: int, high: int, size: int) -> None:
        """Take one sample of `size` values between two keys, which are in their bins already, into the sums."""
        self.histogram.note(low, high, size)
        self.samples += 1
        self.sum_of_minima += fixed_point(_float_of(low))
        self.sum_of_maxima += fixed_point(_float_of(high))

    def merge(self, other: TensorStatistics) -> None:
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


Statistics = dict[str, TensorStatistics]  # the statistics of every site, by its name


def merge(into: Statistics, other: Mapping[str, TensorStatistics]) -> None:
    """Add the statistics of the same sites, counted over other samples."""
    for name, statistics in other.items():
        into[name].merge(statistics)


class HistogramBank:
    """The `statistics` of `count` tensors that come together, sample after sample. For one thread."""

    def __init__(self, count: int) -> None:
        self.statistics = [TensorStatistics() for _ in range(count)]
        # One matrix, so that one compiled call counts all tensors of a sample.
        self._counts: npt.NDArray[np.int64] = np.zeros((count, BINS), np.int64)
        for each, row in zip(self.statistics, self._counts, strict=True):
            each.histogram.counts = row
        self._inverse_widths = np.array([each.histogram.inverse_width for each in self.statistics], np.float32)
        self._limits = np.array([each.histogram.limit for each in self.statistics], np.int64)

    def add(self, tensors: Mapping[int, npt.NDArray[Any]], vote: Vote | None = None) -> None:
        """Count one sample of some tensors, by their numbers. Raise NonFiniteError, with its number, if one is not
        finite.

        After an error some tensors of the sample are counted and some are not: discard the bank.
        """
        # Kept, because what is counted by its address must stay alive until it is.
        flat = {number: np.ascontiguousarray(each, np.float32).reshape(-1) for number, each in tensors.items()}
        found = _count(list(flat.values()), list(flat), self._inverse_widths, self._limits, self._counts)
        for (number, values), (low, high, fitted) in zip(flat.items(), found, strict=True):
            if not fitted:
                self._count_wider(number, low, high, values)
            if values.size:
                self.statistics[number].note(low, high, values.size)
                if vote is not None:
                    alone = Histogram()
                    alone.add(values)
                    self.statistics[number].votes[vote(alone)] += 1

    def _count_wider(self, number: int, low: int, high: int, values: npt.NDArray[np.float32]) -> None:
        """Count a tensor whose values were beyond the bins, in a wider histogram."""
        histogram = self.statistics[number].histogram
        try:
            histogram.grow_for(low, high)
        except NonFiniteError:
            raise NonFiniteError(number) from None
        self._counts[number] = histogram.counts
        histogram.counts = self._counts[number]
        self._inverse_widths[number], self._limits[number] = histogram.inverse_width, histogram.limit
        histogram.count(values)
