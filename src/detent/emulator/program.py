"""Compiles a quantized file into a program of integer steps.

The graph is walked once, in order. A QuantizeLinear becomes a shift with rounding, a DequantizeLinear nothing, and an
operator between them its rule on integers (`INTEGER_RULES`). A node without integers around it, or without a rule,
stays in float, on the device's host, and is listed with the reason. The program is an ONNX graph for onnxruntime;
`fixed` says why its arithmetic is that of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.emulator import arithmetic, integer_layers
from detent.emulator.arithmetic import quantize_float, requantize
from detent.emulator.fixed import (
    INT32_HIGH,
    INT32_LOW,
    Constant,
    Fixed,
    Grid,
    NotIntegerError,
    ProgramBuilder,
    check_form,
    grid_of,
)
from detent.errors import ModelError
from detent.graph.values import Names, constant
from detent.numerics.codec import DeviceRounding
from detent.prepare.shapes import infer
from detent.qdq.families import is_native_dequantize, is_native_quantize
from detent.results.compared import FloatStep

IntegerRule = Callable[[ProgramBuilder, ir.Node], "Fixed | list[Fixed]"]

INTEGER_RULES: Mapping[str, IntegerRule] = {
    "Conv": integer_layers.conv,
    "ConvTranspose": integer_layers.conv_transpose,
    "Gemm": integer_layers.gemm,
    "MatMul": integer_layers.matmul,
    "Add": arithmetic.add,
    "Sub": arithmetic.add,
    "Mul": arithmetic.multiply,
    "Min": arithmetic.extreme,
    "Max": arithmetic.extreme,
    "Where": arithmetic.where,
    "Relu": arithmetic.relu,
    "Clip": arithmetic.clip,
    "LeakyRelu": arithmetic.leaky_relu,
    "PRelu": arithmetic.p_relu,
    "HardSigmoid": arithmetic.hard_sigmoid,
    "AveragePool": integer_layers.average_pool,
    "GlobalAveragePool": integer_layers.global_average,
    "ReduceMean": integer_layers.global_average,
    "Concat": integer_layers.concat,
    "Pad": integer_layers.pad,
    "Resize": integer_layers.resize,
    **dict.fromkeys(
        ("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Reshape", "Flatten", "Transpose", "Squeeze",
         "Unsqueeze", "Slice", "Split", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Identity"),
        integer_layers.move,
    ),
}  # fmt: skip

ACCUMULATING = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "GlobalAveragePool", "ReduceMean")


@dataclass(frozen=True)
class HeldCodes:
    """The codes of a QuantizeLinear: the value of the program that holds their integers, and the grid."""

    held: str
    grid: Grid


@dataclass(eq=False)
class IntegerProgram:
    """What a quantized file computes, in integers.

    `codes` and `constants` have the names of the file's own values; `counters` are values of the program that count
    the elements of a node that left int32.
    """

    model: ir.Model
    outputs: Sequence[str]
    codes: dict[str, HeldCodes] = field(default_factory=dict)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    counters: dict[str, str] = field(default_factory=dict)
    float_steps: list[FloatStep] = field(default_factory=list)
    integer_steps: int = 0


def compile_program(model: ir.Model, rounding: DeviceRounding, where: str) -> IntegerProgram:
    """Compile a quantized model, which is consumed; raise ModelError if its codes are not the device's."""
    check_form(model, where)
    infer(model)
    return _Compiler(model, rounding).run()


