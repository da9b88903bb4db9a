"""Power-of-two scales: a tensor's *position* p is the number of fractional bits, and its scale is 2^-p.

Three ways to choose p for data whose largest magnitude is A, for a format with the codes low..high:

- `base_position`: the scale A / ((high - low) / 2) rounded to the nearest power of two. It may clip by up to sqrt(2).
- `non_overflow_position`: the largest p at which no value saturates: round(A / 2^-p) has a code.
- `min_mse_position`: of the five positions base-1 .. base+3, the one with the least sum of squared errors. On equal
  errors the first wins, that is, the larger scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from detent.numerics.formats import IntegerFormat
from detent.numerics.loops import snap_error

LOWEST_POSITION, HIGHEST_POSITION = -127, 127
CANDIDATE_OFFSETS = (-1, 0, 1, 2, 3)


def scale_of(position: int) -> float:
    """2^-position, exactly."""
    return math.ldexp(1.0, -position)


def position_of(scale: float) -> int | None:
    """p where the scale is 2^-p exactly, else None."""
    if scale <= 0 or not math.isfinite(scale):
        return None
    mantissa, exponent = math.frexp(scale)
    return 1 - exponent if mantissa == 0.5 else None


def base_position(largest: float, fmt: IntegerFormat) -> int:
    """The position whose scale is nearest (in log2) to the one that spreads ±largest over the codes; 0 for no range."""
    scale = 2.0 * largest / (fmt.high - fmt.low)
    if scale == 0.0:
        return 0
    return int(np.clip(np.rint(-np.log2(scale)), LOWEST_POSITION, HIGHEST_POSITION))


def non_overflow_position(minimum: float, maximum: float, fmt: IntegerFormat) -> int:
    """The largest position at which neither end of minimum..maximum saturates after rounding; 0 for no range.

    A value fits when it rounds to a code, so up to half a step past the last level is no overflow.
    """
    if minimum == 0.0 and maximum == 0.0:
        return 0

    low, high = fmt.levels

    def fits(position: int) -> bool:
        scale = scale_of(position)
        return bool(np.rint(minimum / scale) >= low and np.rint(maximum / scale) <= high)

    # The base position is off by less than one either way; the walk makes it exact, ties at half a step included.
    position = min(base_position(max(-minimum, maximum), fmt) + 2, HIGHEST_POSITION)
    while position > LOWEST_POSITION and not fits(position):
        position -= 1
    return position


def min_mse_position(largest: float, fmt: IntegerFormat, squared_error: Callable[[int], float]) -> int:
    """The candidate position with the least `squared_error(position)`; on ties the first, with the largest scale."""
    base = base_position(largest, fmt)
    candidates = [base + offset for offset in CANDIDATE_OFFSETS if base + offset <= HIGHEST_POSITION]
    return min(candidates, key=squared_error)


def min_mse_position_of(values: npt.ArrayLike, fmt: IntegerFormat) -> int:
    """`min_mse_position` of an array, searched on its elements themselves."""
    data = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    largest = max(float(data.max(initial=0.0)), -float(data.min(initial=0.0)))
    low, high = map(float, fmt.levels)
    return min_mse_position(largest, fmt, lambda position: snap_error(data, scale_of(position), low, high))
