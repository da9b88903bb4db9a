"""Activations as integer codes and back, in compiled loops that round and saturate as QuantizeLinear does.

    code = saturate(round_half_even(x / scale) + zero_point)        x = (code - zero_point) * scale

All in float32, and saturating at the ends of the integer type: the file has no other bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled
from detent.numerics.formats import QuantParams
from detent.numerics.params import Params

Array = npt.NDArray[Any]


def encode(values: Array, params: QuantParams) -> Array:
    """The codes of an activation, in a new array of the format's type."""
    codes = np.empty(values.shape, params.format.dtype)
    limits = np.iinfo(codes.dtype)
    zero_point = int(params.zero_point)
    source = np.ascontiguousarray(values, np.float32).reshape(-1)
    low, high = np.float32(limits.min - zero_point), np.float32(limits.max - zero_point)
    _encode(source, np.float32(params.scale), low, high, zero_point, codes.reshape(-1))
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
def _decode(
    codes: npt.NDArray[Any], scale: np.float32, zero_point: np.float32, values: npt.NDArray[np.float32]
) -> None:
    for i in range(codes.size):
        values[i] = (np.float32(codes[i]) - zero_point) * scale
