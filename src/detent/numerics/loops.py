"""Compiled loops over whole arrays: rounding activations, and the error of rounding a constant.

    code = saturate(round(x / scale) + zero_point)        x = (code - zero_point) * scale

The arithmetic is that of `codec`, in float32 throughout and saturating at the ends of the integer type: QuantizeLinear
has no other bounds. A device may round ties otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.numerics.formats import QuantParams
from detent.numerics.ties import Rounding

Array = npt.NDArray[Any]


def encode_activation(values: Array, params: QuantParams, ties: Rounding = "half_even") -> Array:
    """Return the codes of an activation, in the format's type; `ties` are numbers halfway between two codes."""
    codes = np.empty(values.shape, params.format.dtype)
    limits = np.iinfo(codes.dtype)
    zero_point = int(params.zero_point)
    source = np.ascontiguousarray(values, np.float32).reshape(-1)
    low, high = np.float32(limits.min - zero_point), np.float32(limits.max - zero_point)
    scale, flat = np.float32(params.scale), codes.reshape(-1)
    if ties == "half_even":
        _encode(source, scale, low, high, zero_point, flat)
    else:
        _encode_outwards(source, scale, low, high, zero_point, ties == "half_away", flat)
    return codes


def decode_activation(codes: Array, params: QuantParams) -> npt.NDArray[np.float32]:
    """Return the numbers that codes stand for."""
    values = np.empty(codes.shape, np.float32)
    _decode(codes.reshape(-1), np.float32(params.scale), np.float32(params.zero_point), values.reshape(-1))
    return values


@compiled
def _encode(
    values: npt.NDArray[np.float32],
    scale: np.float32,
    low: np.float32,
    high: np.float32,
    zero_point: int,
    codes: npt.NDArray[Any],
) -> None:
    middle = np.int32(zero_point)
    for i in range(values.size):
        # The casts keep Numba from widening to 64 bits, so that a vector holds eight values.
        codes[i] = np.int32(np.int32(np.rint(min(max(values[i] / scale, low), high))) + middle)


@compiled
def _encode_outwards(
    values: npt.NDArray[np.float32],
    scale: np.float32,
    low: np.float32,
    high: np.float32,
    zero_point: int,
    away: bool,
    codes: npt.NDArray[Any],
) -> None:
    """Ties upwards, or `away` from zero. Not floor(x + 0.5): that sum is rounded, the difference here is exact."""
    middle, half = np.int32(zero_point), np.float32(0.5)
    for i in range(values.size):
        value = min(max(values[i] / scale, low), high)
        nearest = np.rint(value)
        step = np.int32(nearest)
        if away and value < 0:
            step -= np.int32(nearest - value == half)
        else:
            step += np.int32(value - nearest == half)
        codes[i] = np.int32(step + middle)


@compiled
def _decode(
    codes: npt.NDArray[Any], scale: np.float32, zero_point: np.float32, values: npt.NDArray[np.float32]
) -> None:
    for i in range(codes.size):
        values[i] = (np.float32(codes[i]) - zero_point) * scale


@compiled
def snap_error(values: npt.NDArray[np.float32], scale: float, low: float, high: float) -> float:
    """Return the sum of (v - s * clip(round_half_even(v / s), low, high))^2, in double precision."""
    total = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        level = min(max(np.rint(value / scale), low), high)
        difference = value - level * scale
        total += difference * difference
    return total
