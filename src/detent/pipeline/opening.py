"""The beginning of the way: what is asked for makes sense, and the model is read and made ready.

A model that is prepared must compute what it did. `Original` keeps the one that was given, to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from detent.devices.catalog import device_of, with_steps
from detent.devices.device import Device, check_rounding
from detent.emit.check import check_formats
from detent.errors import ModelError, UsageError
from detent.graph.load import files_of, load, name_of, read
from detent.graph.save import check_output
from detent.graph.session import Runner, check_operators
from detent.observe.samples import PendingSample, Sample
from detent.observe.sweep import Observation
from detent.pipeline.job import Job
from detent.plan.layout import Layout
from detent.plan.mixed import arrange
from detent.plan.parts import check_operator_types
from detent.plan.plan import check_methods
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.recipe import Recipe
from detent.refine.refine import check_refinement
from detent.report.report import Notes

QUANTIZED_OPERATORS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")

ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 1e-3, 1e-2
"""How far a prepared model may be from the original: folding changes the last bits, a wrong rewrite much more."""


def check_recipe(recipe: Recipe, selection: Selection) -> Device:
    """The target; UsageError where parts of the recipe contradict each other, or what the user selected."""
    if recipe.format == "bfloat16" and selection != Selection():
        raise UsageError(
            "Format bfloat16 computes the whole model in bfloat16: leave --include, --exclude, --op-types, --from and "
            "--to out, or choose format cast."
        )
    target = with_steps(device_of(recipe), recipe)
    check_formats(recipe)
    check_methods(recipe)
    check_operator_types(recipe)
    check_refinement(recipe)
    target.check(recipe)
    check_rounding(recipe)
    return target


def load_float(job: Job) -> ir.Model:
    """The float model; and nothing that will be written stands in the way."""
    model = load(job.model, job.recipe.least_opset)
    _refuse_quantized(model, name_of(job.model))
    check_operators(model)
    if job.output is not None:
        check_output(job.output, *([] if isinstance(job.model, onnx.ModelProto) else files_of(Path(job.model))))
    if job.collecting.save is not None:
        check_output(job.collecting.save, job.output)
    return model


def prepare_model(job: Job, model: ir.Model, target: Device) -> tuple[Layout, Notes]:
    """Rewrite the model into operators that can be quantized, and decide where it will be."""
    names = [str(node.name) for node in model.graph]
    passes = default_passes(job.fix_shapes, [make() for make in target.preparations], job.recipe.without)
    notes = Notes(prepare(model, passes), [note for step in passes for note in step.declined])
    return arrange(model, job.selection, job.recipe, folded=names), notes


def _refuse_quantized(model: ir.Model, name: str) -> None:
    for node in model.graph.all_nodes():
        if node.op_type in QUANTIZED_OPERATORS or node.op_type.startswith("QLinear"):
            raise ModelError(
                f"{name} is quantized already (node '{node.name}' is a {node.op_type}). Give the float model; "
                f"`detent inspect` shows what is in this one."
            )


class Original:
    """The model as it was given, ready to run on samples of the prepared one."""

    def __init__(self, job: Job) -> None:
        original = read(job.model)
        self._types = {str(each.name): each.dtype.numpy() for each in original.graph.inputs if each.dtype is not None}
        self._runner = Runner(original)

    def __call__(self, sample: Sample) -> dict[str, npt.NDArray[Any]]:
        """All outputs by name."""
        feeds = {name: array.astype(self._types.get(name, array.dtype)) for name, array in sample.feeds.items()}
        return dict(zip(self._runner.outputs, self._runner(feeds, sample.origin), strict=True))


def check_preparation(job: Job, original: Original, samples: Sequence[PendingSample], observation: Observation) -> None:
    """Run the model as it was given on one sample: preparing and equalizing it must not have changed its function."""
    if observation.runner is None:  # no data: it was run when the statistics were counted
        return
    # Of the samples that equalization saw, because a Clip may cut others where it did not before.
    sample = (samples or observation.measured_on)[0].load()
    expected = original(sample)
    found = observation.runner(sample.feeds, sample.origin, list(expected))
    for (name, before), after in zip(expected.items(), found, strict=True):
        if before.dtype.kind != "f" or before.shape != after.shape or before.size == 0:
            continue
        difference = float(np.abs(before.astype(np.float64) - after).max())
        if difference > ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * float(np.abs(before).max()):
            raise ModelError(
                f"Preparing {name_of(job.model)} changed what it computes: output '{name}' differs by {difference:.3g} "
                f"on {sample.origin}. This is a fault of Detent or of the opset conversion; export the model with "
                "opset 17 or newer, and please report it."
            )
