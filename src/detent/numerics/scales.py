"""Scales that hardware can hold, chosen near the ones that the data ask for.

    nearest_int16_scale(0.1)                                  3277 / 2^15 = 0.100006
    float8_scale(896.0, FloatFormat("float8_e4m3"))           896 / 448 = 2

A multiplier of 16 bits and a shift can replace the multiplication by a float: the scale is M / 2^N with N in 0..16 and
M in 1..32767. M = 0 is left out, since it would turn every number into zero: scales below 2^-16 become 2^-16. Those
above 32767 become 32767.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.numerics.floats import FloatFormat

MOST_SHIFT = 16
LARGEST_MULTIPLIER = 32767

LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales are stored as float32, where a smaller one could be zero."""


def nearest_int16_scale(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The numbers M / 2^N nearest to the (positive) scales; of equally near ones that with the least N, then M."""
    wanted = np.asarray(scale, np.float64)
    if not (np.isfinite(wanted) & (wanted > 0.0)).all():
        raise UsageError("A scale that is not a positive number has no M / 2^N near it: check the range of the tensor.")
    best = np.zeros_like(wanted)
    least_error = np.full_like(wanted, np.inf)
    for shift in range(MOST_SHIFT + 1):
        below = np.floor(np.ldexp(wanted, shift))
        for multiplier in (below, below + 1.0):
            candidate = np.ldexp(np.clip(multiplier, 1.0, LARGEST_MULTIPLIER), -shift)
            error = np.abs(candidate - wanted)
            better = error < least_error
            best = np.where(better, candidate, best)
            least_error = np.where(better, error, least_error)
    return best


def float8_scale(largest: npt.ArrayLike, fmt: FloatFormat) -> npt.NDArray[np.float64]:
    """The scale at which the largest magnitude of a tensor becomes the largest number of `fmt`; 1 where it is zero."""
    magnitude = np.asarray(largest, np.float64)
    return np.where(magnitude == 0.0, 1.0, np.maximum(magnitude / fmt.largest, LEAST_SCALE))
