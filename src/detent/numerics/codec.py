"""The one place where real numbers become codes.

    code = clip(round_half_even(x / scale) + zero_point, low, high)        x = (code - zero_point) * scale

The quotient is that of two float32 numbers, as in onnxruntime's QuantizeLinear, so that a constant which is stored as
codes equals the same constant quantized by the model. Codes of 32 bits are the exception: no operator quantizes to
them, and a float32 quotient would lose their last bits, so theirs is a float64 one. The sum with the zero point is
exact: float64 holds every code.

A scale is one number, one for each index along an axis, or one for each block of indices along it.
`numerics.loops` has the same arithmetic compiled, for activations.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)

FLOAT32_BITS = 16
"""Codes of up to so many bits are rounded from float32 quotients."""


def spread(parameter: npt.NDArray[Number], shape: tuple[int, ...], axis: int | None, block: int) -> npt.NDArray[Number]:
    """Return a scale or zero point in a shape that broadcasts against arrays of `shape`."""
    if axis is None:
        return parameter
    if block:
        inside = (slice(None),) * (axis % len(shape)) + (slice(shape[axis]),)
        return np.repeat(parameter, block, axis)[inside]
    along = [1] * len(shape)
    along[axis] = -1
    return parameter.reshape(along)


def levels(
    values: npt.ArrayLike, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], bits: int
) -> npt.NDArray[np.float64]:
    """Return the codes of `values` before they saturate; scale and zero point broadcast against them."""
    precise = np.float32 if bits <= FLOAT32_BITS else np.float64
    with np.errstate(over="ignore"):  # a quotient past float32 is infinite, and saturates
        quotient = np.divide(values, np.asarray(scale).astype(precise), dtype=precise, casting="same_kind")
    found = np.rint(quotient, out=np.asarray(quotient)).astype(np.float64)
    found += zero_point
    return np.asarray(found)


def encode(
    values: npt.ArrayLike, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], low: int, high: int, bits: int
) -> npt.NDArray[np.int64]:
    """Return the codes of `values`, within low..high."""
    found = levels(values, scale, zero_point, bits)
    return np.clip(found, low, high, out=found).astype(np.int64)


def decode(codes: npt.ArrayLike, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the numbers that DequantizeLinear makes of codes."""
    steps = (np.asarray(codes).astype(np.int64) - np.asarray(zero_point).astype(np.int64)).astype(np.float32)
    return np.asarray(steps * np.asarray(scale).astype(np.float32), np.float32)
