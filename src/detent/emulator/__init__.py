"""Run a quantized file as the NPU does: 8-bit operands, 32-bit accumulators, shifts and the device's rounding.

emulator = Emulator("model_int8.onnx", rounding="dpu")
logits = emulator({"input": image})[0]

An Emulator is called like a `Runner`, from any number of threads. `EmulatedValues` returns the numbers of values by
their names in the file. `emulate` runs a model on data and compares its answers with onnxruntime, which runs the same
file in float32, without integer kernels. With the rounding half-even both should agree to the last bit; with the
rounding of the DPU the difference is how much the answers of the device differ from the file.

First a file is compiled into a program of integer steps, in one walk through the graph. A QuantizeLinear becomes a
shift with rounding, a DequantizeLinear nothing, and `INTEGER_RULES` has a rule for each operator between them.
A node without integers around it, or without a rule, stays in float, on the device's host, and is listed with the
reason. The program is an ONNX graph for onnxruntime; `fixed` says why it computes exactly like integer arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.devices.device import dtype_of, instead_of_shifts, role_formats
from detent.emulator import arithmetic, fixed, integer_layers
from detent.errors import DataError, ModelError, UsageError, nearest
from detent.execute.inference import Batch, OutputFolder, map_in_order, named_batches, new_folder
from detent.graph.load import ModelLike, load, name_of
from detent.graph.session import Feeds, Runner
from detent.graph.values import Names, constant
from detent.numerics.codec import DeviceRounding, check_device_rounding
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array, check_feeds, check_names
from detent.observe.sources import input_specs, open_source
from detent.prepare.shapes import infer
from detent.progress import Progress, silent
from detent.qdq.families import is_native_dequantize, is_native_quantize
from detent.recipe import Recipe
from detent.results.compared import Emulation, EmulationReport, FloatStep, OutputDifference

IntegerRule = Callable[[fixed.ProgramBuilder, ir.Node], "fixed.Fixed | list[fixed.Fixed]"]

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
    grid: fixed.Grid


@dataclass(eq=False)
class IntegerProgram:
    """A quantized file, compiled to integers.

    `codes` and `constants` are by the names of values in the file. `counters` are values of the program that count, for
    each node, the elements that left int32.
    """

    model: ir.Model
    outputs: Sequence[str]
    codes: dict[str, HeldCodes] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    counters: dict[str, str] = field(default_factory=dict)
    float_steps: list[FloatStep] = field(default_factory=list)
    integer_steps: int = 0


class _Compiler:
    def __init__(self, model: ir.Model, rounding: DeviceRounding) -> None:
        self._rounding: DeviceRounding = rounding
        self._builder = fixed.ProgramBuilder(model, Names(model), next(iter(model.graph)))
        self._program = IntegerProgram(model, [str(value.name) for value in model.graph.outputs])
        self._held: dict[str, tuple[ir.Value, fixed.Grid]] = {}
        self._counts: dict[str, ir.Value] = {}

    def run(self) -> IntegerProgram:
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
        """Remove nodes that neither an output nor a fetched value needs."""
        graph = self._program.model.graph
        outputs = list(graph.outputs)
        graph.outputs.extend(fetched)
        common_passes.RemoveUnusedNodesPass()(self._program.model)
        graph.outputs.clear()
        graph.outputs.extend(outputs)
        graph.sort()

    def _quantize(self, node: ir.Node) -> None:
        source, result, grid = node.inputs[0], node.outputs[0], fixed.grid_of(node)
        assert source is not None, f"node '{node.name}' has no input"
        array = constant(source)
        if array is not None:
            scaled = np.rint(np.ldexp(array.astype(np.float64), grid.position))
            integers = np.clip(scaled, grid.low, grid.high).astype(np.int64)
            self._builder.constants[result] = fixed.Constant(integers, grid.position)
            self._program.constants[str(result.name)] = grid.codes(integers)
            return
        quantized = self._quantized(node, source, grid)
        self._builder.fixed[result] = quantized
        self._held[str(result.name)] = (quantized.value, grid)

    def _quantized(self, node: ir.Node, source: ir.Value, grid: fixed.Grid) -> fixed.Fixed:
        if source in self._builder.constants or source in self._builder.fixed:
            try:
                return arithmetic.requantize(self._builder, self._builder.integers(source), grid, self._rounding)
            except fixed.NotIntegerError as reason:
                producer = source.producer() or node
                self._program.integer_steps -= 1
                self._program.float_steps.append(FloatStep(str(producer.name), producer.op_type, str(reason)))
        return arithmetic.quantize_float(self._builder, self._builder.as_float(source), grid)

    def _dequantize(self, node: ir.Node) -> None:
        source, result, grid = node.inputs[0], node.outputs[0], fixed.grid_of(node)
        assert source is not None, f"node '{node.name}' has no input"
        producer = source.producer()
        if producer is not None and is_native_quantize(producer):
            if fixed.grid_of(producer) != grid:
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
            self._builder.constants[result] = fixed.Constant(grid.integers(array), grid.position)
            self._program.constants[str(source.name)] = array
            return
        numbers = self._builder.node("Cast", [source], to=ir.DataType.FLOAT.value)
        if grid.zero_point:
            numbers = self._builder.node("Sub", [numbers, self._builder.scalar(grid.zero_point, wide=False)])
        self._builder.fixed[result] = fixed.Fixed(numbers, grid.position, grid.low, grid.high)

    def _operate(self, node: ir.Node) -> None:
        for value in node.inputs:
            if value is not None and str(value.name) in self._held:
                raise ModelError(
                    f"Node '{node.name}' ({node.op_type}) computes with the codes '{value.name}' themselves. Emulate "
                    "the QDQ form, in which every operator stands between DequantizeLinear and QuantizeLinear."
                )
        try:
            results = self._integers_of(node)
        except fixed.NotIntegerError as reason:
            self._leave_float(node, str(reason))
            return
        self._program.integer_steps += 1
        self._builder.fixed.update(zip(node.outputs, results, strict=True))
        for result in results if node.op_type in ACCUMULATING else ():
            self._watch(node, result)

    def _integers_of(self, node: ir.Node) -> list[fixed.Fixed]:
        rule = INTEGER_RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            raise fixed.NotIntegerError(f"{node.op_type} is not computed in integers")
        results = rule(self._builder, node)
        return [one.checked() for one in (results if isinstance(results, list) else [results])]

    def _watch(self, node: ir.Node, result: fixed.Fixed) -> None:
        """Count the elements that leave int32, unless the ranges rule it out."""
        if result.low >= fixed.INT32_LOW and result.high <= fixed.INT32_HIGH:
            return
        builder, wide = self._builder, self._builder.widened(result)
        low, high = (
            builder.scalar(limit * 2.0**-result.shift, wide=True) for limit in (fixed.INT32_LOW, fixed.INT32_HIGH)
        )
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
        data = [value for value in node.inputs if value is not None and constant(value) is None]
        if floats and data:  # else it computes shapes, or a constant
            self._program.float_steps.append(FloatStep(str(node.name), node.op_type, reason))

    def _decode_rest(self) -> None:
        """Decode values for readers outside the program: bodies of an If or Loop, and outputs of the model."""
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


class Emulator:
    """A quantized model on integers. `outputs` are the names of the model's outputs."""

    def __init__(self, model: ModelLike, *, rounding: DeviceRounding = "half-even") -> None:
        """Compile `model`: int8 (or uint8 around 128) in QDQ form with power-of-two scales; else raise ModelError.

        `rounding`: "half-even", as the file says, or "dpu": ties upwards.
        """
        check_device_rounding(rounding)
        self.rounding: DeviceRounding = rounding
        loaded = load(model)
        self.inputs = input_specs(loaded)
        fixed.check_form(loaded, name_of(model))
        infer(loaded)
        self._program = _Compiler(loaded, rounding).run()
        self.outputs = list(self._program.outputs)
        self._overflows: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def tensors(self) -> list[str]:
        """Return the names of all codes that a run computes: the outputs of the file's QuantizeLinear."""
        return list(self._program.codes)

    @property
    def constants(self) -> Mapping[str, Array]:
        """Return the codes of weights, biases and other constants, by name."""
        return dict(self._program.constants)

    def report(self) -> EmulationReport:
        """Return the counts of all runs so far."""
        program = self._program
        with self._lock:
            overflows = {node: count for node, count in self._overflows.items() if count}
        return EmulationReport(
            self.rounding, program.integer_steps, list(program.float_steps), len(program.codes), overflows
        )

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[Array]:
        """Return the outputs for one set of inputs, or the outputs and codes that `outputs` names."""
        wanted = list(outputs or self.outputs)
        codes = self._program.codes
        for name in wanted:
            if name not in codes and name not in self.outputs:
                known = [*self.outputs, *codes]
                raise UsageError(f"The model computes no codes '{name}'.{nearest(name, known)} `tensors` lists them.")
        # Fetching an inner value keeps onnxruntime from fusing across it: that slower session is made only if needed.
        runner = self._plain if set(wanted) <= set(self.outputs) else self._detailed
        held = [name if name in self.outputs else codes[name].held for name in wanted]
        results = self._run(runner, feeds, origin, held)
        return [
            result if name in self.outputs else codes[name].grid.codes(result)
            for name, result in zip(wanted, results, strict=True)
        ]

    def codes(self, feeds: Feeds, origin: str = "the given input") -> dict[str, Array]:
        """Return the codes of every tensor, by the name that they have in the file."""
        names = self.tensors
        return dict(zip(names, self(feeds, origin, names), strict=True)) if names else {}

    def _run(self, runner: Runner, feeds: Feeds, origin: str, held: Sequence[str]) -> list[Array]:
        counters = self._program.counters
        if others := check_names(feeds, self.inputs, origin):
            raise DataError(f"{origin}: the model has no input '{others[0]}'.")
        checked = check_feeds(dict(feeds), self.inputs, origin)
        results = runner(checked, origin, [*held, *counters.values()])
        with self._lock:
            for node, count in zip(counters, results[len(held) :], strict=True):
                self._overflows[node] += int(count)
        return results[: len(held)]

    @cached_property
    def _plain(self) -> Runner:
        """A session that fetches only the model's outputs, so that onnxruntime may fuse everything inside."""
        return Runner(self._program.model, [*self.outputs, *self._program.counters.values()])

    @cached_property
    def _detailed(self) -> Runner:
        held = dict.fromkeys(codes.held for codes in self._program.codes.values())
        return Runner(self._program.model, [*self.outputs, *held, *self._program.counters.values()])


