"""Runs a quantized file as the NPU does: 8-bit operands, 32-bit accumulators, shifts and the device's rounding.

emulator = Emulator("model_int8.onnx", rounding="dpu")
logits = emulator({"input": image})[0]

An Emulator is called like a `Runner`, from any number of threads.

An emulated model that is asked for numbers by the names that they have in the file, as a `Runner` is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emulator.arithmetic import EmulatedRounding
from detent.emulator.grids import grid_of
from detent.emulator.program import compile_program
from detent.errors import UsageError, nearest
from detent.graph.load import ModelLike, load, name_of
from detent.graph.session import Feeds, Runner
from detent.numerics.rounding import check_device_rounding
from detent.observe.inputs import input_specs
from detent.observe.samples import check_feeds
from detent.qdq.families import is_native_dequantize
from detent.results.compared import EmulationReport

Array = npt.NDArray[Any]


class Emulator:
    """A quantized model on integers. `outputs` are the names of the model's outputs."""

    def __init__(self, model: ModelLike, *, rounding: EmulatedRounding = "half-even") -> None:
        """Compile `model`: int8 (or uint8 around 128) in QDQ form with power-of-two scales, else ModelError.

        `rounding`: "half-even", as the file says, or "dpu": ties upwards.
        """
        check_device_rounding(rounding)
        self.rounding: EmulatedRounding = rounding
        loaded = load(model)
        self.inputs = input_specs(loaded)
        self._program = compile_program(loaded, rounding, name_of(model))
        self.outputs = list(self._program.outputs)
        self._overflows: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def tensors(self) -> list[str]:
        """The names of all codes that a run computes: the outputs of the file's QuantizeLinear."""
        return list(self._program.codes)

    @property
    def constants(self) -> Mapping[str, Array]:
        """The codes of weights, biases and other constants, by name."""
        return dict(self._program.constants)

    def report(self) -> EmulationReport:
        """What was done so far, over all runs."""
        program = self._program
        with self._lock:
            overflows = {node: count for node, count in self._overflows.items() if count}
        return EmulationReport(
            self.rounding, program.integer_steps, list(program.float_steps), len(program.codes), overflows
        )

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[Array]:
        """The outputs for one set of inputs, or those that are named: outputs of the model, or names of codes."""
        wanted = list(outputs or self.outputs)
        codes = self._program.codes
        for name in wanted:
            if name not in codes and name not in self.outputs:
                known = [*self.outputs, *codes]
                raise UsageError(f"The model computes no codes '{name}'.{nearest(name, known)} `tensors` lists them.")
        runner = self._plain if set(wanted) <= set(self.outputs) else self._detailed
        held = [name if name in self.outputs else codes[name].held for name in wanted]
        results = self._run(runner, feeds, origin, held)
        return [
            result if name in self.outputs else codes[name].grid.codes(result)
            for name, result in zip(wanted, results, strict=True)
        ]

    def codes(self, feeds: Feeds, origin: str = "the given input") -> dict[str, Array]:
        """The codes of every tensor, by the name that they have in the file."""
        names = self.tensors
        return dict(zip(names, self(feeds, origin, names), strict=True)) if names else {}

    def _run(self, runner: Runner, feeds: Feeds, origin: str, held: Sequence[str]) -> list[Array]:
        counters = self._program.counters
        checked = check_feeds(dict(feeds), self.inputs, origin)
        results = runner(checked, origin, [*held, *counters.values()])
        with self._lock:
            for node, count in zip(counters, results[len(held) :], strict=True):
                self._overflows[node] += int(count)
        return results[: len(held)]

    @cached_property
    def _plain(self) -> Runner:
        """Fetches the model's outputs only, so that onnxruntime may fuse what is between them."""
        return Runner(self._program.model, [*self.outputs, *self._program.counters.values()])

    @cached_property
    def _detailed(self) -> Runner:
        held = dict.fromkeys(codes.held for codes in self._program.codes.values())
        return Runner(self._program.model, [*self.outputs, *held, *self._program.counters.values()])


class EmulatedValues:
    """Outputs, and what DequantizeLinear makes of codes, of a model in memory, which is left as it is."""

    def __init__(self, model: ir.Model, rounding: EmulatedRounding) -> None:
        """Compile `model`; ModelError where the emulator does not take it."""
        self._emulator = Emulator(ir.to_proto(model), rounding=rounding)
        self._grids = {
            str(node.outputs[0].name): (str(node.inputs[0].name), grid_of(node))
            for node in model.graph
            if is_native_dequantize(node) and node.inputs[0] is not None
        }

    def __call__(self, feeds: Feeds, origin: str, names: Sequence[str]) -> list[Array]:
        """The numbers under these names."""
        outputs = set(self._emulator.outputs)
        asked = [name if name in outputs else self._grids[name][0] for name in names]
        found = self._emulator(feeds, origin, asked)
        return [
            array if name in outputs else self._decoded(name, array) for name, array in zip(names, found, strict=True)
        ]

    def _decoded(self, name: str, codes: Array) -> Array:
        grid = self._grids[name][1]
        return np.ldexp(grid.integers(codes).astype(np.float32), -grid.position)
