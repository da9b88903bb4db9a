"""The whole way from a float model to a quantized one, top to bottom.

    load -> prepare -> lay out -> equalize -> observe -> plan -> constrain -> refine
         -> emit -> verify -> measure -> save

Decisions are made on the plan, weights are encoded once at emission, and nothing is written before everything held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from detent.calibrate import Collecting, collect, keep, saved_statistics
from detent.emit.check import check_formats
from detent.errors import ModelError, UsageError
from detent.graph.load import ModelLike, files_of, load, name_of, read, stored_bytes
from detent.graph.save import check_output
from detent.graph.session import Runner, check_operators
from detent.measure.fidelity import Fidelity, measure_fidelity
from detent.observe.fingerprint import fingerprint_of
from detent.observe.inputs import input_specs
from detent.observe.peek import peek
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import PendingSample, Sample
from detent.observe.sources import Source, open_source
from detent.observe.statistics_file import StatisticsFile
from detent.observe.sweep import Observation, look, recall
from detent.plan.layout import Layout, Role
from detent.plan.mixed import arrange
from detent.plan.parts import check_operator_types
from detent.plan.plan import Plan, check_methods, make_plan, needs_statistics
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.progress import Progress, silent
from detent.recipe import EQUALIZING_SAMPLES, Recipe
from detent.refine.layers import LayerReport
from detent.refine.refine import check_refinement, refine
from detent.report.advice import suggestions_for, warnings_for
from detent.report.report import Calibration, Notes, Report
from detent.report.tensors import describe_activations, describe_constants
from detent.rescaling import Rescaling, rescale
from detent.targets.dpu import NodePass
from detent.targets.optional import with_steps
from detent.targets.target import Target, find_target
from detent.writing import last_form, store, write_plan

HELD_OUT = 16
"""Samples kept back to measure the result with, where the data has any to spare."""

QUANTIZED_OPERATORS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")

ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 1e-3, 1e-2
"""How far a prepared model may be from the original: folding changes the last bits, a wrong rewrite much more."""


@dataclass(frozen=True)
class Job:
    """One quantization, complete: what to read, how to quantize it and where to write."""

    model: ModelLike
    output: Path | None
    recipe: Recipe
    calibration: Any = None
    preprocess: PreprocessOptions | None = None
    selection: Selection = field(default_factory=Selection)
    fix_shapes: Mapping[str, Sequence[int]] | None = None
    limit: int | None = None
    seed: int | None = None
    batch: int | None = None
    collecting: Collecting = field(default_factory=Collecting)
    dry_run: bool = False
    progress: Progress = silent


@dataclass
class _Stopwatch:
    """Seconds per stage, and the stage's name to the observer."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.progress(name, 0, None)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def run(job: Job) -> Report:
    """Quantize. Raises a DetentError, and leaves no output, where anything is wrong."""
    target = _check_recipe(job.recipe, job.selection)
    watch = _Stopwatch(job.progress)
    with watch.stage("load"):
        model = _load(job)
        identity = fingerprint_of(model) if job.collecting.needs_identity else None
    with watch.stage("prepare"):
        layout, notes = _prepare(job, model, target)
        job, unrefined = _without_data(job, layout)
    source = _open(job, model, layout)
    if job.dry_run:
        return _preview(job, layout, notes, source, watch.seconds)
    sites = _observed(layout)
    with ThreadPoolExecutor(1) as meanwhile:
        original = meanwhile.submit(_Original, job)
        with watch.stage("equalize"):
            saved = saved_statistics(job.collecting, identity, sites, source, job.recipe)
            samples, source = _first_samples(job, source, saved)
            rescaling = rescale(model, layout.sites, job.recipe, samples, saved, job.collecting.threads)
        with watch.stage("calibrate"):
            observation = _observe(job, model, identity, layout, source, saved, rescaling)
            _check_preparation(job, original.result(), samples, observation)
    with watch.stage("plan"):
        reference = model.clone() if job.recipe.refinement is not None else model
        _rewrite(model, target.substitutions, layout, notes)
        plan = make_plan(model, layout, observation.statistics, job.recipe)
        unsettled = target.constrain(model, plan, job.recipe.without)
        _rewrite(model, target.corrections, layout, notes)
    with watch.stage("refine"):
        refined = _refine(job, model, reference, plan, samples)
        tensors = describe_constants(model, plan)
    with watch.stage("emit"):
        emitted = write_plan(model, plan, job.recipe)
    with watch.stage("measure"):
        before = original.result() if rescaling.changed else None
        fidelity = _measure(job, model, before, observation, {name: emitted.rounded[name] for name in sites})
        tensors += describe_activations(plan, observation.statistics, fidelity.tensors if fidelity else {})
    with watch.stage("save"):
        final, left = last_form(emitted, plan, job.recipe)
        notes.declined += left
        proto, written = store(final, job.output)
    calibration = _calibration(job, source, observation)
    nodes = list(layout.decisions.values())
    return Report(
        source=name_of(job.model),
        output=None if job.output is None else str(job.output),
        recipe=job.recipe,
        nodes=nodes,
        tensors=tensors,
        changes=notes.changes,
        declined=notes.declined,
        moves=plan.moves,
        equalization=rescaling.equalization,
        smoothing=rescaling.smoothing,
        refined=refined,
        calibration=calibration,
        fidelity=fidelity,
        in_sample=observation.in_sample,
        dry_run=False,
        bytes_before=stored_bytes(job.model),
        bytes_after=written,
        seconds=watch.seconds,
        warnings=warnings_for(calibration, nodes, notes, tensors, fidelity, observation.in_sample)
        + unrefined
        + unsettled
        + observation.notes
        + emitted.warnings,
        suggestions=[] if fidelity is None else suggestions_for(fidelity, calibration, tensors, nodes, job.recipe),
        model=proto,
    )


