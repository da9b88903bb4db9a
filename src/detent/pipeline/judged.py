"""The model as it was given, on samples that nothing is learned from: what every accuracy step is judged by.

A plan is written into a copy of its model, which is run on the samples; `evaluation.answer_errors` says how far its
answers are from those of the given model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from detent.emit.emitter import emit
from detent.emulator.emulator import EmulatedValues
from detent.evaluation.answer_errors import error_sums, total_error
from detent.execute.inference import map_in_order
from detent.graph.session import Runner
from detent.observe.samples import PendingSample, Sample
from detent.pipeline.prepared import Original, Prepared
from detent.plan.plan import Plan
from detent.recipe import Recipe
from detent.tasks.parts import output_parts

JUDGING_SAMPLES = 16  # samples that candidates are compared on: the comparison is paired, so a few tell


class JudgedOutputs:
    """The answers of the given model, to compare candidates with."""

    def __init__(self, prepared: Prepared, original: Original, samples: Sequence[PendingSample]) -> None:
        self.samples = samples[:JUDGING_SAMPLES]
        self._prepared = prepared
        self._threads = prepared.job.collecting.threads
        self._parts = output_parts(prepared.model.graph)
        self._expected = [outputs for _, outputs in map_in_order(original, self.samples, self._threads)]

    def error(self, model: ir.Model, plan: Plan) -> float:
        """Return the error of the model that is quantized as planned; infinity if it is not finite."""
        names = [str(value.name) for value in model.graph.outputs]
        run = quantized(model, plan, self._prepared.job.recipe, names)

        def sums(at: int) -> dict[str, tuple[float, float]]:
            pending = self.samples[at]
            found = dict(zip(names, run(pending.load()), strict=True))
            return error_sums(self._prepared.purpose, self._parts, self._expected[at], found, pending.size)

        return total_error([each for _, each in map_in_order(sums, range(len(self.samples)), self._threads)])


def quantized(
    model: ir.Model, plan: Plan, recipe: Recipe, names: Sequence[str]
) -> Callable[[Sample], list[npt.NDArray[Any]]]:
    """Return what computes the named values of a sample, rounded, in the model that is quantized as planned."""
    model = model.clone()  # weights are shared
    outputs = {value.name for value in model.graph.outputs}
    rounded = emit(model, plan, recipe.format, weight_pairs=recipe.weight_pairs, dedicated_pairs=recipe.dedicated_pairs)
    fetched = [name if name in outputs else rounded.get(name, name) for name in names]
    if recipe.emulated is not None:
        emulated = EmulatedValues(model, recipe.emulated)
        return lambda sample: emulated(sample.feeds, sample.origin, fetched)
    runner = Runner(model, fetched, exact=True)
    return lambda sample: runner(sample.feeds, sample.origin)
