"""The whole way from a float model to a quantized one, top to bottom.

    load -> prepare -> lay out -> equalize -> observe -> plan -> constrain -> refine
         -> emit -> verify -> measure -> check for the device -> save

Decisions are made on the plan, weights are encoded once at emission, and nothing is written before everything held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from detent.device_check.check import check_graph
from detent.device_check.findings import DeviceCheck
from detent.devices.catalog import device_of
from detent.evaluation.fidelity import Fidelity, measure_fidelity
from detent.observe.fingerprint import fingerprint_of
from detent.observe.samples import PendingSample
from detent.observe.statistics_file import StatisticsFile
from detent.observe.sweep import Observation
from detent.pipeline.calibrate import saved_statistics
from detent.pipeline.job import Job
from detent.pipeline.opening import Original, check_preparation, check_recipe, load_float, prepare_model
from detent.pipeline.planning import decide, first_samples, needs_any, observe, observed_sites, open_data
from detent.pipeline.refining import keeper_of, notes_of, refine_plan
from detent.pipeline.reporting import advised, calibrated, decided, foreseen
from detent.pipeline.rescaling import Rescaling, rescale
from detent.pipeline.writing import last_form, store, write_plan
from detent.plan.layout import Layout
from detent.progress import Progress
from detent.recipe import Recipe
from detent.report.pictures import ChannelSizes, Pictures, channel_magnitudes, channel_sizes, distributions_of
from detent.report.report import Report
from detent.report.tensors import describe_activations, describe_constants


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
        return decided(job, layout, notes, foreseen(job, source), watch.seconds)
    sites = observed_sites(layout)
    with ThreadPoolExecutor(1) as meanwhile:
        original = meanwhile.submit(Original, job)
        with watch.stage("equalize"):
            saved = saved_statistics(job.collecting, identity, sites, source, job.recipe)
            samples, source = first_samples(job, source, saved)
            rescaling, channels = _rescale(job, model, layout, samples, saved)
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
    with watch.stage("save"):
        final, left = last_form(emitted, plan, job.recipe)
        notes.declined += left
        taken = _check_for_device(final, job.recipe)
        proto, written = store(final, job.output)
    calibration = calibrated(job, source, observation)
    done = replace(
        decided(job, layout, notes, calibration, watch.seconds),
        tensors=tensors,
        moves=plan.moves,
        equalization=rescaling.equalization,
        smoothing=rescaling.smoothing,
        absorption=rescaling.absorption,
        refined=refined,
        fidelity=fidelity,
        in_sample=observation.in_sample,
        bytes_after=written,
        warnings=[*unrefined, *unsettled, *observation.notes, *notes_of(keeper), *emitted.warnings],
        device=taken,
        pictures=Pictures(distributions_of(plan, observation.statistics), channels),
        model=proto,
    )
    return advised(done, calibration, notes)


def _without_data(job: Job, layout: Layout) -> tuple[Job, list[str]]:
    """Where there is no data and no format needs any, what would learn from it is left out; and what to say then."""
    refinement = job.recipe.refinement
    if job.calibration is not None or not job.recipe.learns or needs_any(layout):
        return job, []
    name = "The search for ranges" if refinement is None else type(refinement).__name__
    said = f"{name} was left out: it needs data, which the rest of the recipe does not. Give --calib."
    return replace(job, recipe=job.recipe.replace(refinement=None, search_ranges=False)), [said]


def _rescale(
    job: Job, model: ir.Model, layout: Layout, samples: Sequence[PendingSample], saved: StatisticsFile | None
) -> tuple[Rescaling, Mapping[str, ChannelSizes]]:
    """Rescale the channels of the model; also how large they were before and are now."""
    before = channel_magnitudes(model, layout)
    rescaling = rescale(model, layout.formats, job.recipe, samples, saved, job.collecting.threads)
    return rescaling, channel_sizes(before, channel_magnitudes(model, layout))


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
        emulate=job.recipe.emulated,
        threads=job.collecting.threads,
        progress=job.progress,
    )


def _check_for_device(final: ir.Model, recipe: Recipe) -> DeviceCheck | None:
    """Whether the recipe's device takes the model; None where it has none that is known."""
    device = device_of(recipe)
    return check_graph(final, device, "the quantized model") if device.takes_models_of(recipe) else None
