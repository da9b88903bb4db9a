"""Activations as integer codes and back, in compiled loops that round and saturate as QuantizeLinear or a device does.

    code = saturate(round(x / scale) + zero_point)        x = (code - zero_point) * scale

All in float32, and saturating at the ends of the integer type: the file has no other bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.numerics.formats import QuantParams
from detent.numerics.interface import Params

Array = npt.NDArray[Any]


def decode_constant(codes: npt.NDArray[np.int64], params: QuantParams) -> npt.NDArray[np.float32]:
    """What DequantizeLinear makes of a weight's or bias's codes."""
    scale, zero_point = params.broadcast(codes.shape)
    steps = (codes - zero_point).astype(np.float32)
    return np.asarray(steps * scale.astype(np.float32), np.float32).reshape(codes.shape)


def stored_constant(values: npt.ArrayLike, params: Params | None) -> npt.NDArray[np.float32]:
    """What the nodes of the emitted model read of a weight or bias; without parameters it stays float."""
    if params is None:
        return np.asarray(values, np.float32)
    return params.stored(values)
