"""From a plan to a better one: weights, biases and ranges chosen by what they do, and resumed after an interruption."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from detent.devices.device import Rules
from detent.observe.samples import PendingSample
from detent.observe.sources import Source
from detent.pipeline.calibrate import refinement_beside
from detent.pipeline.job import Job
from detent.plan.plan import Plan
from detent.refine.checkpoint import RefinementCheckpoint, identity_of
from detent.refine.layers import LayerReport
from detent.refine.ranges import search_ranges
from detent.refine.refine import refine


def refine_plan(
    job: Job,
    rules: Rules,
    model: ir.Model,
    reference: ir.Model,
    plan: Plan,
    samples: Sequence[PendingSample],
    keeper: RefinementCheckpoint | None,
) -> Sequence[LayerReport]:
    """Choose weights, biases and ranges so that `model` answers as `reference`, which has no rewrites of a device."""
    refinement, threads = job.recipe.refinement, job.collecting.threads
    constrain = rules if job.recipe.search_ranges else None
    if refinement is not None:
        return refine(
            model,
            reference,
            plan,
            refinement,
            samples[: refinement.samples],
            constrain=constrain,
            threads=threads,
            memory=job.memory,
            permits=rules.permit,
            checkpoint=keeper,
            progress=job.progress,
        )
    if constrain is not None:
        search_ranges(model, reference, plan, constrain, samples, threads)
    return ()


def keeper_of(
    job: Job,
    source: Source | None,
    model: ir.Model,
    reference: ir.Model,
    plan: Plan,
    samples: Sequence[PendingSample],
) -> RefinementCheckpoint | None:
    """What goes on where an interrupted refinement stopped. None where it takes seconds, or where the data is a stream,
    which may give other samples the next time.
    """
    refinement = job.recipe.refinement
    if refinement is None or not refinement.learns_weights or job.output is None:
        return None
    if job.collecting.checkpoint is None or source is None or source.fingerprint is None:
        return None
    described = [source.fingerprint, *(sample.origin for sample in samples)]
    identity = identity_of((model, reference), plan, refinement, repr(described), len(samples), job.memory)
    keeper = RefinementCheckpoint(refinement_beside(job.output), identity)
    keeper.resume()
    return keeper


def notes_of(keeper: RefinementCheckpoint | None) -> list[str]:
    """What a resumed refinement has to say."""
    return [] if keeper is None else list(keeper.notes)