class EmulatedValues:
    """The outputs and dequantized values of a model in memory, which stays as it is."""

    def __init__(self, model: ir.Model, rounding: DeviceRounding) -> None:
        """Compile `model`; raise ModelError if the emulator does not take it."""
        self._emulator = Emulator(ir.to_proto(model), rounding=rounding)
        self._grids = {
            str(node.outputs[0].name): (str(node.inputs[0].name), fixed.grid_of(node))
            for node in model.graph
            if is_native_dequantize(node) and node.inputs[0] is not None
        }

    def __call__(self, feeds: Feeds, origin: str, names: Sequence[str]) -> list[Array]:
        """Return the numbers under these names."""
        outputs = set(self._emulator.outputs)
        asked = [name if name in outputs else self._grids[name][0] for name in names]
        found = self._emulator(feeds, origin, asked)
        return [
            array if name in outputs else self._decoded(name, array) for name, array in zip(names, found, strict=True)
        ]

    def _decoded(self, name: str, codes: Array) -> Array:
        grid = self._grids[name][1]
        # ldexp is exact; a multiplication by 2^-p is not for positions beyond float32's range.
        return np.ldexp(grid.integers(codes).astype(np.float32), -grid.position)


STAGE = "emulate"


def emulate(
    model: ModelLike,
    data: Any = None,
    *,
    rounding: DeviceRounding = "half-even",
    output: Path | None = None,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    progress: Progress = silent,
) -> Emulation:
    """Run `model` in integers on `data`; answers go to the new folder `output`. See `Emulator` for what it takes."""
    emulator = Emulator(model, rounding=rounding)
    source = open_source(data, emulator.inputs, preprocess=preprocess, limit=limit, seed=seed, batch=batch)
    # The same file in exact float arithmetic: what differs is rounding, not saturation of integer kernels.
    reference = Runner(load(model), exact=True)

    def answer(item: Batch) -> tuple[dict[str, Array], list[OutputDifference]]:
        sample = item.pending.load()
        found = emulator(sample.feeds, sample.origin)
        expected = reference(sample.feeds, sample.origin)
        differences = [_difference(*each) for each in zip(emulator.outputs, found, expected, strict=True)]
        return dict(zip(emulator.outputs, found, strict=True)), differences

    totals: list[OutputDifference] = []
    samples = 0
    with new_folder(output) if output is not None else nullcontext() as folder:
        answers = None if folder is None else OutputFolder(folder)
        progress(STAGE, 0, source.length)
        for done, (item, (outputs, differences)) in enumerate(map_in_order(answer, named_batches(source)), 1):
            if answers is not None:
                for name, each in zip(item.names, item.split(outputs), strict=True):
                    answers.save(each, name)
            totals = [_sum(*pair) for pair in zip(totals, differences, strict=True)] if totals else differences
            samples += item.pending.size
            progress(STAGE, done, source.length)
    written = None if output is None else str(output)
    return Emulation(
        source.describe, source.note, source.random, samples, emulator.report(), totals, written, name_of(model)
    )