class _Compiler:
    def __init__(self, model: ir.Model, rounding: DeviceRounding) -> None:
        self._rounding: DeviceRounding = rounding
        self._builder = ProgramBuilder(model, Names(model), next(iter(model.graph)))
        self._program = IntegerProgram(model, [str(value.name) for value in model.graph.outputs])
        self._held: dict[str, tuple[ir.Value, Grid]] = {}
        self._counts: dict[str, ir.Value] = {}

    def run(self) -> IntegerProgram:
        """Walk the graph."""
        graph = self._program.model.graph
        for node in list(graph):
            self._builder.anchor = node
            if is_native_quantize(node):
                self._quantize(node)
            elif is_native_dequantize(node):
                self._dequantize(node)
            else:
                self._operate(node)
        self._decode_rest()
        self._clean_up([*(value for value, _ in self._held.values()), *self._counts.values()])
        self._program.codes = {name: HeldCodes(str(value.name), grid) for name, (value, grid) in self._held.items()}
        self._program.counters = {node: str(value.name) for node, value in self._counts.items()}
        return self._program

    def _clean_up(self, fetched: Sequence[ir.Value]) -> None:
        """Remove what neither an output nor a fetched value needs."""
        graph = self._program.model.graph
        outputs = list(graph.outputs)
        graph.outputs.extend(fetched)
        common_passes.RemoveUnusedNodesPass()(self._program.model)
        graph.outputs.clear()
        graph.outputs.extend(outputs)
        graph.sort()

    def _quantize(self, node: ir.Node) -> None:
        source, result, grid = node.inputs[0], node.outputs[0], grid_of(node)
        assert source is not None, f"node '{node.name}' has no input"
        array = constant(source)
        if array is not None:
            scaled = np.rint(np.ldexp(array.astype(np.float64), grid.position))
            integers = np.clip(scaled, grid.low, grid.high).astype(np.int64)
            self._builder.constants[result] = Constant(integers, grid.position)
            self._program.constants[str(result.name)] = grid.codes(integers)
            return
        fixed = self._quantized(node, source, grid)
        self._builder.fixed[result] = fixed
        self._held[str(result.name)] = (fixed.value, grid)

    def _quantized(self, node: ir.Node, source: ir.Value, grid: Grid) -> Fixed:
        if source in self._builder.constants or source in self._builder.fixed:
            try:
                return requantize(self._builder, self._builder.integers(source), grid, self._rounding)
            except NotIntegerError as reason:
                producer = source.producer() or node
                self._program.integer_steps -= 1
                self._program.float_steps.append(FloatStep(str(producer.name), producer.op_type, str(reason)))
        return quantize_float(self._builder, self._builder.as_float(source), grid)

    def _dequantize(self, node: ir.Node) -> None:
        source, result, grid = node.inputs[0], node.outputs[0], grid_of(node)
        assert source is not None, f"node '{node.name}' has no input"
        producer = source.producer()
        if producer is not None and is_native_quantize(producer):
            if grid_of(producer) != grid:
                raise ModelError(
                    f"QuantizeLinear '{producer.name}' and DequantizeLinear '{node.name}' disagree about the scale or "
                    "zero point of the codes between them. Quantize the model again."
                )
            if source in self._builder.constants:
                self._builder.constants[result] = self._builder.constants[source]
            else:
                self._builder.fixed[result] = self._builder.fixed[source]
            return
        array = constant(source)
        if array is not None:
            self._builder.constants[result] = Constant(grid.integers(array), grid.position)
            self._program.constants[str(source.name)] = array
            return
        numbers = self._builder.node("Cast", [source], to=ir.DataType.FLOAT.value)
        if grid.zero_point:
            numbers = self._builder.node("Sub", [numbers, self._builder.scalar(grid.zero_point, wide=False)])
        self._builder.fixed[result] = Fixed(numbers, grid.position, grid.low, grid.high)

    def _operate(self, node: ir.Node) -> None:
        for value in node.inputs:
            if value is not None and str(value.name) in self._held:
                raise ModelError(
                    f"Node '{node.name}' ({node.op_type}) computes with the codes '{value.name}' themselves. Emulate "
                    "the QDQ form, in which every operator stands between DequantizeLinear and QuantizeLinear."
                )
        try:
            results = self._integers_of(node)
        except NotIntegerError as reason:
            self._leave_float(node, str(reason))
            return
        self._program.integer_steps += 1
        self._builder.fixed.update(zip(node.outputs, results, strict=True))
        for result in results if node.op_type in ACCUMULATING else ():
            self._watch(node, result)

    def _integers_of(self, node: ir.Node) -> list[Fixed]:
        rule = INTEGER_RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            raise NotIntegerError(f"{node.op_type} is not computed in integers")
        results = rule(self._builder, node)
        return [one.checked() for one in (results if isinstance(results, list) else [results])]

    def _watch(self, node: ir.Node, result: Fixed) -> None:
        """Count the elements that leave int32, unless the ranges rule it out."""
        if result.low >= INT32_LOW and result.high <= INT32_HIGH:
            return
        builder, wide = self._builder, self._builder.widened(result)
        low, high = (builder.scalar(limit * 2.0**-result.shift, wide=True) for limit in (INT32_LOW, INT32_HIGH))
        left = builder.node(
            "Or", [builder.node("Less", [wide.value, low]), builder.node("Greater", [wide.value, high])]
        )
        count = builder.node("ReduceSum", [builder.node("Cast", [left], to=ir.DataType.INT64.value)], keepdims=0)
        self._counts[str(node.name)] = count

    def _leave_float(self, node: ir.Node, reason: str) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None:
                node.replace_input_with(index, self._builder.as_float(value))
        floats = [value for value in node.outputs if value.dtype in (ir.DataType.FLOAT, None)]
        if floats and any(_is_data(value) for value in node.inputs):  # else it computes shapes, or a constant
            self._program.float_steps.append(FloatStep(str(node.name), node.op_type, reason))

    def _decode_rest(self) -> None:
        """Decode what is still read as in the file: by the bodies of an If or Loop, and as outputs of the model."""
        builder, graph = self._builder, self._program.model.graph
        builder.anchor = list(graph)[-1]
        known = [*builder.fixed, *builder.constants]
        for value in known:
            for node, index in list(value.uses()):
                if node.graph is not graph:
                    node.replace_input_with(index, builder.as_float(value))
        for index, value in enumerate(graph.outputs):
            if value in builder.fixed or value in builder.constants:
                graph.outputs[index] = self._output(value)

    def _output(self, value: ir.Value) -> ir.Value:
        """Write an output of the model under its own name: codes as codes, numbers as numbers."""
        builder, name = self._builder, str(value.name)
        if name in self._held:
            codes, grid = self._held[name]
            moved = builder.node("Add", [codes, builder.scalar(grid.zero_point, wide=False)])
            result = builder.node("Cast", [moved], to=ir.DataType.from_numpy(grid.dtype).value)
        else:
            result = builder.node("Identity", [builder.as_float(value)])
        result.type, result.shape = value.type, value.shape
        value.name = builder.names.fresh(f"{name}/in_the_file")
        result.name = name
        return result


def _is_data(value: ir.Value | None) -> bool:
    """Return whether an operand is neither missing nor a constant of the file."""
    return value is not None and constant(value) is None
