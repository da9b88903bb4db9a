"""The histograms of many tensors side by side, so that one compiled call counts a whole sample.

Worker threads take turns to hold Python's lock. With a call for each tensor they would wait for it, and be woken up
again, a hundred times for each sample; with one call they count while others infer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.observe.counting import BINS, BLOCK, ROW, TABLES, count_tensors
from detent.observe.histogram import Histogram, NonFiniteError
from detent.observe.statistics import TensorStatistics

_MANTISSA_BITS = 23


class NonFiniteTensorError(NonFiniteError):
    """The tensor of this number held NaN or infinity."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class HistogramBank:
    """What `TensorStatistics` holds, for `count` tensors that come together, sample after sample."""

    def __init__(self, count: int) -> None:
        self._histograms = [Histogram() for _ in range(count)]
        self._counts: npt.NDArray[np.int64] = np.zeros((count, BINS), np.int64)
        for histogram, row in zip(self._histograms, self._counts, strict=True):
            histogram.counts = row
        self._inverse_widths = np.array([each.inverse_width for each in self._histograms], np.float32)
        self._limits = np.array([each.limit for each in self._histograms], np.int64)
        self._samples: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self._minima, self._maxima = ExactSums(count), ExactSums(count)
        self._lows: npt.NDArray[np.int32] = np.zeros(count, np.int32)
        self._highs: npt.NDArray[np.int32] = np.zeros(count, np.int32)
        self._fitted: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._indices: npt.NDArray[np.uint16] = np.zeros(BLOCK, np.uint16)
        self._tables: npt.NDArray[np.uint32] = np.zeros((TABLES, ROW), np.uint32)

    def add(self, tensors: Sequence[npt.NDArray[Any]]) -> None:
        """Count one sample: an array for each tensor. Raises NonFiniteTensorError where one is not finite.

        After an error some tensors of the sample are counted and some are not: the bank is of no use any more.
        """
        # In a list, because what is counted must stay alive until it is.
        flat = [np.ascontiguousarray(tensor, dtype=np.float32).reshape(-1) for tensor in tensors]
        addresses = np.array([each.__array_interface__["data"][0] for each in flat], np.int64)
        sizes = np.array([each.size for each in flat], np.int64)
        count_tensors(
            addresses,
            sizes,
            self._inverse_widths,
            self._limits,
            self._counts,
            (self._lows, self._highs, self._fitted),
            self._indices,
            self._tables,
        )
        for number in np.flatnonzero(~self._fitted):
            self._grow(int(number), flat[number])
        self._note_extremes(sizes)

    def statistics(self) -> list[TensorStatistics]:
        """The statistics of each tensor. They belong to the caller: count with another bank from now on."""
        return [
            TensorStatistics(histogram, int(samples), minima, maxima)
            for histogram, samples, minima, maxima in zip(
                self._histograms, self._samples, self._minima.totals(), self._maxima.totals(), strict=True
            )
        ]

    def _grow(self, number: int, values: npt.NDArray[np.float32]) -> None:
        """Count a tensor whose values were beyond the bins, in a wider histogram."""
        histogram = self._histograms[number]
        try:
            histogram.grow_for(int(self._lows[number]), int(self._highs[number]))
        except NonFiniteError:
            raise NonFiniteTensorError(number) from None
        self._counts[number] = histogram.counts
        histogram.counts = self._counts[number]
        self._inverse_widths[number], self._limits[number] = histogram.inverse_width, histogram.limit
        histogram.count(values)

    def _note_extremes(self, sizes: npt.NDArray[np.int64]) -> None:
        seen = np.flatnonzero(sizes)
        for number in seen:
            self._histograms[number].note(int(self._lows[number]), int(self._highs[number]), int(sizes[number]))
        self._samples[seen] += 1
        self._minima.add(seen, self._lows[seen])
        self._maxima.add(seen, self._highs[seen])


class ExactSums:
    """Sums of float32 values, in multiples of 2^-149, with no rounding: mantissas are added up for each exponent."""

    def __init__(self, count: int) -> None:
        self._sums: npt.NDArray[np.int64] = np.zeros((count, 256), np.int64)

    def add(self, numbers: npt.NDArray[np.intp], keys: npt.NDArray[np.int32]) -> None:
        """Add a value, given as its order-preserving key, to each of the sums `numbers`."""
        magnitude = np.where(keys < 0, keys ^ np.int32(0x7FFFFFFF), keys) & np.int32(0x7FFFFFFF)
        exponent = magnitude >> _MANTISSA_BITS
        mantissa = (magnitude & ((1 << _MANTISSA_BITS) - 1)).astype(np.int64)
        mantissa[exponent > 0] += 1 << _MANTISSA_BITS
        self._sums[numbers, np.maximum(exponent, 1)] += np.where(keys < 0, -mantissa, mantissa)

    def totals(self) -> list[int]:
        """The sums."""
        return [sum(int(row[at]) << int(at - 1) for at in np.flatnonzero(row)) for row in self._sums]
