"""The whole way from a float model to a quantized one, top to bottom.

    load -> prepare -> lay out -> equalize -> observe -> plan -> constrain -> refine
         -> emit -> verify -> measure -> check for the device -> save

Decisions are made on the plan, weights are encoded once at emission, and nothing is written before everything held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from detent.calibrate import saved_statistics
from detent.graph.load import name_of, stored_bytes
from detent.job import Job
from detent.measure.device_check import check_graph
from detent.measure.fidelity import Fidelity, measure_fidelity
from detent.observe.fingerprint import fingerprint_of
from detent.observe.sources import Source
from detent.observe.sweep import Observation
from detent.opening import Original, check_preparation, check_recipe, load_float, prepare_model
from detent.plan.layout import Layout
from detent.planning import decide, first_samples, needs_any, observe, observed_sites, open_data
from detent.progress import Progress
from detent.refining import keeper_of, notes_of, refine_plan
from detent.report.advice import suggestions_for, warnings_for
from detent.report.pictures import Pictures, channel_magnitudes, channel_sizes, distributions_of
from detent.report.report import Calibration, Notes, Report
from detent.report.tensors import describe_activations, describe_constants
from detent.rescaling import rescale
from detent.targets.support import device_of
from detent.writing import last_form, store, write_plan


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
    source = open_data(job, model, layout)
    if job.dry_run:
        unseen = None if source is None else Observation({}, None, source.length or 0, source.describe)
        foreseen = None if unseen is None else _calibration(job, source, unseen)
        return _decided(job, layout, notes, foreseen, watch.seconds)
    sites = observed_sites(layout)
    with ThreadPoolExecutor(1) as meanwhile:
        original = meanwhile.submit(Original, job)
        with watch.stage("equalize"):
            saved = saved_statistics(job.collecting, identity, sites, source, job.recipe)
            samples, source = first_samples(job, source, saved)
            unscaled = channel_magnitudes(model, layout)
            rescaling = rescale(model, layout.formats, job.recipe, samples, saved, job.collecting.threads)
            channels = channel_sizes(unscaled, channel_magnitudes(model, layout))
        with watch.stage("calibrate"):
            observation = observe(job, model, identity, layout, source, saved, rescaling)
            check_preparation(job, original.result(), samples, observation)
    with watch.stage("plan"):
        reference = model.clone() if job.recipe.learns else model
        plan, rules, unsettled = decide(model, layout, target, observation, job.recipe, notes)
    with watch.stage("refine"):
        keeper = keeper_of(job, source, model, reference, plan, samples)
        refined = refine_plan(job, rules, model, reference, plan, samples, keeper)
        tensors = describe_constants(model, plan)
    with watch.stage("emit"):
        emitted = write_plan(model, plan, job.recipe)
    with watch.stage("measure"):
        before = original.result() if rescaling.changed else None
        fidelity = _measure(job, model, before, observation, {name: emitted.rounded[name] for name in sites})
        tensors += describe_activations(plan, observation.statistics, fidelity.tensors if fidelity else {})
        pictures = Pictures(distributions_of(plan, observation.statistics), channels)
    with watch.stage("save"):
        final, left = last_form(emitted, plan, job.recipe)
        notes.declined += left
        device = device_of(job.recipe)
        taken = None if device is None else check_graph(final, device, "the quantized model")
        proto, written = store(final, job.output)
    calibration = _calibration(job, source, observation)
    nodes = list(layout.decisions.values())
    warnings = warnings_for(calibration, nodes, notes, tensors, fidelity, observation.in_sample)
    return replace(
        _decided(job, layout, notes, calibration, watch.seconds),
        output=None if job.output is None else str(job.output),
        tensors=tensors,
        moves=plan.moves,
        equalization=rescaling.equalization,
        smoothing=rescaling.smoothing,
        absorption=rescaling.absorption,
        refined=refined,
        fidelity=fidelity,
        in_sample=observation.in_sample,
        dry_run=False,
        bytes_after=written,
        warnings=[*warnings, *unrefined, *unsettled, *observation.notes, *notes_of(keeper), *emitted.warnings],
        suggestions=[] if fidelity is None else suggestions_for(fidelity, calibration, tensors, nodes, job.recipe),
        device=taken,
        pictures=pictures,
        model=proto,
    )


def _without_data(job: Job, layout: Layout) -> tuple[Job, list[str]]:
    """Where there is no data and no format needs any, what would learn from it is left out; and what to say then."""
    refinement = job.recipe.refinement
    if job.calibration is not None or not job.recipe.learns or needs_any(layout):
        return job, []
    name = "The search for ranges" if refinement is None else type(refinement).__name__
    said = f"{name} was left out: it needs data, which the rest of the recipe does not. Give --calib."
    return replace(job, recipe=job.recipe.replace(refinement=None, search_ranges=False)), [said]


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


def _calibration(job: Job, source: Source | None, observation: Observation) -> Calibration:
    described = observation.described
    if job.collecting.reuse is not None:
        described = f"the statistics in {job.collecting.reuse} ({described})"
    preprocess = source.preprocess.to_dict() if source is not None and source.preprocess else None
    note = "" if source is None else source.note
    return Calibration(described, observation.samples, source is not None and source.random, preprocess, note)


def _decided(
    job: Job, layout: Layout, notes: Notes, calibration: Calibration | None, seconds: Mapping[str, float]
) -> Report:
    """The report of every decision that needs no data: that of a dry run."""
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
        calibration=calibration,
        fidelity=None,
        in_sample=False,
        dry_run=True,
        bytes_before=stored_bytes(job.model),
        bytes_after=None,
        seconds=seconds,
    )
