"""Activations as integer codes and back, in compiled loops that round and saturate as QuantizeLinear or a device does.

    code = saturate(round(x / scale) + zero_point)        x = (code - zero_point) * scale

All in float32, and saturating at the ends of the integer type: the file has no other bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.numerics.formats import QuantParams
from detent.numerics.params import Params
from detent.numerics.rounding import Rounding

Array = npt.NDArray[Any]


def encode(values: Array, params: QuantParams, ties: Rounding = "half_even") -> Array:
    """The codes of an activation, in a new array of the format's type; `ties` are the numbers between two codes."""
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


def decode(codes: Array, params: QuantParams) -> npt.NDArray[np.float32]:
    """The numbers that codes stand for."""
    values = np.empty(codes.shape, np.float32)
    _decode(codes.reshape(-1), np.float32(params.scale), np.float32(params.zero_point), values.reshape(-1))
    return values


def decode_constant(codes: npt.NDArray[np.int64], params: QuantParams) -> npt.NDArray[np.float32]:
    """What DequantizeLinear makes of a weight's or bias's codes."""
    scale, zero_point = params.broadcast(codes.shape)
    steps = (codes - zero_point).astype(np.float32)
    return np.asarray(steps * scale.astype(np.float32), np.float32).reshape(codes.shape)


def stored_constant(values: npt.ArrayLike, params: Params | None) -> npt.NDArray[np.float32]:
    """What the nodes of the emitted model read of a weight or bias; without parameters it stays float."""
    if params is None:
        return np.asarray(values, np.float32)
    if isinstance(params, QuantParams):
        return decode_constant(params.encode(values), params)
    return params.snap(values)


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
