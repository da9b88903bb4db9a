"""The compiled loops of measuring: all sums of two tensors while they are in the cache, in double precision, GIL-free.

The product needs no sum of its own: with e = x - y,

    2 * sum x*y = sum x^2 + sum y^2 - sum e^2

Where channels have factors, a tensor lies in memory as [groups, positions, lanes]: its channels are in groups of
`lanes`, and those of a group beside each other at each position. In order, groups are of one channel; in onnxruntime's
blocked layout of 4, 8 or 16. The loops run over pieces of many positions, long enough for the processor to work on many
numbers at once whatever the lanes, with what belongs to a channel repeated along the piece.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled, compiled_sums

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

PIECE = 1024  # elements: both tensors' and the factors fit into the first cache, where the second loop finds them
SUMMED_APART = 128  # elements of a piece that have sums of their own
MAGNITUDE = np.uint32(0x7FFFFFFF)  # a float's bits without its sign


@compiled_sums
def error_sums(
    original: Floats, quantized: Floats, factors: Doubles, positions: int, lanes: int
) -> tuple[float, float, float, float, np.uint32]:
    """sum x^2, sum (x-y)^2, sum y^2, sum |x-y|, and the bits of max |x| (see `largest_magnitude`).

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
    """sum x*x, sum x*y and sum y*y of each channel: a row for each sum."""
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
    """The bits of the largest |x|, NaN above all: floats without a sign are in the order of their bits.

    Comparing integers, the processor looks at many at once; with floats the rules for NaN are in its way.
    """
    peak = np.uint32(0)
    for i in range(bits.size):
        peak = max(peak, bits[i] & MAGNITUDE)
    return peak
