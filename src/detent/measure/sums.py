"""The compiled loop of measuring: all sums of two tensors in one pass, in double precision, without the GIL."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled_sums


@compiled_sums
def error_sums(
    original: npt.NDArray[np.float32], quantized: npt.NDArray[np.float32]
) -> tuple[float, float, float, float, float, float]:
    """sum x^2, sum (x-y)^2, sum x*y, sum y^2, sum |x-y| and max |x|."""
    signal = noise = product = other = distance = peak = 0.0
    for i in range(original.size):
        x = np.float64(original[i])
        y = np.float64(quantized[i])
        signal += x * x
        noise += (x - y) * (x - y)
        product += x * y
        other += y * y
        distance += abs(x - y)
        peak = max(peak, abs(x))
    return signal, noise, product, other, distance, peak
