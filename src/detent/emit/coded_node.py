"""A node between DequantizeLinear and QuantizeLinear, seen as one operator on 8-bit codes.

The inputs of the node come from DequantizeLinear, and QuantizeLinear alone reads its results. An integer operator can
take the codes themselves if scales and zero points are constant. Whatever does not fit raises `DeclinedError` with the
reason, which becomes a note on the node.

QuantizeLinear is monotonic, so rounding and clipping may change places:

    Q(clip(x, a, b)) = clip(Q(x), Q(a), Q(b))

A Relu or Clip behind the node therefore clips the codes of the result instead, and is dropped if Q(a) to Q(b) is the
whole range of codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, constant_scalar, input_at, is_standard, rank, sole_use
from detent.qdq.families import MICROSOFT, is_native_dequantize, is_native_quantize
from detent.qdq.reader import LinearParams, code_range, dequantized, params_of

EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)
CLIPS_CODES = 12  # the opset from which Clip and MaxPool take 8-bit integers


class DeclinedError(Exception):
    """Why a node stays between DequantizeLinear and QuantizeLinear."""


@dataclass(frozen=True, eq=False)
class NewConstant:
    """An array that becomes an initializer when its node is written, named after the node and the role."""

    role: str
    array: npt.NDArray[Any]


Operand = ir.Value | NewConstant | None


@dataclass(frozen=True, eq=False)
class EightBitGrid:
    """The scale and zero point of 8-bit codes, and the operands that hold them. `axis` is None for a whole tensor."""

    params: LinearParams
    axis: int | None
    operands: tuple[Operand, Operand]

    @property
    def scale(self) -> npt.NDArray[np.float32]:
        """One number, or one for each index of the axis."""
        return self.params.scale

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType.from_numpy(self.params.dtype)

    def equals(self, other: EightBitGrid) -> bool:
        """Return whether a code stands for the same number on both."""
        return self.params.same_as(other.params) and self.axis == other.axis

    def encode(self, number: float) -> int:
        return int(self.params.encode(number))

    def as_type(self, dtype: ir.DataType) -> EightBitGrid:
        """Return the same numbers with codes of the other type: all of them, and the zero point, move by 128."""
        zero_point = _moved(self.params.zero_point, dtype)
        params = LinearParams(self.params.scale, zero_point, self.params.axis)
        return EightBitGrid(params, self.axis, (self.operands[0], NewConstant("zero_point", zero_point)))


@dataclass(frozen=True, eq=False)
class CodedInput:
    """An input as codes. `array` are the codes themselves if they are constant."""

    codes: Operand
    grid: EightBitGrid
    array: npt.NDArray[Any] | None
    name: str

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        """Codes, scale and zero point: how integer operators take an input."""
        return self.codes, *self.grid.operands

    def whole(self) -> CodedInput:
        """Return the input itself; decline a scale per channel."""
        if self.grid.axis is not None:
            raise DeclinedError(f"'{self.name}' has a scale for each channel, which its integer operator cannot take")
        return self

    def as_type(self, dtype: ir.DataType) -> CodedInput:
        """Return the same numbers with codes of this type: exact for a constant, declined for anything else."""
        if self.grid.dtype == dtype:
            return self
        if self.array is None:
            raise DeclinedError(f"'{self.name}' has {self.grid.dtype} codes and must have {dtype}, as the result has")
        moved = _moved(self.array, dtype)
        return CodedInput(NewConstant(f"{dtype.name.lower()}_codes", moved), self.grid.as_type(dtype), moved, self.name)


@dataclass(frozen=True)
class Operation:
    """The operator to write instead of a node. `flattened`: a Flatten behind it drops the axes from the third on."""

    op_type: str
    inputs: Sequence[Operand]
    attributes: Sequence[ir.Attr] = ()
    domain: str = MICROSOFT.domain
    flattened: bool = False


@dataclass(frozen=True, eq=False)
class QuantizedResult:
    """A quantized output: its grid, the nodes that quantize it, and the Relu and Clip nodes before them."""

    grid: EightBitGrid
    quantizers: tuple[ir.Node, ...]
    clips: tuple[ir.Node, ...]
    bounds: tuple[float, float]

    @property
    def shape(self) -> ir.Shape | None:
        source = self.quantizers[0].inputs[0]
        return None if source is None else source.shape

    @property
    def code_bounds(self) -> tuple[int, int] | None:
        """The codes that the result is cut off at; None if the type's own ends do the same."""
        bounds = self.grid.encode(self.bounds[0]), self.grid.encode(self.bounds[1])
        return None if bounds == code_range(self.grid.params.dtype) else bounds