def _difference(name: str, found: Array, expected: Array) -> OutputDifference:
    x, y = found.astype(np.float64), expected.astype(np.float64)
    differing = (found != expected) & ~(np.isnan(x) & np.isnan(y))
    distance = np.abs(x[differing] - y[differing])  # not of the same infinities, whose difference is NaN
    scores = found.ndim == 2 and found.shape[1] >= 2
    same = found.argmax(-1) == expected.argmax(-1) if scores else np.zeros(0, bool)
    return OutputDifference(
        name,
        int(found.size),
        int(np.count_nonzero(differing)),
        float(distance.max(initial=0.0)),
        int(same.size),
        int(np.count_nonzero(same)),
    )


def _sum(one: OutputDifference, other: OutputDifference) -> OutputDifference:
    return OutputDifference(
        one.name,
        one.elements + other.elements,
        one.differing + other.differing,
        max(one.farthest, other.farthest),
        one.rows + other.rows,
        one.same_top1 + other.same_top1,
    )


def check_emulable(recipe: Recipe) -> None:
    """Raise UsageError if the recipe asks for the rounding of shifts, but not for 8 bits with power-of-two scales."""
    if recipe.rounding == "half-even":
        return
    asked = f"Rounding {recipe.rounding} is that of shifts of 8-bit integers"
    choose = "Choose a recipe with these, such as XINT8, or leave the rounding half-even."
    for role, part, fmt in role_formats(recipe):
        has = instead_of_shifts(fmt)
        if has is None and dtype_of(fmt) not in _EMULATED[role]:
            has = f"are {dtype_of(fmt)}"
        if has is not None:
            raise UsageError(f"{asked}, and the {role}{part} of recipe {recipe.name} {has}. {choose}")
    if recipe.format != "qdq":
        raise UsageError(
            f"{asked}, and a file in format {recipe.format} cannot be emulated. Quantize with --format qdq; `detent "
            "convert` writes the result in other forms."
        )


_EMULATED = {"activations": ("int8", "uint8"), "weights": ("int8", "uint8"), "biases": ("int8", "uint8", "int32")}
