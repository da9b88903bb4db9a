"""Float32 constants in a narrower float type, with an error (or clipping) where they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.linear import largest_of
from detent.errors import ModelError


def narrow(name: str, array: npt.NDArray[Any], target: ir.DataType, *, clip: bool) -> npt.NDArray[Any]:
    """The array in another type, rounded half to even. A finite number that would become infinite is an error."""
    dtype = target.numpy()
    with np.errstate(over="ignore"):
        narrowed: npt.NDArray[Any] = array.astype(dtype)
    lost = np.isfinite(array) & ~np.isfinite(narrowed.astype(np.float32))
    if not lost.any():
        return narrowed
    largest = largest_of(dtype)
    if not clip:
        raise ModelError(
            f"'{name}' holds {float(array[lost][0]):g}, and {target.name.lower()} ends at {largest:g}. Convert with "
            "clip=true to use the largest number instead, or keep the model in float32 or bfloat16."
        )
    return array.clip(-largest, largest).astype(dtype)