class CodedNode:
    """A node with the codes of its inputs and the grids of its results; a missing one raises DeclinedError."""

    def __init__(self, node: ir.Node, graph: ir.Graph, opset: int) -> None:
        self.node = node
        self.opset = opset
        self._graph = graph

    def input(self, index: int) -> CodedInput:
        value = input_at(self.node, index)
        if value is None:
            raise DeclinedError(f"it has no input {index}")
        return coded(value)

    @property
    def result(self) -> QuantizedResult:
        if len(self.results) != 1:
            raise DeclinedError("more than one of its outputs is used")
        return self.results[0]

    @cached_property
    def results(self) -> list[QuantizedResult]:
        """All outputs, which must be quantized."""
        named = [value for value in self.node.outputs if value.name]
        if self.node.op_type == "Split" and len(named) < len(self.node.outputs):
            raise DeclinedError("one of its outputs is not used")
        return [self._follow(value, clip_bounds(self.node) or (-math.inf, math.inf)) for value in named]

    def like_result(self, index: int) -> CodedInput:
        """Return the codes of an input with one scale, in the type of the result."""
        return self.input(index).whole().as_type(self.result.grid.dtype)

    def attributes(self, names: Iterable[str]) -> list[ir.Attr]:
        """Return the node's attributes among `names`, which are those that the integer operator has too."""
        return [attribute for name in names if (attribute := self.node.attributes.get(name)) is not None]

    def _follow(self, value: ir.Value, bounds: tuple[float, float]) -> QuantizedResult:
        """Walk from an output over Relu and Clip to the nodes that quantize it."""
        clips: list[ir.Node] = []
        while (use := sole_use(value, self._graph)) is not None and use[1] == 0:
            more = clip_bounds(use[0])
            if more is None:
                break
            clips.append(use[0])
            # The later clip wins, even if the two do not overlap.
            bounds = min(max(bounds[0], more[0]), more[1]), min(max(bounds[1], more[0]), more[1])
            value = use[0].outputs[0]
        result = QuantizedResult(*self._quantizers(value), tuple(clips), bounds)
        if result.code_bounds is not None and self.opset < CLIPS_CODES:
            raise DeclinedError(f"its result is cut off, and Clip on integers needs opset {CLIPS_CODES}")
        return result

    def _quantizers(self, value: ir.Value) -> tuple[EightBitGrid, tuple[ir.Node, ...]]:
        if value.is_graph_output():
            raise DeclinedError(f"its result '{value.name}' is a graph output and not quantized")
        nodes = tuple(use.node for use in value.uses())
        if not nodes:
            raise DeclinedError(f"its result '{value.name}' is not used")
        for node in nodes:
            if not is_native_quantize(node) or node.graph is not self._graph:
                raise DeclinedError(f"its result '{value.name}' is read as float by {node.op_type} '{node.name}'")
        grids = [grid_of(node) for node in nodes]
        if grids[0].axis is not None or any(not grid.equals(grids[0]) for grid in grids):
            raise DeclinedError(f"its result '{value.name}' has more than one scale")
        if len(nodes) > 1 and any(node.outputs[0].is_graph_output() for node in nodes):
            raise DeclinedError(f"its result '{value.name}' is quantized twice, once for a graph output")
        return grids[0], nodes


def coded(value: ir.Value) -> CodedInput:
    """Return the codes behind a dequantized value."""
    read = dequantized(value.producer())
    if read is None or not is_native_dequantize(read.node):
        raise DeclinedError(f"its input '{value.name}' is not dequantized")
    grid, real = grid_of(read.node), constant(read.source)
    if real is not None and read.quantize is not None and is_native_quantize(read.quantize):
        # A weight that is quantized in the graph: its codes never change.
        array = grid_of(read.quantize).params.encode(real)
        return CodedInput(NewConstant("codes", array), grid, array, str(value.name))
    return CodedInput(read.codes, grid, read.stored, str(value.name))


def grid_of(node: ir.Node) -> EightBitGrid:
    """Return the grid of a QuantizeLinear or DequantizeLinear."""
    params, where = params_of(node), f"'{node.outputs[0].name}'"
    if params is None:
        raise DeclinedError(f"the scale or zero point of {where} is not constant")
    dtype = ir.DataType.from_numpy(params.dtype)
    if dtype not in EIGHT_BITS:
        raise DeclinedError(f"{where} has {dtype} codes, and integer operators take INT8 and UINT8")
    if params.scale.dtype != np.float32 or params.block_size:
        raise DeclinedError(f"{where} has scales in blocks or not of float32, which integer operators cannot take")
    axis = None if params.per_tensor else _axis(node, params.axis)
    shape = () if axis is None else (-1,)
    scale, zero_point = params.scale.reshape(shape), params.zero_point.reshape(shape)
    operands = _operand(node.inputs[1], "scale", scale), _operand(input_at(node, 2), "zero_point", zero_point)
    return EightBitGrid(LinearParams(scale, zero_point, axis or 0), axis, operands)


def clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a Relu or Clip; None for other nodes and for bounds that are not constant."""
    if is_standard(node, "Relu"):
        return 0.0, math.inf
    if not is_standard(node, "Clip"):
        return None
    bounds = []
    for index, name, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        number: float | None = node.attributes.get_float(name, default)
        if input_at(node, index) is not None:
            number = constant_scalar(node, index)
        if number is None:
            return None
        bounds.append(number)
    return bounds[0], bounds[1]


def _operand(value: ir.Value | None, role: str, array: npt.NDArray[Any]) -> Operand:
    """Return `value` if it is an initializer of the array's shape, or else a new constant."""
    fits = value is not None and value.is_initializer() and value.shape == ir.Shape(array.shape)
    return value if fits else NewConstant(role, array)


def _axis(node: ir.Node, axis: int) -> int:
    dims = rank(node.inputs[0])
    if axis < 0 and dims is None:
        raise DeclinedError(f"the rank of '{node.outputs[0].name}', which has a scale for each channel, is unknown")
    return axis % dims if dims else axis


def _moved(codes: npt.NDArray[Any], dtype: ir.DataType) -> npt.NDArray[Any]:
    """Return codes of one 8-bit type as those of the other."""
    distance = code_range(dtype.numpy())[0] - code_range(codes.dtype)[0]
    return (codes.astype(np.int64) + distance).astype(dtype.numpy())