def _check_recipe(recipe: Recipe, selection: Selection) -> Target:
    """The target; UsageError where parts of the recipe contradict each other, or what the user selected."""
    if recipe.format == "bfloat16" and selection != Selection():
        raise UsageError(
            "Format bfloat16 computes the whole model in bfloat16: leave --include, --exclude, --op-types, --from and "
            "--to out, or choose format cast."
        )
    target = with_steps(find_target(recipe.target), recipe)
    check_formats(recipe)
    check_methods(recipe)
    check_operator_types(recipe)
    check_refinement(recipe)
    target.check(recipe)
    return target


def _load(job: Job) -> ir.Model:
    """The float model; and nothing that will be written stands in the way."""
    model = load(job.model, job.recipe.least_opset)
    _refuse_quantized(model, name_of(job.model))
    check_operators(model)
    if job.output is not None:
        check_output(job.output, *([] if isinstance(job.model, onnx.ModelProto) else files_of(Path(job.model))))
    if job.collecting.save is not None:
        check_output(job.collecting.save, job.output)
    return model


def _prepare(job: Job, model: ir.Model, target: Target) -> tuple[Layout, Notes]:
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


def _without_data(job: Job, layout: Layout) -> tuple[Job, list[str]]:
    """Where there is no data and no format needs any, what would learn from it is left out; and what to say then."""
    refinement = job.recipe.refinement
    if job.calibration is not None or refinement is None or _needs_any(layout):
        return job, []
    name = type(refinement).__name__
    said = f"{name} was left out: it needs data, which the rest of the recipe does not. Give --calib."
    return replace(job, recipe=job.recipe.replace(refinement=None)), [said]


def _open(job: Job, model: ir.Model, layout: Layout) -> Source | None:
    """The data; None where none is needed, because nothing runs or because its statistics are known already."""
    if (job.collecting.needs_identity or job.collecting.executor is not None) and not _needs_any(layout):
        raise UsageError(
            f"Recipe {job.recipe.name} needs no statistics of activations here: leave --stats, --save-stats, --workers "
            "and --dask out."
        )
    if job.calibration is None and (job.dry_run or job.collecting.reuse is not None):
        return None
    return open_source(
        job.calibration,
        input_specs(model),
        preprocess=job.preprocess,
        limit=job.limit,
        reserve=HELD_OUT,
        seed=job.seed,
        batch=job.batch,
    )


def _observed(layout: Layout) -> list[str]:
    """The activation sites that are looked at: those that share no other's parameters."""
    return [site.value for site in layout.of_role(Role.ACTIVATION) if layout.leader(site.value) == site.value]


def _needs_any(layout: Layout) -> bool:
    """Whether any format needs statistics."""
    return any(needs_statistics(layout, layout.sites[name]) for name in _observed(layout))


