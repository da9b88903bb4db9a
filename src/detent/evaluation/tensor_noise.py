"""Sums over two tensors, from which every figure of their difference follows.

With x the float value, y the quantized one and e = x - y:

    SQNR   = 10 log10(sum x^2 / sum e^2)             signal against quantization noise, in dB
    PSNR   = 10 log10(max |x|^2 / mean e^2)          the same against the peak
    cosine = sum x*y / sqrt(sum x^2 * sum y^2)       1 for the same direction

The product needs no sum of its own: 2 * sum x*y = sum x^2 + sum y^2 - sum e^2.

All sums are taken in one compiled pass while the tensors are in the cache, in double precision and without the GIL. If
channels have factors, a tensor lies in memory as [groups, positions, lanes]: its channels come in groups of `lanes`,
which lie beside each other at each position. In plain order a group is one channel; in onnxruntime's blocked layout it
is 4, 8 or 16. The loops run over pieces of many positions, so that the processor works on many numbers at once
whatever the lanes, with what belongs to a channel repeated along the piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled, compiled_sums
from detent.results.tensors import Closeness

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

PIECE = 1024  # elements: both tensors and the factors stay in the first cache for the second loop
SUMMED_APART = 128  # elements of a piece with sums of their own, so that additions do not wait for each other
MAGNITUDE = np.uint32(0x7FFFFFFF)  # a float's bits without its sign


@compiled_sums
def error_sums(
    original: Floats, quantized: Floats, factors: Doubles, positions: int, lanes: int
) -> tuple[float, float, float, float, np.uint32]:
    """Return sum x^2, sum (x-y)^2, sum y^2, sum |x-y|, and the bits of max |x| (see `largest_magnitude`).

    y is the quantized value times the factor of its channel.
    """
    signal = noise = other = distance = 0.0
    peak = np.uint32(0)
    bits = original.view(np.uint32)
    group = max(1, positions * lanes)
    step = min(group, lanes * max(1, PIECE // lanes))
    repeated = np.empty(step, np.float64)
    channel = 0
    for first in range(0, original.size, group):
        for lane in range(lanes):
            for i in range(lane, step, lanes):
                repeated[i] = factors[channel + lane]
        for start in range(first, first + group, step):
            end = min(start + step, first + group)
            sums = _piece_sums(original[start:end], quantized[start:end], repeated)
            signal += sums[0]
            noise += sums[1]
            other += sums[2]
            distance += sums[3]
            peak = max(peak, largest_magnitude(bits[start:end]))
        channel = (channel + lanes) % factors.size
    return signal, noise, other, distance, peak


@compiled_sums
def _piece_sums(original: Floats, quantized: Floats, factors: Doubles) -> tuple[float, float, float, float]:
    signal = noise = other = distance = 0.0
    for i in range(original.size):
        x = np.float64(original[i])
        y = np.float64(quantized[i]) * factors[i]
        signal += x * x
        noise += (x - y) * (x - y)
        other += y * y
        distance += abs(x - y)
    return signal, noise, other, distance


@compiled_sums
def channel_sums(original: Floats, quantized: Floats, channels: int, positions: int, lanes: int) -> Doubles:
    """Return sum x*x, sum x*y and sum y*y of each channel: a row for each sum."""
    totals = np.zeros((3, channels), np.float64)
    group = max(1, positions * lanes)
    step = min(group, lanes * max(1, SUMMED_APART // lanes))
    apart = np.empty((3, step), np.float64)
    channel = 0
    for first in range(0, original.size, group):
        apart[:] = 0.0
        for start in range(first, first + group, step):
            end = min(start + step, first + group)
            _add_products(original[start:end], quantized[start:end], apart[0], apart[1], apart[2])
        for row in range(3):
            for lane in range(lanes):
                for i in range(lane, step, lanes):
                    totals[row, channel + lane] += apart[row, i]
        channel = (channel + lanes) % channels
    return totals


@compiled_sums
def _add_products(original: Floats, quantized: Floats, signal: Doubles, product: Doubles, other: Doubles) -> None:
    for i in range(original.size):
        x = np.float64(original[i])
        y = np.float64(quantized[i])
        signal[i] += x * x
        product[i] += x * y
        other[i] += y * y


@compiled
def largest_magnitude(bits: npt.NDArray[np.uint32]) -> np.uint32:
    """Return the bits of the largest |x|, with NaN above all: floats without a sign sort like their bits.

    Integers are compared many at a time; the rules for NaN prevent that for floats.
    """
    peak = np.uint32(0)
    for i in range(bits.size):
        peak = max(peak, bits[i] & MAGNITUDE)
    return peak


class ChannelLayout(NamedTuple):
    """How channels lie in memory: in groups of `lanes`, which lie beside each other at each position."""

    channels: int
    positions: int
    lanes: int

    @classmethod
    def along(cls, axis: int, shape: Sequence[int], lanes: int = 1) -> ChannelLayout:
        """Return the layout of channels along axis 1, in groups of `lanes`, or along the last axis (-1)."""
        if axis == -1:
            return cls(shape[-1], math.prod(shape[1:-1]), shape[-1])
        positions = math.prod(shape[2:])
        return cls(shape[1], positions, shape[1] if positions == 1 else lanes)


@dataclass(frozen=True, eq=False)
class ChannelScales:
    """The factors that turn each channel of the second model into that of the first."""

    axis: int
    undoing: Doubles

    def fits(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor of this shape has as many channels."""
        return len(shape) > 1 and shape[self.axis] == self.undoing.size


ONE = np.ones(1)


@dataclass(frozen=True)
class NoiseSums:
    """The sums behind a Closeness. Sums of two samples add up."""

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    distance: float = 0.0
    peak: float = 0.0
    elements: int = 0

    @classmethod
    def of(
        cls,
        original: npt.NDArray[Any],
        quantized: npt.NDArray[Any],
        scales: ChannelScales | None = None,
        lanes: int = 1,
    ) -> NoiseSums:
        """Return the sums of two arrays of one shape, with the `scales` of channels in groups of `lanes` undone."""
        x = np.ascontiguousarray(original, np.float32).reshape(-1)
        y = np.ascontiguousarray(quantized, np.float32).reshape(-1)
        if scales is None:
            factors, layout = ONE, ChannelLayout(1, x.size, 1)
        else:
            factors, layout = scales.undoing, ChannelLayout.along(scales.axis, original.shape, lanes)
        signal, noise, other, distance, peak_bits = error_sums(x, y, factors, layout.positions, layout.lanes)
        return cls(signal, noise, other, distance, float(np.uint32(peak_bits).view(np.float32)), x.size)

    def __add__(self, more: NoiseSums) -> NoiseSums:
        return NoiseSums(
            self.signal + more.signal,
            self.noise + more.noise,
            self.other + more.other,
            self.distance + more.distance,
            max(self.peak, more.peak),
            self.elements + more.elements,
        )

    def closeness(self) -> Closeness:
        """Return the figures that follow from the sums."""
        norm = math.sqrt(self.signal * self.other)
        product = (self.signal + self.other - self.noise) / 2
        same = self.noise == 0.0
        return Closeness(
            sqnr_db=_decibels(self.signal, self.noise),
            psnr_db=_decibels(self.peak**2, self.noise / max(self.elements, 1)),
            cosine=1.0 if same else product / norm if norm and math.isfinite(norm) else 0.0,
        )


def _decibels(signal: float, noise: float) -> float:
    if noise == 0.0:
        return math.inf
    if not math.isfinite(noise):
        return -math.inf  # NaN or infinity in the quantized model: nothing is worse
    return 10 * math.log10(signal / noise) if signal else -math.inf
