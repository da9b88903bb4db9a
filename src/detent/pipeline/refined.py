"""The fourth stage: weights, biases and ranges chosen by what they do to the answers; resumed after an interruption.

No step may make the result worse. What a refinement makes of every layer is better there, on samples that it did not
learn from, and still the whole may be worse. So the plan without it is a candidate too, and so is bias correction alone
if the refinement chooses weights. Each is judged on samples that none of them learned from (`pipeline.judged`), and the
one whose answers are closest is taken. The scores of a detector are shifted before that, if that helps on the same
samples (see `refine.score_heads`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.evaluation.box_answers import LEAST_SCORE, detections_of
from detent.graph.session import return_memory
from detent.observe.samples import PendingSample
from detent.pipeline.emitted import OpenedForm
from detent.pipeline.judged import FIRST_LOOK, JUDGING_SAMPLES, Closest, JudgedOutputs, only_counted
from detent.pipeline.observed import Observed
from detent.pipeline.planned import Planned
from detent.pipeline.prepared import Stopwatch
from detent.plan.plan import Plan
from detent.refine.layers import LayerReport, find_layers
from detent.refine.problems import FindObjects
from detent.refine.ranges import SAMPLES as RANGE_SAMPLES
from detent.refine.ranges import search_ranges
from detent.refine.refine import RefinementCheckpoint, bias_of, identity_of, refine, with_bias
from detent.refine.score_heads import ScoreLogits, score_heads
from detent.refinements import BiasCorrection, Refinement
from detent.results.tensors import TensorReport, describe_constants
from detent.tasks import Task
from detent.tasks.purpose import Purpose


@dataclass(frozen=True, eq=False)
class Refined:
    """The final plan, what was done to each layer, and the tensors of constants as they will be encoded.

    `opened` is the plan as it was written and run to be judged; None if there was nothing to judge.
    """

    planned: Planned
    plan: Plan
    layers: Sequence[LayerReport]
    constants: Sequence[TensorReport]
    warnings: Sequence[str]
    opened: OpenedForm | None = None


@dataclass(frozen=True, eq=False)
class PlanCandidate:
    """A plan that may be the final one, what made it, what became of each layer, and the logits of score heads."""

    name: str
    plan: Plan
    layers: Sequence[LayerReport] = ()
    logits: ScoreLogits | None = None


def refine_plan(planned: Planned, watch: Stopwatch) -> Refined:
    """Choose weights, biases and ranges so that the planned model answers as the observed one."""
    job = planned.observed.prepared.job
    refinement = job.recipe.refinement
    with watch.step("refine"):
        checkpoint = _checkpoint(planned)
        refines = refinement is not None or job.recipe.search_ranges
        judged = _judged(planned) if refines else None
        candidates = [PlanCandidate("no refinement", planned.plan)]
        if refines:
            candidates.append(_refined(planned, refinement, checkpoint, ranges=job.recipe.search_ranges))
        if refinement is not None and refinement.learns_weights and judged is not None:
            candidates.insert(1, _refined(planned, BiasCorrection(), None, ranges=False))
        return_memory(collect=False)  # that of the layers' targets, before models are opened
        best, notes = candidates[-1], list[str]()
        if judged is not None:
            # On a tie the later one is taken: what was asked for, and scores as they are.
            candidates = [shown for each in candidates for shown in (*_with_shifted_scores(each), each)]
            best, notes = _best(judged.closest(planned.model, [each.plan for each in candidates]), candidates)
        constants = describe_constants(planned.model, best.plan)
    notes += [] if checkpoint is None else list(checkpoint.notes)
    opened = None if judged is None else judged.opened(best.plan)
    return Refined(planned, best.plan, best.layers, constants, notes, opened)


def _judged(planned: Planned) -> JudgedOutputs | None:
    """Return what to judge by; None without samples. The given model is needed no longer then."""
    observed, others = planned.observed, _not_learned_from(planned)
    if not others:
        return None
    judged = JudgedOutputs(observed.prepared, observed.original, others)
    measured = [*observed.observation.measured_on, *only_counted(observed)[0]] if observed.rescaling.changed else []
    observed.original.keep([*judged.samples[:FIRST_LOOK], *measured])
    return judged


def _not_learned_from(planned: Planned) -> list[PendingSample]:
    """Return the samples to judge on: those held out, and of few the ones that the refinement does not look at.

    Ranges are from all samples, but they are the same for all candidates.
    """
    observed = planned.observed
    if observed.observation.runner is None:
        return []
    refinement = planned.job.recipe.refinement
    learned = RANGE_SAMPLES if refinement is None else max(refinement.samples, BiasCorrection().samples)
    return [*observed.observation.measured_on, *observed.samples[learned:]]


def _refined(
    planned: Planned, refinement: Refinement | None, checkpoint: RefinementCheckpoint | None, *, ranges: bool
) -> PlanCandidate:
    """Refine the plan."""
    observed, model, plan = planned.observed, planned.model, planned.plan
    job, samples, reference = observed.prepared.job, observed.samples, observed.prepared.model
    constrain = planned.rules if ranges else None
    if refinement is None:
        assert constrain is not None, "there is something to refine"
        ranged = search_ranges(model, reference, plan, constrain, samples, job.collecting.threads)
        return PlanCandidate("The search for ranges", ranged)
    found, _ = find_layers(model, plan.layout)
    heads = score_heads(model, found)
    logits = ScoreLogits(heads, JUDGING_SAMPLES) if heads else None
    plan, layers = refine(
        model,
        reference,
        plan,
        refinement,
        samples[: refinement.samples],
        constrain=constrain,
        threads=job.collecting.threads,
        memory=job.memory,
        permits=planned.rules.permit,
        checkpoint=checkpoint,
        find_objects=_finder(observed.prepared.purpose),
        logits=logits,
        progress=job.progress,
    )
    return PlanCandidate(refinement.name + (" with the search for ranges" if ranges else ""), plan, layers, logits)


def _finder(purpose: Purpose) -> FindObjects | None:
    """Return what finds the objects in a detector's outputs; None for other models."""
    if purpose.task is not Task.DETECT:
        return None

    def find(outputs: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[np.floating]]:
        try:
            found = detections_of(purpose, outputs)
        except ValueError:  # a layout that is not known
            return []
        height, width = purpose.image or (1, 1)
        return [each.above(LEAST_SCORE).boxes / np.array([width, height] * 2) for each in found]

    return find


