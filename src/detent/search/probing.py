"""The way from a float model to its sensitivity: that of a quantization up to the plan, and then variants of it.

    load -> prepare -> lay out -> equalize -> observe -> plan -> constrain -> probe

Nothing is refined. A refinement repairs in one layer what those before it did, so no error could be told to be its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from detent.device_check.check import placement
from detent.errors import UsageError
from detent.graph.load import name_of
from detent.observe.fingerprint import fingerprint_of
from detent.observe.peek import peek
from detent.observe.samples import PendingSample
from detent.observe.shards import divisible
from detent.observe.sources import Source
from detent.observe.sweep import Observation
from detent.pipeline.calibrate import saved_statistics
from detent.pipeline.job import Job
from detent.pipeline.opening import check_recipe, load_float, prepare_model
from detent.pipeline.planning import decide, first_samples, needs_any, observe, observed_sites, open_data
from detent.pipeline.rescaling import rescale
from detent.plan.plan import Plan
from detent.recipe import Recipe
from detent.report.sensitivity_view import SensitivityReport
from detent.sensitivity_analysis.layers import sensitivity
from detent.sensitivity_analysis.proposal import Way, check_way, propose
from detent.sensitivity_analysis.workers import Spread

SAMPLES = 32


@dataclass(frozen=True, eq=False)
class Ready:
    """A float model as it will be quantized, the plan for it, and samples of the source to measure with."""

    model: ir.Model
    plan: Plan
    samples: list[PendingSample]
    source: Source
    observation: Observation
    recipe: Recipe


def make_ready(job: Job, count: int = SAMPLES, executor: Any = None) -> Ready:
    """Bring a model to a plan, unrefined, with `count` samples to measure with. Nothing is written.

    With an `executor`, on which samples will be measured, what has to be counted is counted there.
    """
    if job.calibration is None:
        raise UsageError("What a layer's rounding does at the output depends on the data: give calibration data.")
    if job.recipe.dynamic:
        raise UsageError(
            f"Recipe {job.recipe.name} finds the scales of activations while the model runs, which cannot be measured "
            "layer by layer. Choose one with calibrated scales, such as A8W8."
        )
    job = replace(job, recipe=job.recipe.replace(refinement=None, search_ranges=False))
    target = check_recipe(job.recipe, job.selection)
    job.progress("load", 0, None)
    model = load_float(job)
    identity = fingerprint_of(model) if job.collecting.needs_identity else None
    job.progress("prepare", 0, None)
    layout, notes = prepare_model(job, model, target)
    if executor is not None and job.collecting.reuse is None and needs_any(layout):
        job = replace(job, collecting=replace(job.collecting, executor=executor))
    source = open_data(job, model, layout)
    assert source is not None, "there is data"
    if executor is not None:
        divisible(source)  # refused before anything is computed
    chosen, source = peek(source, count)
    saved = saved_statistics(job.collecting, identity, observed_sites(layout), source, job.recipe)
    samples, again = first_samples(job, source, saved)
    job.progress("equalize", 0, None)
    rescaling = rescale(model, layout.formats, job.recipe, samples, saved, job.collecting.threads)
    observation = observe(job, model, identity, layout, again, saved, rescaling)
    plan, _, _ = decide(model, layout, target, observation, job.recipe, notes)
    return Ready(model, plan, chosen, source, observation, job.recipe)


def probe(
    job: Job,
    *,
    count: int = SAMPLES,
    exact: bool = False,
    wanted: float | None = None,
    way: Way = "exclude",
    executor: Any = None,
) -> SensitivityReport:
    """The sensitivity of every layer of a model under a recipe, on up to `count` samples.

    With a `wanted` error, noise power over signal power, also a recipe that should reach it. With an `executor`,
    samples are counted and measured on its workers; the result is the same.
    """
    if wanted is not None:
        check_way(job.recipe, way)
    ready = make_ready(job, count, executor)
    found = sensitivity(
        ready.model,
        ready.plan,
        ready.samples,
        exact=exact,
        threads=job.collecting.threads,
        spread=None if executor is None else Spread(executor, ready.source),
        progress=job.progress,
    )
    proposal = None if wanted is None else propose(found, ready.plan.layout, job.recipe, wanted, way)
    source = name_of(job.model)
    leaves_float = proposal is not None and proposal.way == "exclude" and proposal.nodes
    device = placement(ready.model, job.recipe, proposal.recipe, source) if proposal and leaves_float else None
    return SensitivityReport(source, job.recipe, found, proposal, ready.source.describe, ready.source.note, device)
