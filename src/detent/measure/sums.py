"""The compiled loops of measuring: all sums of two tensors while they are in the cache, in double precision, GIL-free.

The product needs no sum of its own: with e = x - y,

    2 * sum x*y = sum x^2 + sum y^2 - sum e^2
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled, compiled_sums

Floats = npt.NDArray[np.float32]

CHUNK = 4096  # elements: both tensors' fit into the first cache, where the second loop finds them
MAGNITUDE = np.uint32(0x7FFFFFFF)  # a float's bits without its sign


@compiled_sums
def error_sums(original: Floats, quantized: Floats) -> tuple[float, float, float, float, np.uint32]:
    """sum x^2, sum (x-y)^2, sum y^2, sum |x-y|, and the bits of max |x| (see `largest_magnitude`)."""
    signal = noise = other = distance = 0.0
    peak = np.uint32(0)
    bits = original.view(np.uint32)
    for start in range(0, original.size, CHUNK):
        end = start + CHUNK
        sums = _chunk_sums(original[start:end], quantized[start:end])
        signal += sums[0]
        noise += sums[1]
        other += sums[2]
        distance += sums[3]
        peak = max(peak, largest_magnitude(bits[start:end]))
    return signal, noise, other, distance, peak


@compiled_sums
def _chunk_sums(original: Floats, quantized: Floats) -> tuple[float, float, float, float]:
    signal = noise = other = distance = 0.0
    for i in range(original.size):
        x = np.float64(original[i])
        y = np.float64(quantized[i])
        signal += x * x
        noise += (x - y) * (x - y)
        other += y * y
        distance += abs(x - y)
    return signal, noise, other, distance


@compiled
def largest_magnitude(bits: npt.NDArray[np.uint32]) -> np.uint32:
    """The bits of the largest |x|, NaN above all: floats without a sign are in the order of their bits.

    Comparing integers, the processor looks at many at once; with floats the rules for NaN are in its way.
    """
    peak = np.uint32(0)
    for i in range(bits.size):
        peak = max(peak, bits[i] & MAGNITUDE)
    return peak
