"""Reading QuantizeLinear and DequantizeLinear: which values are codes, and on which grid.

A value that DequantizeLinear gives has codes behind it; a value that only QuantizeLinear reads will get some. A `Grid`
is the scale and zero point of either, and integer operators can take it where both are constant and the codes have
8 bits. Whatever does not fit raises `DeclinedError` with the reason, which ends up in a note on the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, input_at, rank, tensor_of

RANGES = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127)}
"""The lowest and highest code of each type that integer operators compute with."""


class DeclinedError(Exception):
    """Why a node stays between DequantizeLinear and QuantizeLinear."""


@dataclass(frozen=True, eq=False)
class Constant:
    """An array that becomes an initializer when its node is written, named after the node and the role."""

    role: str
    array: npt.NDArray[Any]


Operand = ir.Value | Constant | None


@dataclass(frozen=True, eq=False)
class Grid:
    """The numbers that codes stand for: (code - zero_point) * scale, with one of each, or one per index of `axis`."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    dtype: ir.DataType
    axis: int | None
    operands: tuple[Operand, Operand]

    def equals(self, other: Grid) -> bool:
        """Whether a code stands for the same number on both."""
        same = np.array_equal(self.scale, other.scale) and np.array_equal(self.zero_point, other.zero_point)
        return same and (self.dtype, self.axis) == (other.dtype, other.axis)

    def encode(self, number: float) -> int:
        """The code of a number, which may be infinite, as QuantizeLinear rounds it in float32."""
        low, high = RANGES[self.dtype]
        level = np.rint(np.float32(number) / self.scale.reshape(-1)[0]) + int(self.zero_point.reshape(-1)[0])
        return int(np.clip(level, low, high))

    def as_type(self, dtype: ir.DataType) -> Grid:
        """The same numbers with codes of the other type: all of them, and the zero point, move by 128."""
        zero_point = self.zero_point + _distance(self.dtype, dtype)
        moved = Constant("zero_point", zero_point.astype(dtype.numpy()))
        return Grid(self.scale, zero_point, dtype, self.axis, (self.operands[0], moved))


@dataclass(frozen=True, eq=False)
class Coded:
    """Codes and their grid. `array` are the codes themselves where they are constant."""

    codes: Operand
    grid: Grid
    array: npt.NDArray[Any] | None
    name: str

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        """Codes, scale and zero point: how integer operators take an input."""
        return self.codes, *self.grid.operands

    def whole(self) -> Coded:
        """Itself; declined where there is a scale per channel."""
        if self.grid.axis is not None:
            raise DeclinedError(f"'{self.name}' has a scale for each channel, which its integer operator cannot take")
        return self

    def as_type(self, dtype: ir.DataType) -> Coded:
        """The same numbers with codes of this type: exact for a constant, declined for anything else."""
        if self.grid.dtype == dtype:
            return self
        if self.array is None:
            raise DeclinedError(f"'{self.name}' has {self.grid.dtype} codes and must have {dtype}, as the result has")
        moved = (self.array.astype(np.int64) + _distance(self.grid.dtype, dtype)).astype(dtype.numpy())
        return Coded(Constant(f"{dtype.name.lower()}_codes", moved), self.grid.as_type(dtype), moved, self.name)


def _distance(before: ir.DataType, after: ir.DataType) -> int:
    return RANGES[after][0] - RANGES[before][0]


def is_quantize(node: ir.Node | None) -> bool:
    """Whether the node is a QuantizeLinear, the standard one or onnxruntime's."""
    return node is not None and node.op_type == "QuantizeLinear" and node.domain in ("", "com.microsoft")


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether the node is a DequantizeLinear, the standard one or onnxruntime's."""
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in ("", "com.microsoft")


def coded(value: ir.Value) -> Coded:
    """The codes behind a dequantized value."""
    node = value.producer()
    if node is None or not is_dequantize(node) or node.inputs[0] is None:
        raise DeclinedError(f"its input '{value.name}' is not dequantized")
    codes, grid = node.inputs[0], grid_of(node)
    array, producer = constant(codes), codes.producer()
    if array is None and producer is not None and is_quantize(producer):
        real = constant(producer.inputs[0])
        if real is not None:  # a weight that is quantized in the graph: its codes never change
            array = _encode(real, grid_of(producer))
            return Coded(Constant("codes", array), grid, array, str(value.name))
    return Coded(codes, grid, array, str(value.name))


def grid_of(node: ir.Node) -> Grid:
    """The grid of a QuantizeLinear or DequantizeLinear."""
    scale, zero_point = constant(node.inputs[1]), constant(input_at(node, 2))
    where = f"'{node.outputs[0].name}'"
    if scale is None or (zero_point is None and input_at(node, 2) is not None):
        raise DeclinedError(f"the scale or zero point of {where} is not constant")
    dtype = _code_type(node)
    if dtype not in RANGES:
        raise DeclinedError(f"{where} has {dtype or 'unknown'} codes, and integer operators take INT8 and UINT8")
    if scale.dtype != np.float32 or node.attributes.get_int("block_size", 0) != 0:
        raise DeclinedError(f"{where} has scales in blocks or not of float32, which integer operators cannot take")
    if zero_point is None:
        zero_point = np.zeros(scale.shape, dtype.numpy())
    axis = None if scale.size == 1 else _axis(node)
    shape = () if axis is None else (-1,)
    operands = (
        _operand(node.inputs[1], "scale", scale.reshape(shape)),
        _operand(input_at(node, 2), "zero_point", zero_point.reshape(shape)),
    )
    return Grid(scale.reshape(shape), zero_point.reshape(shape).astype(np.int64), dtype, axis, operands)


def _operand(value: ir.Value | None, role: str, array: npt.NDArray[Any]) -> Operand:
    """The value that holds the array already; a new constant where none does in this shape."""
    fits = value is not None and value.is_initializer() and value.shape == ir.Shape(array.shape)
    return value if fits else Constant(role, array)


def _code_type(node: ir.Node) -> ir.DataType | None:
    for value in (input_at(node, 2), node.inputs[0] if is_dequantize(node) else node.outputs[0]):
        tensor = tensor_of(value)
        if tensor is not None:
            return tensor.dtype
        if value is not None and value.dtype is not None:
            return value.dtype
    if is_dequantize(node):
        return None
    return ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8.value)


def _axis(node: ir.Node) -> int:
    axis = node.attributes.get_int("axis", 1)
    dims = rank(node.inputs[0])
    if axis < 0 and dims is None:
        raise DeclinedError(f"the rank of '{node.outputs[0].name}', which has a scale for each channel, is unknown")
    return axis % dims if dims else axis


def _encode(real: npt.NDArray[Any], grid: Grid) -> npt.NDArray[Any]:
    """The codes of constants, as QuantizeLinear rounds them in float32."""
    shape = [1] * real.ndim
    if grid.axis is not None:
        shape[grid.axis] = -1
    levels = np.rint(real / grid.scale.reshape(shape)) + grid.zero_point.reshape(shape)
    return levels.clip(*RANGES[grid.dtype]).astype(grid.dtype.numpy())
