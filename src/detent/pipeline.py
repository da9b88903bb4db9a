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

import onnx_ir as ir

from detent.calibrate import collect, keep, refinement_beside, saved_statistics
from detent.errors import UsageError
from detent.graph.load import name_of, stored_bytes
from detent.measure.fidelity import Fidelity, measure_fidelity
from detent.observe.fingerprint import fingerprint_of
from detent.observe.inputs import input_specs
from detent.observe.peek import peek
from detent.observe.samples import PendingSample
from detent.observe.sources import Source, open_source
from detent.observe.statistics_file import StatisticsFile
from detent.observe.sweep import Observation, look, recall
from detent.opening import Job, Original, check_preparation, check_recipe, load_float, prepare_model
from detent.plan.layout import Layout, Role
from detent.plan.plan import Plan, make_plan, needs_statistics
from detent.prepare import prepare
from detent.progress import Progress
from detent.recipe import EQUALIZING_SAMPLES
from detent.refine.checkpoint import Keeper, identity_of
from detent.refine.layers import LayerReport
from detent.refine.refine import refine
from detent.refinements import BiasCorrection
from detent.report.advice import suggestions_for, warnings_for
from detent.report.report import Calibration, Notes, Report
from detent.report.tensors import describe_activations, describe_constants
from detent.rescaling import Rescaling, rescale
from detent.targets.dpu import NodePass
from detent.targets.target import Target
from detent.writing import last_form, store, write_plan

HELD_OUT = 16
"""Samples kept back to measure the result with, where the data has any to spare."""


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
    target = check_recipe(job.recipe, job.selection)
    watch = _Stopwatch(job.progress)
    with watch.stage("load"):
        model = load_float(job)
        identity = fingerprint_of(model) if job.collecting.needs_identity else None
    with watch.stage("prepare"):
        layout, notes = prepare_model(job, model, target)
        job, unrefined = _without_data(job, layout)
    source = _open(job, model, layout)
    if job.dry_run:
        return _preview(job, layout, notes, source, watch.seconds)
    sites = _observed(layout)
    with ThreadPoolExecutor(1) as meanwhile:
        original = meanwhile.submit(Original, job)
        with watch.stage("equalize"):
            saved = saved_statistics(job.collecting, identity, sites, source, job.recipe)
            samples, source = _first_samples(job, source, saved)
            rescaling = rescale(model, layout.sites, job.recipe, samples, saved, job.collecting.threads)
        with watch.stage("calibrate"):
            observation = _observe(job, model, identity, layout, source, saved, rescaling)
            check_preparation(job, original.result(), samples, observation)
    with watch.stage("plan"):
        reference = model.clone() if job.recipe.refinement is not None else model
        _rewrite(model, target.substitutions, layout, notes)
        plan = make_plan(model, layout, observation.statistics, job.recipe)
        unsettled = target.constrain(model, plan, job.recipe.without)
        _rewrite(model, target.corrections, layout, notes)
    with watch.stage("refine"):
        keeper = _keeper(job, source, model, reference, plan, samples)
        refined = _refine(job, target, model, reference, plan, samples, keeper)
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
        + ([] if keeper is None else keeper.notes)
        + emitted.warnings,
        suggestions=[] if fidelity is None else suggestions_for(fidelity, calibration, tensors, nodes, job.recipe),
        model=proto,
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


def _refine(
    job: Job,
    target: Target,
    model: ir.Model,
    reference: ir.Model,
    plan: Plan,
    samples: Sequence[PendingSample],
    keeper: Keeper | None,
) -> Sequence[LayerReport]:
    """Choose weights and biases anew, so that `model` answers as `reference`, which has no rewrites of a device."""
    refinement = job.recipe.refinement
    if refinement is None:
        return ()
    chosen = samples[: refinement.samples]
    return refine(
        model,
        reference,
        plan,
        refinement,
        chosen,
        threads=job.collecting.threads,
        memory=job.memory,
        permits=lambda node, trial: target.permits(node, trial, job.recipe.without),
        keeper=keeper,
        progress=job.progress,
    )


def _keeper(
    job: Job,
    source: Source | None,
    model: ir.Model,
    reference: ir.Model,
    plan: Plan,
    samples: Sequence[PendingSample],
) -> Keeper | None:
    """What goes on where an interrupted refinement stopped. None where it takes seconds, or where the data is a stream,
    which may give other samples the next time.
    """
    refinement = job.recipe.refinement
    if refinement is None or isinstance(refinement, BiasCorrection) or job.output is None:
        return None
    if job.collecting.checkpoint is None or source is None or source.fingerprint is None:
        return None
    described = [source.fingerprint, *(sample.origin for sample in samples)]
    identity = identity_of((model, reference), plan, refinement, repr(described), len(samples), job.memory)
    keeper = Keeper(refinement_beside(job.output), identity)
    keeper.resume()
    return keeper


def _measure(
    job: Job, model: ir.Model, original: Original | None, observation: Observation, sites: Mapping[str, str]
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
