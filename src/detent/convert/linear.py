"""The parameters of a quantizing node, and what it computes, to the bit as onnxruntime's kernels do.

    encode(x) = saturate(round_half_even(x / scale) + zero_point)     in float32
    decode(q) = float32(q - zero_point) * scale

Codes of a float type (bfloat16, float16, float8) are not rounded to integers: encode(x) = cast(x / scale + zero_point).
A scale is one number, one for each index along `axis`, or with `block_size` one for each block of indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.operators import dequantize_family
from detent.graph.values import constant, input_at

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Linear:
    """A scale and a zero point, whose type is that of the codes."""

    scale: Array
    zero_point: Array
    axis: int = 1
    block_size: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the codes."""
        return self.zero_point.dtype

    @property
    def per_tensor(self) -> bool:
        """Whether there is one scale for all."""
        return self.scale.size == 1

    def same_as(self, other: Linear) -> bool:
        """Whether the two leave a value where it was, but for rounding."""
        if self.dtype != other.dtype or not np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1)):
            return False
        if not np.array_equal(self.zero_point.reshape(-1), other.zero_point.reshape(-1)):
            return False
        return self.per_tensor or (self.axis, self.block_size) == (other.axis, other.block_size)

    def encode(self, values: Array) -> Array:
        """The codes of float numbers."""
        scale, zero_point = self._spread(self.scale, values.shape), self._spread(self.zero_point, values.shape)
        ratio = values.astype(np.float32) / scale.astype(np.float32)
        if is_integer(self.dtype):
            low, high = code_range(self.dtype)
            codes = np.rint(ratio).astype(np.float64) + zero_point.astype(np.float64)
            return codes.clip(low, high).astype(self.dtype)
        shifted = ratio + zero_point.astype(np.float32)
        if self.dtype.itemsize == 1:  # float8 saturates
            largest = largest_of(self.dtype)
            shifted = shifted.clip(-largest, largest)
        return shifted.astype(self.dtype)

    def decode(self, codes: Array) -> Array:
        """The float numbers that codes stand for, in the type of the scale."""
        scale, zero_point = self._spread(self.scale, codes.shape), self._spread(self.zero_point, codes.shape)
        if is_integer(self.dtype):
            levels = (codes.astype(np.int64) - zero_point.astype(np.int64)).astype(np.float32)
        else:
            levels = codes.astype(np.float32) - zero_point.astype(np.float32)
        return (levels * scale.astype(np.float32)).astype(self.scale.dtype)

    def _spread(self, parameter: Array, shape: tuple[int, ...]) -> Array:
        """A parameter in a shape that broadcasts to `shape`."""
        if parameter.size == 1:
            return parameter.reshape(())
        axis = self.axis % len(shape)
        if self.block_size:
            spread: Array = np.repeat(parameter, self.block_size, axis=axis)
            return spread[tuple(slice(0, size) for size in shape)]
        return parameter.reshape([-1 if index == axis else 1 for index in range(len(shape))])


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether codes of the type are integers, those narrower than a byte included."""
    return np.issubdtype(dtype, np.integer) or dtype.name in ("int4", "uint4", "int2", "uint2")


def code_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The least and the greatest code of an integer type."""
    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def largest_of(dtype: np.dtype[Any]) -> float:
    """The greatest finite number of a float type."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def linear_of(node: ir.Node) -> Linear | None:
    """The parameters of a quantizing node; None where the scale or the zero point is not constant."""
    scale, zero_point = constant(input_at(node, 1)), constant(input_at(node, 2))
    if scale is None or (zero_point is None and input_at(node, 2) is not None):
        return None
    if zero_point is None:
        zero_point = np.zeros(scale.shape, _default_type(node))
    return Linear(scale, zero_point, node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0))


def _default_type(node: ir.Node) -> np.dtype[Any]:
    """The type of codes that no zero point names."""
    named = ir.DataType(node.attributes.get_int("output_dtype", 0))
    if named != ir.DataType.UNDEFINED:
        return named.numpy()
    codes = node.inputs[0] if dequantize_family(node) else node.outputs[0]
    known = None if codes is None else codes.dtype
    return ir.DataType.UINT8.numpy() if known is None else known.numpy()