class _Original:
    """The model as it was given, ready to run on samples of the prepared one."""

    def __init__(self, job: Job) -> None:
        original = read(job.model)
        self._types = {str(each.name): each.dtype.numpy() for each in original.graph.inputs if each.dtype is not None}
        self._runner = Runner(original)

    def __call__(self, sample: Sample) -> dict[str, npt.NDArray[Any]]:
        """All outputs by name."""
        feeds = {name: array.astype(self._types.get(name, array.dtype)) for name, array in sample.feeds.items()}
        return dict(zip(self._runner.outputs, self._runner(feeds, sample.origin), strict=True))


def _first_samples(
    job: Job, source: Source | None, saved: StatisticsFile | None
) -> tuple[list[PendingSample], Source | None]:
    """The samples that equalization and refinement look at, and the source to go on with."""
    recipe = job.recipe
    needed = recipe.refinement.samples if recipe.refinement is not None else 0
    if (recipe.equalize or recipe.smooth is not None) and saved is None:
        needed = max(needed, EQUALIZING_SAMPLES)
    if not needed:
        return [], source
    if source is None:
        raise UsageError(
            f"{type(recipe.refinement).__name__} looks at samples, and statistics have none: give --calib beside "
            "--stats, or --refine none."
        )
    return peek(source, needed)


def _observe(
    job: Job,
    model: ir.Model,
    identity: str | None,
    layout: Layout,
    source: Source | None,
    saved: StatisticsFile | None,
    rescaling: Rescaling,
) -> Observation:
    """The statistics, from a file or counted now; those are kept where that was asked for.

    Where no format needs any, nothing is counted.
    """
    how, sites = job.collecting, _observed(layout)
    if saved is not None:
        return recall(model, sites, source, saved, providers=how.providers)
    assert source is not None, "without statistics there is data"
    if not _needs_any(layout):
        return look(model, sites, source, providers=how.providers)
    observation = collect(how, model, sites, source, job.recipe, job.progress)
    keep(how, identity, source, observation, job.recipe, rescaling)
    return observation


def _check_preparation(
    job: Job, original: _Original, samples: Sequence[PendingSample], observation: Observation
) -> None:
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


def _refine(
    job: Job, model: ir.Model, reference: ir.Model, plan: Plan, samples: Sequence[PendingSample]
) -> Sequence[LayerReport]:
    """Choose weights and biases anew, so that `model` answers as `reference`, which has no rewrites of a device."""
    refinement = job.recipe.refinement
    if refinement is None:
        return ()
    chosen = samples[: refinement.samples]
    return refine(model, reference, plan, refinement, chosen, threads=job.collecting.threads, progress=job.progress)


def _measure(
    job: Job, model: ir.Model, original: _Original | None, observation: Observation, sites: Mapping[str, str]
) -> Fidelity | None:
    """How close the quantized model is to float; None where there is no data to measure with."""
    if observation.runner is None:
        return None
    return measure_fidelity(
        observation.runner,
        model,
        sites,
        observation.measured_on,
        original=original,
        threads=job.collecting.threads,
        progress=job.progress,
    )


def _rewrite(model: ir.Model, steps: Sequence[type[NodePass]], layout: Layout, notes: Notes) -> None:
    """Rewrites that the target or the recipe asks for, on quantized nodes only."""
    passes = [step(layout.quantizes) for step in steps]
    notes.changes += prepare(model, passes)
    notes.declined += [note for step in passes for note in step.declined]


def _calibration(job: Job, source: Source | None, observation: Observation) -> Calibration:
    described = observation.described
    if job.collecting.reuse is not None:
        described = f"the statistics in {job.collecting.reuse} ({described})"
    preprocess = source.preprocess.to_dict() if source is not None and source.preprocess else None
    note = "" if source is None else source.note
    return Calibration(described, observation.samples, source is not None and source.random, preprocess, note)


def _preview(job: Job, layout: Layout, notes: Notes, source: Source | None, seconds: Mapping[str, float]) -> Report:
    """The report of a dry run: every decision that needs no data."""
    unseen = None if source is None else Observation({}, None, source.length or 0, source.describe)
    return Report(
        source=name_of(job.model),
        output=None,
        recipe=job.recipe,
        nodes=list(layout.decisions.values()),
        tensors=(),
        changes=notes.changes,
        declined=notes.declined,
        moves=(),
        equalization=None,
        smoothing=None,
        refined=(),
        calibration=None if unseen is None else _calibration(job, source, unseen),
        fidelity=None,
        in_sample=False,
        dry_run=True,
        bytes_before=stored_bytes(job.model),
        bytes_after=None,
        seconds=seconds,
    )
