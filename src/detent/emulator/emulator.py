"""Runs a quantized file as the NPU does: 8-bit operands, 32-bit accumulators, shifts and the device's rounding.

emulator = Emulator("model_int8.onnx", rounding="dpu")
logits = emulator({"input": image})[0]

An Emulator is called like a `Runner`, from any number of threads. `EmulatedValues` is asked for numbers by the names
that they have in the file. `emulate` runs a model on data and says how far its answers are from those of onnxruntime,
which runs the same file in float32, without integer kernels. With the rounding half-even both should agree to the last
bit; with that of the DPU the difference is what the device will answer differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.devices.device import dtype_of, instead_of_shifts, role_formats
from detent.emulator.fixed import grid_of
from detent.emulator.program import compile_program
from detent.errors import UsageError, nearest
from detent.execute.inference import Batch, OutputFolder, map_in_order, named_batches, new_folder
from detent.graph.load import ModelLike, load, name_of
from detent.graph.session import Feeds, Runner
from detent.numerics.codec import DeviceRounding, check_device_rounding
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import check_feeds
from detent.observe.sources import input_specs, open_source
from detent.progress import Progress, silent
from detent.qdq.families import is_native_dequantize
from detent.recipe import Recipe
from detent.results.compared import Emulation, EmulationReport, OutputDifference

Array = npt.NDArray[Any]


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
        self._program = compile_program(loaded, rounding, name_of(model))
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
        """Return what was done so far, over all runs."""
        program = self._program
        with self._lock:
            overflows = {node: count for node, count in self._overflows.items() if count}
        return EmulationReport(
            self.rounding, program.integer_steps, list(program.float_steps), len(program.codes), overflows
        )

    def __call__(
        self, feeds: Feeds, origin: str = "the given input", outputs: Sequence[str] | None = None
    ) -> list[Array]:
        """Return the outputs for one set of inputs; or what is named, outputs of the model and codes."""
        wanted = list(outputs or self.outputs)
        codes = self._program.codes
        for name in wanted:
            if name not in codes and name not in self.outputs:
                known = [*self.outputs, *codes]
                raise UsageError(f"The model computes no codes '{name}'.{nearest(name, known)} `tensors` lists them.")
        # Fetching a value inside keeps onnxruntime from fusing across it, so the slower session is made only if it is
        # needed.
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
        checked = check_feeds(dict(feeds), self.inputs, origin)
        results = runner(checked, origin, [*held, *counters.values()])
        with self._lock:
            for node, count in zip(counters, results[len(held) :], strict=True):
                self._overflows[node] += int(count)
        return results[: len(held)]

    @cached_property
    def _plain(self) -> Runner:
        """Fetch the model's outputs only, so that onnxruntime may fuse what is between them."""
        return Runner(self._program.model, [*self.outputs, *self._program.counters.values()])

    @cached_property
    def _detailed(self) -> Runner:
        held = dict.fromkeys(codes.held for codes in self._program.codes.values())
        return Runner(self._program.model, [*self.outputs, *held, *self._program.counters.values()])


class EmulatedValues:
    """Outputs, and what DequantizeLinear makes of codes, of a model in memory, which stays as it is."""

    def __init__(self, model: ir.Model, rounding: DeviceRounding) -> None:
        """Compile `model`; raise ModelError if the emulator does not take it."""
        self._emulator = Emulator(ir.to_proto(model), rounding=rounding)
        self._grids = {
            str(node.outputs[0].name): (str(node.inputs[0].name), grid_of(node))
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
    differing = found != expected
    distance = np.abs(found.astype(np.float64) - expected.astype(np.float64))
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
    """Raise UsageError if the recipe rounds as shifts do, and its numbers are not 8-bit integers that are shifted."""
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
