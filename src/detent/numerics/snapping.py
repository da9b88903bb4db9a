"""The compiled loop behind searches over weights: the error of rounding an array to a grid, with no copies of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled


@compiled
def snap_error(values: npt.NDArray[np.float32], scale: float, low: float, high: float) -> float:
    """The sum of (v - s * clip(round_half_even(v / s), low, high))^2, in double precision."""
    total = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        level = min(max(np.rint(value / scale), low), high)
        difference = value - level * scale
        total += difference * difference
    return total
