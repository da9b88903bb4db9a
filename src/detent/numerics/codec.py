"""The one place where real numbers become codes.

    code = clip(round(x / scale) + zero_point, low, high)        x = (code - zero_point) * scale

The division is done in float32, as in onnxruntime's QuantizeLinear, so that a constant which is stored as codes equals
the same constant quantized by the model. 32-bit codes are the exception: no operator quantizes to them, and float32
would lose their last bits, so they are divided in float64. The sum with the zero point is exact: float64 holds every
code.

A scale is one number, one for each index along an axis, or one for each block of indices along it.
`numerics.formats` has the same arithmetic compiled, for activations.

Numbers halfway between two codes (ties) are rounded differently by different devices:

    mode          -2.5   -1.5   -0.5    0.5    1.5    2.5     who rounds like this
    half_even       -2     -2      0      0      2      2     ONNX, onnxruntime, numpy: the default everywhere
    half_up         -2     -1      0      1      2      3     the DPU: towards plus infinity
    half_away       -3     -2     -1      1      2      3     the school book, C's round(): away from zero

No mode computes floor(x + 0.5), whose sum is itself rounded: 0.49999999999999994 would become 1, and large odd numbers
would become even ones. Here only x - rint(x) and x - trunc(x) are looked at, and these differences are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from detent.errors import check_known

Rounding = Literal["half_even", "half_up", "half_away"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)

# How a device rounds what it computes: as the file says, or ties upwards as the DPU does.
DeviceRounding = Literal["half-even", "dpu"]
DEVICE_ROUNDINGS: tuple[DeviceRounding, ...] = get_args(DeviceRounding)

FloatT = TypeVar("FloatT", bound=np.floating[Any])


def check_rounding(mode: str) -> None:
    """Raise UsageError for an unknown rounding mode."""
    check_known("rounding", mode, ROUNDINGS)


def check_device_rounding(name: str) -> None:
    """Raise UsageError for an unknown rounding of a device."""
    check_known("rounding", name, DEVICE_ROUNDINGS)


def round_by(values: npt.NDArray[FloatT], mode: Rounding) -> npt.NDArray[FloatT]:
    """Round floats of any width to whole numbers of the same type. Infinities and NaN stay."""
    check_rounding(mode)
    rounded: npt.NDArray[FloatT] = np.trunc(values) if mode == "half_away" else np.rint(values)
    if mode == "half_even":
        return rounded
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is not a tie
        rest = values - rounded
    if mode == "half_up":
        rounded += (rest == 0.5).astype(values.dtype)
    else:
        rounded += np.copysign((np.abs(rest) >= 0.5).astype(values.dtype), values)
    return rounded


Number = TypeVar("Number", bound=np.generic)

FLOAT32_BITS = 16  # codes of up to so many bits are rounded from float32 quotients


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
    values: npt.ArrayLike,
    scale: npt.NDArray[Any],
    zero_point: npt.NDArray[Any],
    low: int,
    high: int,
    bits: int,
    dtype: npt.DTypeLike = np.int64,
) -> npt.NDArray[Any]:
    """Return the codes of `values`, within low..high, in a type that holds these."""
    array, scale, zero_point = np.asarray(values), np.asarray(scale), np.asarray(zero_point)
    codes = np.empty(np.broadcast_shapes(array.shape, scale.shape, zero_point.shape), dtype)
    for part in _parts(codes.shape):
        numbers, step, zero = (_part_of(each, codes.shape, part) for each in (array, scale, zero_point))
        found = levels(numbers, step, zero, bits)
        codes[part] = np.clip(found, low, high, out=found)
    return codes


def decode(codes: npt.ArrayLike, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the numbers that DequantizeLinear makes of codes."""
    array, scale, zero_point = np.asarray(codes), np.asarray(scale), np.asarray(zero_point)
    numbers = np.empty(np.broadcast_shapes(array.shape, scale.shape, zero_point.shape), np.float32)
    for part in _parts(numbers.shape):
        whole, step, zero = (_part_of(each, numbers.shape, part) for each in (array, scale, zero_point))
        steps = (whole.astype(np.int64) - zero.astype(np.int64)).astype(np.float32)
        numbers[part] = steps * step.astype(np.float32)
    return numbers


PART = 1 << 17
"""Elements that are computed at a time: intermediate arrays take five times the memory of the input, and those of one
part stay in the cache."""

Part = tuple[slice, ...]


def _parts(shape: tuple[int, ...]) -> Iterator[Part]:
    """Yield indices that cut an array of this shape into parts of at most about PART elements."""
    size = math.prod(shape)
    if size <= PART:
        yield ()
    elif size // shape[0] > PART:
        for first in range(shape[0]):
            yield from ((slice(first, first + 1), *rest) for rest in _parts(shape[1:]))
    else:
        step = PART * shape[0] // size
        yield from ((slice(first, first + step),) for first in range(0, shape[0], step))


def _part_of(array: npt.NDArray[Number], shape: tuple[int, ...], part: Part) -> npt.NDArray[Number]:
    """Return a part of an array that broadcasts to `shape`; one number is its own part everywhere."""
    return np.asarray(array.reshape(()) if array.size == 1 else np.broadcast_to(array, shape)[part])