def _best(found: Closest, candidates: Sequence[PlanCandidate]) -> tuple[PlanCandidate, list[str]]:
    """Return the candidate with the least error at the outputs, and say so if that is not the one asked for."""
    best, wanted = candidates[found.best], candidates[-1]
    if best.name == wanted.name:
        return best, []
    instead = "without it" if best is candidates[0] else f"with {best.name} alone"
    error, least = found.pairs[-1]
    return best, [
        f"{wanted.name} was taken back: on {found.samples[-1]} samples that it did not learn from, the error of the "
        f"answers was {error:.3g} with it and {least:.3g} {instead}. More calibration samples may help it."
    ]


def _with_shifted_scores(candidate: PlanCandidate) -> list[PlanCandidate]:
    """Return the candidate with the logits of scores shifted, if there are any that should be."""
    plan, logits = candidate.plan, candidate.logits
    shifts = [] if logits is None else logits.shifts()
    if logits is None or not any(shifts):
        return []
    notes = {}
    for head, shift in zip(logits.heads, shifts, strict=True):
        plan, saturated = with_bias(head.layer, plan, head.shifted(bias_of(head.layer, plan), shift))
        notes[head.layer.name] = [f"scores shifted by {shift:+.2f}", saturated]
    layers = [
        replace(each, note="; ".join(filter(None, (each.note, *notes.get(each.name, ()))))) for each in candidate.layers
    ]
    return [replace(candidate, plan=plan, layers=layers)]


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
