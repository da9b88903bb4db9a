"""The fourth stage: weights, biases and ranges chosen by what they do to the answers; resumed after an interruption.

No step may make the result worse. What a refinement makes of every layer is better there, on samples that it did not
learn from, and still the whole may be worse. So the plan without it is a candidate too, and so is bias correction alone
if the refinement chooses weights. Each is written into a copy of the model and run on samples that are held out, and
the one with the least error at the outputs is taken:

    error = mean over the parts of all outputs of  sum (quantized - float)^2 / sum float^2

Parts count alike, however large their numbers are: boxes of 0..640 do not outweigh scores of 0..1. The scores of a
detector are shifted before that, if that helps on the same samples (see `refine.score_heads`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.emit.emitter import emit
from detent.emulator.emulator import EmulatedValues
from detent.execute.inference import map_in_order
from detent.graph.session import Runner
from detent.observe.samples import PendingSample, Sample
from detent.pipeline.observed import Observed
from detent.pipeline.planned import Planned
from detent.pipeline.prepared import Stopwatch
from detent.plan.plan import Plan
from detent.refine.layers import LayerReport, find_layers
from detent.refine.ranges import search_ranges
from detent.refine.refine import bias_of, refine, with_bias
from detent.refine.refinement_checkpoint import RefinementCheckpoint, identity_of
from detent.refine.score_heads import common_shift, score_heads
from detent.refinements import BiasCorrection, Refinement
from detent.results.tensors import TensorReport, describe_constants
from detent.tasks.parts import OutputPart, output_parts

JUDGING_SAMPLES = 16
"""Held-out samples that candidates are compared on: the comparison is paired, so a few tell."""

_WHOLE = OutputPart("", 0, 0, 1 << 62)


@dataclass(frozen=True, eq=False)
class Refined:
    """The final plan, what was done to each layer, and the tensors of constants as they will be encoded."""

    planned: Planned
    plan: Plan
    layers: Sequence[LayerReport]
    constants: Sequence[TensorReport]
    warnings: Sequence[str]


@dataclass(frozen=True, eq=False)
class PlanCandidate:
    """A plan that may be the final one, what made it, what became of each layer, and the error at the outputs."""

    name: str
    plan: Plan
    layers: Sequence[LayerReport] = ()
    error: float = math.inf


def refine_plan(planned: Planned, watch: Stopwatch) -> Refined:
    """Choose weights, biases and ranges so that the planned model answers as the observed one."""
    job = planned.observed.prepared.job
    refinement = job.recipe.refinement
    with watch.step("refine"):
        checkpoint = _checkpoint(planned)
        candidates = [PlanCandidate("no refinement", planned.plan)]
        if refinement is not None or job.recipe.search_ranges:
            candidates.append(_refined(planned, refinement, checkpoint, ranges=job.recipe.search_ranges))
        if refinement is not None and refinement.learns_weights and JudgedOutputs.can_judge(planned):
            candidates.insert(1, _refined(planned, BiasCorrection(), None, ranges=False))
        judged = JudgedOutputs(planned) if len(candidates) > 1 and JudgedOutputs.can_judge(planned) else None
        if judged is not None:
            candidates = [replace(each, error=judged.error(each.plan)) for each in candidates]
            candidates[1:] = [_with_shifted_scores(judged, each) for each in candidates[1:]]
        best, notes = _best(judged, candidates)
        constants = describe_constants(planned.model, best.plan)
    notes += [] if checkpoint is None else list(checkpoint.notes)
    return Refined(planned, best.plan, best.layers, constants, notes)


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
        progress=job.progress,
    )
    return PlanCandidate(refinement.name + (" with the search for ranges" if ranges else ""), plan, layers)


def _best(judged: JudgedOutputs | None, candidates: Sequence[PlanCandidate]) -> tuple[PlanCandidate, list[str]]:
    """Return the candidate with the least error at the outputs, and say so if that is not the one asked for."""
    wanted = candidates[-1]
    if judged is None:
        return wanted, []
    # The later one on a tie: it was asked for.
    best = min(reversed(candidates), key=lambda each: each.error)
    if best is wanted:
        return wanted, []
    with_it, without = (_decibels(each.error) for each in (wanted, best))
    instead = "the plan without it" if best is candidates[0] else f"{best.name} alone"
    return best, [
        f"{wanted.name} was taken back: on {len(judged.samples)} samples that it did not learn from, the outputs were "
        f"at {with_it} with it and at {without} with {instead}. More calibration samples may help it."
    ]


def _with_shifted_scores(judged: JudgedOutputs, candidate: PlanCandidate) -> PlanCandidate:
    """Return the candidate with the logits of scores shifted, if there are any and the outputs come closer."""
    planned, plan = judged.planned, candidate.plan
    found, _ = find_layers(planned.model, plan.layout)
    heads, samples = score_heads(planned.model, found), planned.observed.samples[:JUDGING_SAMPLES]
    if not heads or not samples:
        return candidate
    names = [head.layer.output for head in heads]
    found_by, wanted_by = judged.quantized(plan, names), Runner(planned.observed.prepared.model, names)

    def logits(pending: PendingSample) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        sample = pending.load()
        both = found_by(sample), wanted_by(sample.feeds, sample.origin)
        return [(head.of(one), head.of(other)) for head, one, other in zip(heads, *both, strict=True)]

    pairs = [each for _, each in map_in_order(logits, samples, judged.threads)]
    shifts = [common_shift(each) for each in zip(*pairs, strict=True)]
    notes = {}
    for head, shift in zip(heads, shifts, strict=True):
        plan, saturated = with_bias(head.layer, plan, head.shifted(bias_of(head.layer, plan), shift))
        notes[head.layer.name] = [f"scores shifted by {shift:+.2f}", saturated]
    if (error := judged.error(plan)) >= candidate.error:
        return candidate
    layers = [
        replace(each, note="; ".join(filter(None, (each.note, *notes.get(each.name, ()))))) for each in candidate.layers
    ]
    return replace(candidate, plan=plan, layers=layers, error=error)


def _decibels(error: float) -> str:
    return f"{-10 * math.log10(error):.1f} dB" if 0.0 < error < math.inf else "no signal at all"


class JudgedOutputs:
    """The outputs of the model as it was given, on held-out samples, to compare candidates with."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        observed = planned.observed
        self.threads = observed.prepared.job.collecting.threads
        self.samples = observed.observation.measured_on[:JUDGING_SAMPLES]
        self._expected = [outputs for _, outputs in map_in_order(self._answer, self.samples, self.threads)]
        self._parts = output_parts(observed.prepared.model.graph)

    @staticmethod
    def can_judge(planned: Planned) -> bool:
        """Whether there are samples to run."""
        return planned.observed.observation.runner is not None and bool(planned.observed.observation.measured_on)

    def error(self, plan: Plan) -> float:
        """Return the error at the outputs of the model that is quantized as planned; infinity if it is not finite."""
        names = [str(value.name) for value in self.planned.model.graph.outputs]
        run = self.quantized(plan, names)

        def sums(at: int) -> dict[tuple[str, str], tuple[float, float]]:
            found = dict(zip(names, run(self.samples[at].load()), strict=True))
            return self._sums(self._expected[at], found)

        noise: dict[tuple[str, str], float] = {}
        signal: dict[tuple[str, str], float] = {}
        for _, found in map_in_order(sums, range(len(self.samples)), self.threads):
            for part, (wrong, right) in found.items():
                noise[part] = noise.get(part, 0.0) + wrong
                signal[part] = signal.get(part, 0.0) + right
        shares = [noise[part] / signal[part] for part in noise if signal[part] > 0.0]
        error = float(np.mean(shares)) if shares else 0.0
        return error if math.isfinite(error) else math.inf

    def quantized(self, plan: Plan, names: Sequence[str]) -> Callable[[Sample], list[npt.NDArray[Any]]]:
        """Return what computes the named values of a sample, rounded, in the model that is quantized as planned."""
        recipe, model = self.planned.job.recipe, self.planned.model.clone()
        outputs = {value.name for value in model.graph.outputs}
        rounded = emit(
            model, plan, recipe.format, weight_pairs=recipe.weight_pairs, dedicated_pairs=recipe.dedicated_pairs
        )
        fetched = [name if name in outputs else rounded.get(name, name) for name in names]
        if recipe.emulated is not None:
            emulated = EmulatedValues(model, recipe.emulated)
            return lambda sample: emulated(sample.feeds, sample.origin, fetched)
        runner = Runner(model, fetched, exact=True)
        return lambda sample: runner(sample.feeds, sample.origin)

    def _answer(self, pending: PendingSample) -> Mapping[str, npt.NDArray[Any]]:
        sample: Sample = pending.load()
        return self.planned.observed.original(sample)

    def _sums(
        self, expected: Mapping[str, npt.NDArray[Any]], found: Mapping[str, npt.NDArray[Any]]
    ) -> dict[tuple[str, str], tuple[float, float]]:
        """Return the noise and the signal of each part of each output, for one sample."""
        sums = {}
        for name, right in expected.items():
            wrong = found.get(name)
            if wrong is None or right.dtype.kind != "f" or right.shape != wrong.shape:
                continue
            for part in self._parts.get(name, (_WHOLE,)):
                x, y = (array if part is _WHOLE else part.of(array) for array in (right, wrong))
                x = x.astype(np.float64)
                sums[name, part.label] = float(np.square(y - x).sum()), float(np.square(x).sum())
        return sums


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
