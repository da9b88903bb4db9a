"""The fourth stage: weights, biases and ranges chosen by what they do to the answers; resumed after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detent.pipeline.observed import Observed
from detent.pipeline.planned import Planned
from detent.pipeline.prepared import Stopwatch
from detent.plan.plan import Plan
from detent.refine.layers import LayerReport
from detent.refine.ranges import search_ranges
from detent.refine.refine import refine
from detent.refine.refinement_checkpoint import RefinementCheckpoint, identity_of
from detent.results.tensors import TensorReport, describe_constants


@dataclass(frozen=True, eq=False)
class Refined:
    """The final plan, what was done to each layer, and the tensors of constants as they will be encoded."""

    planned: Planned
    plan: Plan
    layers: Sequence[LayerReport]
    constants: Sequence[TensorReport]
    warnings: Sequence[str]


def refine_plan(planned: Planned, watch: Stopwatch) -> Refined:
    """Choose weights, biases and ranges so that the planned model answers as the observed one."""
    observed, plan, model = planned.observed, planned.plan, planned.model
    job, samples, reference = observed.prepared.job, observed.samples, observed.prepared.model
    refinement, threads = job.recipe.refinement, job.collecting.threads
    constrain = planned.rules if job.recipe.search_ranges else None
    layers: Sequence[LayerReport] = ()
    with watch.step("refine"):
        checkpoint = _checkpoint(planned)
        if refinement is not None:
            layers = refine(
                model,
                reference,
                plan,
                refinement,
                samples[: refinement.samples],
                constrain=constrain,
                threads=threads,
                memory=job.memory,
                permits=planned.rules.permit,
                checkpoint=checkpoint,
                progress=job.progress,
            )
        elif constrain is not None:
            search_ranges(model, reference, plan, constrain, samples, threads)
        constants = describe_constants(model, plan)
    return Refined(planned, plan, layers, constants, [] if checkpoint is None else list(checkpoint.notes))


def _checkpoint(planned: Planned) -> RefinementCheckpoint | None:
    """Return what continues an interrupted refinement.

    None if it takes only seconds, or if the data is a stream, which may give other samples the next time.
    """
    observed: Observed = planned.observed
    job, source, samples = observed.prepared.job, observed.source, observed.samples
    refinement, file = job.recipe.refinement, job.refinement_file
    if refinement is None or not refinement.learns_weights or file is None:
        return None
    if source is None or source.fingerprint is None:
        return None
    described = [source.fingerprint, *(sample.origin for sample in samples)]
    models = (planned.model, observed.prepared.model)
    checkpoint = RefinementCheckpoint(
        file, identity_of(models, planned.plan, refinement, repr(described), len(samples), job.memory)
    )
    checkpoint.resume()
    return checkpoint
