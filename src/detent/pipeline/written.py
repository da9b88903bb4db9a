"""The last two stages: write the plan into the graph and measure the result; check it for the device and save it.

Two forms are written, one after the other. The first computes the same numbers in plain float operators between
roundings, so that every value on the way can be compared with float; the last is what the file holds.

| format    | first form                        | last form                                         |
| --------- | --------------------------------- | ------------------------------------------------- |
| qoperator | QuantizeLinear, DequantizeLinear  | operators on codes, within a code of the first    |
| bfloat16  | Casts to bfloat16 and back        | bfloat16 throughout, the same numbers             |
| any other | what the file holds               | the same                                          |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from detent.convert.float_types import to_pure_bfloat16
from detent.convert.splitting import BetweenTensor, Cut, divide, rename_rounded, tail_file
from detent.device_check import check_graph
from detent.devices.catalog import device_of
from detent.devices.device import ROUNDING_KEY
from detent.emit.qoperator_form import to_qoperator
from detent.errors import ModelError, OutputError
from detent.evaluation.fidelity import measure_fidelity
from detent.graph.load import checker_complaint
from detent.graph.save import PROTOBUF_LIMIT, complete_proto, save_together, tensor_bytes
from detent.graph.session import Runner
from detent.pipeline.emitted import FirstForm, OpenedForm, write_plan
from detent.pipeline.judged import only_counted
from detent.pipeline.observed import Observed
from detent.pipeline.prepared import Prepared, Stopwatch, fixes_batch
from detent.pipeline.refined import Refined
from detent.plan.plan import Plan
from detent.prepare import FixBatch, FoldConstants, prepare
from detent.prepare.base import Change
from detent.recipe import Recipe
from detent.results.checked import DeviceCheck
from detent.results.tensors import Fidelity, NetworkNode, TensorReport, describe_activations, network_of
from detent.version import __version__

EMULATED = 16  # samples to measure on if a model is computed in integers, which takes several times as long


@dataclass(frozen=True, eq=False)
class Measured:
    """The quantized model in its first form, and what it costs. `fidelity` is None without data to measure with.

    `network` is the float model as it was planned.
    """

    refined: Refined
    network: tuple[NetworkNode, ...]
    first: FirstForm
    tensors: Sequence[TensorReport]
    fidelity: Fidelity | None


@dataclass(frozen=True, eq=False)
class Written:
    """The quantized model, saved. `protos` are the model itself if there is no output file; with `cut`, it is two.

    `device` is None if the recipe is for no known device.
    """

    measured: Measured
    changes: Sequence[Change]
    declined: Sequence[Change]
    device: DeviceCheck | None
    protos: Sequence[onnx.ModelProto]
    bytes: int
    warnings: Sequence[str]
    cut: Cut | None = None


def measure(refined: Refined, watch: Stopwatch) -> Measured:
    """Write the plan into the graph, and measure the result."""
    observed, model, plan = refined.planned.observed, refined.planned.model, refined.plan
    with watch.step("emit"):
        network, opened = network_of(model), refined.opened
        # In place: a copy would be another one of all weights.
        first = write_plan(model, plan, observed.prepared.job.recipe) if opened is None else opened.form
        _check(first.model)
    with watch.step("measure"):
        # Before the last form is made: it renames and merges nodes, and then no tensor inside could be compared by
        # name.
        fidelity = _measure(observed, first, opened)
        measured = fidelity.tensors if fidelity else {}
        tensors = [*refined.constants, *describe_activations(plan, observed.observation.statistics, measured)]
    return Measured(refined, network, first, tensors, fidelity)


def write(measured: Measured, watch: Stopwatch) -> Written:
    """Bring the model into its last form, check it and save it."""
    first, plan, observed = measured.first, measured.refined.plan, measured.refined.planned.observed
    job, recipe = observed.prepared.job, observed.prepared.job.recipe
    with watch.step("save"):
        # Everything that can refuse the model stands before the file is written, so a failed run leaves no half result.
        final, declined = last_form(first, plan, recipe)
        changes = _fix_for_device(final, observed.prepared)
        if changes:
            _loaded(final, remedy="Its open batch was fixed to 1; --keep-batch leaves it open.")
        else:
            _loaded(final, checked=final is first.model and recipe.format != "qoperator")
        parts, between = _parts(final, observed, first.rounded)
        if recipe.rounding != "half-even":
            parts[0].metadata_props[ROUNDING_KEY] = recipe.rounding
        device = device_of(recipe)
        reasons = {name: each.reason for name, each in plan.layout.decisions.items() if not each.quantized}
        takes = device.takes_models_of(recipe)
        taken = check_graph(parts[0], device, "the quantized model", reasons=reasons) if takes else None
        protos, sizes = _store(parts, job.output)
    cut = None
    if between:
        cut = Cut(None if job.output is None else str(tail_file(job.output)), sizes[1], tuple(between))
    return Written(measured, changes, declined, taken, protos, sizes[0], first.warnings, cut)


def _fix_for_device(final: ir.Model, prepared: Prepared) -> list[Change]:
    """Fix an open batch that calibration needed, in place, and return what was changed."""
    if not fixes_batch(prepared.job, prepared.target) or not prepared.job.runs_batches:
        return []
    return [change for change in prepare(final, [FixBatch(), FoldConstants()]) if change.by == FixBatch.__name__]


def _parts(
    final: ir.Model, observed: Observed, rounded: Mapping[str, str]
) -> tuple[list[ir.Model], list[BetweenTensor]]:
    """Return the model, or body and tail if it is to be cut, and what goes from one to the other."""
    tail = observed.prepared.tail
    if tail is None or not observed.prepared.cuts:
        return [final], []
    # The tail was written for the float names, and users join the halves by name.
    rename_rounded(final, {name: rounded[name] for name in tail.starts if name in rounded})
    body, rest, between = divide(final, [node for node in final.graph if node.name not in tail.nodes])
    return [_loaded(body), _loaded(rest)], between


def last_form(first: FirstForm, plan: Plan, recipe: Recipe) -> tuple[ir.Model, list[Change]]:
    """Return the model as the file will hold it, and why some of its nodes could not take that form."""
    if recipe.format == "qoperator":
        return first.model, to_qoperator(first.model)
    if first.unrounded is not None:
        to_pure_bfloat16(first.unrounded, plan.refined)
        return first.unrounded, []
    return first.model, []


def _measure(observed: Observed, first: FirstForm, opened: OpenedForm | None) -> Fidelity | None:
    """Measure how close the quantized model is to float; None without data to measure with."""
    job, observation = observed.prepared.job, observed.observation
    if observation.runner is None:
        return None
    held_out, (counted, reserve) = observation.measured_on, only_counted(observed)
    found = measure_fidelity(
        observation.runner,
        first.model,
        {name: first.rounded[name] for name in observed.prepared.sites},
        # Integers take several times as long as the float kernels.
        [*held_out, *counted] if job.recipe.emulated is None else held_out[:EMULATED],
        reserve,
        original=observed.original if observed.rescaling.changed else None,
        quantized=opened,
        emulate=job.recipe.emulated,
        purpose=observed.prepared.purpose,
        parts=observed.prepared.parts,
        threads=job.collecting.threads,
        progress=job.progress,
    )
    return replace(found, counted=max(0, found.samples - sum(each.size for each in held_out)))


def _store(parts: Sequence[ir.Model], output: Path | None) -> tuple[list[onnx.ModelProto], list[int]]:
    """Save the model in one file or two. Return the messages if there is no output file, and the sizes in bytes."""
    if output is not None:
        return [], save_together(list(zip(parts, (output, tail_file(output)), strict=False)))
    # protobuf fails past 2 GB with a message that names neither the model nor a remedy.
    if any(tensor_bytes(model) > PROTOBUF_LIMIT for model in parts):
        raise OutputError("The quantized model is past 2 GB and cannot be one ModelProto. Give an output file.")
    protos = [complete_proto(model) for model in parts]
    return protos, [int(proto.ByteSize()) for proto in protos]


_REPORT = "If a node is named, leave it float with --exclude, and please report it."


def _loaded(model: ir.Model, *, checked: bool = False, remedy: str = _REPORT) -> ir.Model:
    """Return the model after the checker and onnxruntime accepted it.

    It is opened as its users open it, with all of onnxruntime's rewrites: while it is measured, those for quantized
    nodes are off. `checked`: the checker has seen it as it is.
    """
    if not checked:
        _check(model)
    try:
        # The checker knows shapes and types, not kernels: only opening a session tells that every operator can run.
        Runner(model)
    except ModelError as error:
        raise ModelError(f"The quantized model does not load, so it is not written. {error} {remedy}") from error
    return model


def _check(model: ir.Model) -> None:
    model.producer_name, model.producer_version = "detent", __version__
    complaint = checker_complaint(model)
    if complaint is not None:
        raise ModelError(f"The quantized model does not pass onnx's checker, so it is not written: {complaint}")
