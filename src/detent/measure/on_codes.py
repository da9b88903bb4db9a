"""Operators on codes (QLinearConv and its like) spelled out: the float operator between DequantizeLinear (DQ) and
QuantizeLinear (Q) that each of them stands for.

    QLinearConv(x, s_x, z_x, w, s_w, z_w, s_y, z_y, b)
        = Q(Conv(DQ(x, s_x, z_x), DQ(w, s_w, z_w), DQ(b, s_x s_w)), s_y, z_y)

Operators that only move values (Reshape, MaxPool, Concat of one grid, Clip between two codes) do it to codes as well:
they are put between the same two nodes, with the scale and zero point of what they read. So all scales are where they
are in a Q/DQ file. What has no form here, or has scales that are computed, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from detent.convert.linear import Linear
from detent.convert.operators import quantize_family
from detent.emit.functions import Operator
from detent.emit.qoperator.movement import MOVES
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant, input_at, is_standard, take_over
from detent.prepare.base import int_attribute

_SUFFIXES = ("_QuantizeLinear_Output", "_quantized")
"""Of the names of codes; what is before them is the float value."""

_CODED_NUMBERS = {"Clip": (1, 2), "Pad": (2,)}
"""Inputs that are codes without a scale of their own."""

_MOVING = (*MOVES, "MaxPool", "Resize", "Concat", *_CODED_NUMBERS)
_NOT_THEIRS = ("opset", "channels_last")
"""Attributes that float operators do not have."""


@dataclass(frozen=True)
class _Form:
    """Where the inputs of an operator on codes are; a scale and a zero point follow the codes of each operand.

    `plain` inputs are none. Without `operands` they are all that follow the result's scale and zero point.
    """

    op_type: str
    operands: tuple[int, ...] = (0,)
    result: int = 3
    bias: int | None = None
    plain: tuple[int, ...] = ()


_FORMS: Mapping[str, _Form] = {
    "QLinearConv": _Form("Conv", (0, 3), 6, bias=8),
    "QLinearMatMul": _Form("MatMul", (0, 3), 6),
    "QGemm": _Form("Gemm", (0, 3), 7, bias=6),
    "QLinearAdd": _Form("Add", (0, 3), 6),
    "QLinearMul": _Form("Mul", (0, 3), 6),
    "QLinearWhere": _Form("Where", (1, 4), 7, plain=(0,)),
    "QLinearConcat": _Form("Concat", (), 0),
    "QLinearSigmoid": _Form("Sigmoid"),
    "QLinearLeakyRelu": _Form("LeakyRelu"),
    "QLinearSoftmax": _Form("Softmax"),
    "QLinearAveragePool": _Form("AveragePool"),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool"),
}


@dataclass(frozen=True, eq=False)
class _Grid:
    scale: ir.Value | None
    zero_point: ir.Value | None

    @property
    def linear(self) -> Linear | None:
        scale, zero_point = constant(self.scale), constant(self.zero_point)
        return None if scale is None or zero_point is None else Linear(scale, zero_point)


def spell_out(model: ir.Model) -> dict[str, Operator]:
    """Do so in the main graph, in place. Which operator each of the nodes that compute was in the file, by its name."""
    speller = _Speller(model)
    for node in tuple(model.graph):
        speller.visit(node)
    return speller.written


class _Speller:
    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.written: dict[str, Operator] = {}
        self._names = Names(model)
        self._grids: dict[ir.Value, _Grid] = {}

    def visit(self, node: ir.Node) -> None:
        """Spell one node out, if it is one on codes. Nodes come in topological order."""
        form = _FORMS.get(node.op_type) if node.domain in ("", "com.microsoft") else None
        if form is not None:
            self._compute(node, form)
        elif is_standard(node, *_MOVING):
            self._move(node)
        elif quantize_family(node) is not None:
            self._grids[node.outputs[0]] = _grid_at(node, 1)

    def _compute(self, node: ir.Node, form: _Form) -> None:
        operands = form.operands or tuple(range(2, len(node.inputs), 3))
        grids, result = [_grid_at(node, index + 1) for index in operands], _grid_at(node, form.result)
        scales = [constant(grid.scale) for grid in (*grids, result)]
        known = [scale for scale in scales if scale is not None]
        if len(known) < len(scales) or int_attribute(node, "channels_last", 0):
            return
        inputs: list[ir.Value | None] = [input_at(node, index) for index in form.plain]
        for number, (index, grid) in enumerate(zip(operands, grids, strict=True)):
            inputs.append(self._decoded(node, input_at(node, index), grid, _channel_axis(node) if number else 1))
        bias = None if form.bias is None else input_at(node, form.bias)
        if bias is not None:
            unit = np.float32(node.attributes.get_float("alpha", 1.0)) * known[0] * known[1]
            scale = add_initializer(self.graph, self._names.fresh(f"{bias.name}_scale"), np.asarray(unit, np.float32))
            inputs.append(self._decoded(node, bias, _Grid(scale, None), axis=0))
        self.written[str(node.name)] = Operator.of(node)
        self._replace(node, form.op_type, inputs, result)

    def _move(self, node: ir.Node) -> None:
        grid = next((self._grids[value] for value in node.inputs if value is not None and value in self._grids), None)
        linear = None if grid is None else grid.linear
        if grid is None or linear is None or not linear.per_tensor:
            return
        inputs = list(node.inputs)
        for index, value in enumerate(node.inputs):
            codes = constant(value) if index in _CODED_NUMBERS.get(node.op_type, ()) else None
            if codes is not None:
                name = self._names.fresh(f"{node.name}/number")
                inputs[index] = add_initializer(self.graph, name, linear.decode(codes))
            elif value is not None and (value in self._grids or node.op_type == "Concat"):
                inputs[index] = self._decoded(node, value, grid)
        self._replace(node, node.op_type, inputs, grid)

    def _decoded(self, node: ir.Node, codes: ir.Value | None, grid: _Grid, axis: int = 1) -> ir.Value | None:
        if codes is None:
            return None
        decode = ir.node("DequantizeLinear", [codes, grid.scale, grid.zero_point], {"axis": axis})
        self.graph.insert_before(node, decode)
        return self._float(decode.outputs[0], codes)

    def _replace(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], grid: _Grid) -> None:
        """The float operator on these inputs, and its results as codes under the names of the node's own."""
        attributes = [each for name, each in node.attributes.items() if name not in _NOT_THEIRS]
        floats = ir.Node("", op_type, inputs, attributes, name=node.name, num_outputs=len(node.outputs))
        self.graph.insert_before(node, floats)
        for codes, result in zip(node.outputs, floats.outputs, strict=True):
            if codes.dtype == ir.DataType.INT64:  # where MaxPool found it
                take_over(codes, result)
                continue
            self._float(result, codes)
            encode = ir.node("QuantizeLinear", [result, grid.scale, grid.zero_point])
            self.graph.insert_before(node, encode)
            take_over(codes, encode.outputs[0])
            self._grids[encode.outputs[0]] = grid
        self.graph.remove(node, safe=True)

    def _float(self, value: ir.Value, codes: ir.Value) -> ir.Value:
        """The value, as the float one that these codes stand for."""
        name = str(codes.name)
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        value.name, value.type, value.shape = self._names.fresh(name), ir.TensorType(ir.DataType.FLOAT), codes.shape
        return value


def _grid_at(node: ir.Node, index: int) -> _Grid:
    return _Grid(input_at(node, index), input_at(node, index + 1))


def _channel_axis(node: ir.Node) -> int:
    """The axis of a layer's second factor along which a scale for each channel lies."""
    if node.op_type == "QGemm":
        return 0 if int_attribute(node, "transB", 0) else 1
    return 0 if node.op_type == "QLinearConv" else -1
