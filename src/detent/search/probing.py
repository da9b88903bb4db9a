"""From a float model to its sensitivity: the stages of a run up to the plan, and then variants of it.

Nothing is refined. A refinement repairs in one layer what those before it did, so no error could be told to be its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from detent.device_check.check import placement
from detent.errors import UsageError
from detent.evaluation.fidelity import shown_parts
from detent.graph.load import name_of
from detent.observe.shards import divisible
from detent.pipeline.job import Job
from detent.pipeline.planned import Planned
from detent.pipeline.run import Run
from detent.results.searched import SensitivityReport, Way
from detent.search.proposal import check_way, propose
from detent.sensitivity_analysis.layer_errors import sensitivity
from detent.sensitivity_analysis.workers import SampleWorkers
from detent.tasks.parts import OutputPart

SAMPLES = 32


def parts_of(planned: Planned) -> Mapping[str, Sequence[OutputPart]]:
    """Return what the outputs of a planned model are joined from, as the graph or else the first sample tells."""
    observed, prepared = planned.observed, planned.observed.prepared
    shown = shown_parts(prepared.purpose, observed.original(planned.probes[0].load())) if planned.probes else {}
    return shown | dict(prepared.parts)


def unrefined(job: Job, count: int = SAMPLES, executor: Any = None) -> Job:
    """Return the job whose planned stage is measured: without refinement, with `count` samples at hand.

    With an `executor`, on which samples will be measured, what has to be counted is counted there.
    """
    if job.calibration is None:
        raise UsageError("What a layer's rounding does at the output depends on the data: give calibration data.")
    if job.recipe.dynamic:
        raise UsageError(
            f"Recipe {job.recipe.name} finds the scales of activations while the model runs, which cannot be measured "
            "layer by layer. Choose one with calibrated scales, such as A8W8."
        )
    if executor is not None:
        job = replace(job, options={**job.options, "executor": executor}, measures=True)
    return replace(job, recipe=job.recipe.replace(refinement=None, search_ranges=False), probes=count)


def probe(
    job: Job,
    *,
    count: int = SAMPLES,
    exact: bool = False,
    wanted: float | None = None,
    way: Way = "exclude",
    executor: Any = None,
) -> SensitivityReport:
    """Measure the sensitivity of every layer of a model under a recipe, on up to `count` samples.

    With a `wanted` error, noise power over signal power, also a recipe that should reach it. With an `executor`,
    samples are counted and measured on its workers; the result is the same.
    """
    if wanted is not None:
        check_way(job.recipe, way)
    run = Run(unrefined(job, count, executor))
    source = run.prepared.source
    assert source is not None, "there is data"
    if executor is not None:
        divisible(source)  # refused before anything is computed
    planned = run.planned
    found = sensitivity(
        planned.model,
        planned.plan,
        planned.probes,
        parts=parts_of(planned),
        exact=exact,
        threads=job.collecting.threads,
        workers=None if executor is None else SampleWorkers(executor, source),
        progress=job.progress,
    )
    proposal = None if wanted is None else propose(found, planned.plan.layout, job.recipe, wanted, way)
    name = name_of(job.model)
    leaves_float = proposal is not None and proposal.way == "exclude" and proposal.nodes
    device = placement(planned.model, job.recipe, proposal.recipe, name) if proposal and leaves_float else None
    return SensitivityReport(name, job.recipe, found, proposal, source.describe, source.note, device)
