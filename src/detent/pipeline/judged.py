"""The model as it was given, on samples that nothing is learned from: what every accuracy step is judged by.

A plan is written into a copy of its model, which is run on the samples; `evaluation.answer_errors` says how far its
answers are from those of the given model.

With few samples, whether equalization helps is judged too. Equalization stretches every channel to the largest value
that was observed in it. With few samples, new inputs then leave the range in all channels, where without it only the
largest channels meet it. So with fewer than TRUSTED samples the model is calibrated without equalization too, and the
one whose answers are closer on samples that are held out is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from detent.evaluation.answer_errors import Sums, error_sums, total_error
from detent.execute.inference import map_in_order
from detent.graph.save import tensor_bytes
from detent.graph.session import HUGE_MODEL
from detent.graph.values import static_shape
from detent.observe.samples import PendingSample
from detent.pipeline.emitted import OpenedForm
from detent.pipeline.observed import Observed
from detent.pipeline.planned import make_planned
from detent.pipeline.prepared import Original, Prepared, Stopwatch
from detent.plan.plan import Plan
from detent.progress import silent
from detent.recipe.recipe import WIDENING_SAMPLES
from detent.refine.ranges import SAMPLES as RANGE_SAMPLES
from detent.results.verdict import MANY_SAMPLES
from detent.tasks import Task
from detent.tasks.parts import output_parts

JUDGING_SAMPLES = 16  # samples that candidates are compared on: the comparison is paired, so a few tell
ONE_ANSWER = (Task.CLASSIFY, Task.TAG)  # tasks that answer once for each sample
FEW_NUMBERS = 64  # of a sample, such as an age or the angles of a head, are one answer too
DENSE_SAMPLES = 8  # of a task that answers at many places of a sample
FIRST_LOOK = 4  # samples after which what is clearly worse needs no more of them
CLEARLY = 3.0  # standard errors of the mean difference


@dataclass(frozen=True)
class Closest:
    """Which of several plans is closest to the given model, and the error of each plan beside that of the closest.

    Errors of a pair are over the same samples, `samples` of them: fewer for a plan that was clearly worse at once.
    """

    best: int
    samples: Sequence[int]
    pairs: Sequence[tuple[float, float]]


class JudgedOutputs:
    """The answers of the given model, to compare candidates with."""

    def __init__(self, prepared: Prepared, original: Original, samples: Sequence[PendingSample]) -> None:
        self.samples = samples[: JUDGING_SAMPLES if _answers_once(prepared) else DENSE_SAMPLES]
        self._prepared, self._original = prepared, original
        self._threads = prepared.job.collecting.threads
        self._parts = output_parts(prepared.model.graph)
        # By the identities of plans that are still compared. Of huge models, one at a time is in memory.
        self._opened: dict[int, OpenedForm] = {}
        self._keeps = tensor_bytes(prepared.model) < HUGE_MODEL

    def error(self, model: ir.Model, plan: Plan) -> float:
        """Return the error of the model that is quantized as planned; infinity if it is not finite."""
        found = total_error(self._sums(model, plan, self.samples))
        self._opened.pop(id(plan), None)
        return found

    def closest(self, model: ir.Model, plans: Sequence[Plan]) -> Closest:
        """Compare plans: all on the first samples, and on the others those that are not clearly worse.

        On a tie the later one is the closest.
        """
        sums: list[list[Sums]] = [[] for _ in plans]
        left = list(range(len(plans)))
        for end in (FIRST_LOOK, len(self.samples)) if self._keeps else (len(self.samples),):
            for at in left if len(left) > 1 else []:
                more = self.samples[len(sums[at]) : end]
                sums[at] += self._sums(model, plans[at], more) if more else []
            best = min(reversed(left), key=lambda at: total_error(sums[at]))
            left = [at for at in left if not _clearly_worse(sums[at], sums[best])]
            compared = {id(plans[at]) for at in (left if end < len(self.samples) else [best])}
            self._opened = {plan: opened for plan, opened in self._opened.items() if plan in compared}
        counts = [len(each) for each in sums]
        pairs = [(total_error(each), total_error(sums[best][: len(each)])) for each in sums]
        return Closest(best, counts, pairs)

    def opened(self, plan: Plan) -> OpenedForm | None:
        """Return the plan as it was written and run, if it was the closest; None if it was not compared or not kept."""
        return self._opened.get(id(plan))

    def _sums(self, model: ir.Model, plan: Plan, samples: Sequence[PendingSample]) -> list[Sums]:
        run = self._opened.get(id(plan)) or OpenedForm.of(model, plan, self._prepared.job.recipe)
        if self._keeps:
            self._opened[id(plan)] = run

        def sums(pending: PendingSample) -> Sums:
            found = run(pending)
            return error_sums(self._prepared.purpose, self._parts, self._original(pending), found, pending.size)

        return [each for _, each in map_in_order(sums, samples, self._threads)]


def _clearly_worse(sums: Sequence[Sums], best: Sequence[Sums]) -> bool:
    """Tell whether the difference of the errors of single samples is certain."""
    apart = np.array([total_error([one]) - total_error([other]) for one, other in zip(sums, best, strict=True)])
    if len(apart) < 2 or not np.isfinite(apart).all():
        return bool((apart == np.inf).any())
    return bool(apart.mean() > CLEARLY * apart.std(ddof=1) / np.sqrt(len(apart)))


JUDGED_ON = 8  # both models run on them: a paired comparison needs few


def better_of(rescaled: Observed, plain: Observed, what: str) -> Observed:
    """Return the observation whose plan is closer to the given model, and say so if it is the one without `what`."""
    samples = rescaled.observation.measured_on[:JUDGED_ON]
    judged = JudgedOutputs(rescaled.prepared, rescaled.original, samples)
    with_it, without = (_error(each, judged) for each in (rescaled, plain))
    if with_it <= without:
        return rescaled
    count = rescaled.observation.samples or len(rescaled.samples)
    note = (
        f"{what} was taken back: with {count} calibration samples, the error of the "
        f"answers on {len(samples)} held out was {with_it:.3g} with it and {without:.3g} without it. More samples may "
        "help it."
    )
    return replace(plain, notes=[*plain.notes, note])


def _error(observed: Observed, judged: JudgedOutputs) -> float:
    planned = make_planned(observed, Stopwatch(silent))
    return judged.error(planned.model, planned.plan)


ENOUGH_SAMPLES, ENOUGH_DENSE = 128, 32
"""Samples after which the verdict is what it is: the loss of a classifier is then known to about two points."""


def only_counted(observed: Observed) -> tuple[list[PendingSample], list[PendingSample]]:
    """Return samples to judge answers with if few were held out, and those to take too if the verdict is unclear.

    Only the ranges come from them. One sample is a single answer of a classifier, so it takes many; other tasks say
    more with each. How much numbers differ between samples takes many, too: of eight, every eighth of data in which
    eight kinds take turns, all are of one kind.
    """
    observation, source, recipe = observed.observation, observed.source, observed.prepared.job.recipe
    if recipe.emulated is not None or source is None or source.random or not source.repeatable or observation.in_sample:
        return [], []
    learned = [0 if recipe.refinement is None else recipe.refinement.samples]
    learned += [RANGE_SAMPLES] if recipe.search_ranges else []
    learned += [] if recipe.widen is None else [WIDENING_SAMPLES]
    held = sum(each.size for each in observation.measured_on)
    at_once, at_most = (MANY_SAMPLES, ENOUGH_SAMPLES) if _answers_once(observed.prepared) else (0, ENOUGH_DENSE)
    unused = source.peek(max(learned) + max(0, at_most - held))[max(learned) :]
    missing = max(0, at_once - held)
    return unused[:missing], unused[missing:]


def _answers_once(prepared: Prepared) -> bool:
    if prepared.purpose.task is not Task.REGRESS:
        return prepared.purpose.task in ONE_ANSWER
    shapes = [static_shape(value) for value in prepared.model.graph.outputs]
    sizes = [(None,) if shape is None else shape[1:] for shape in shapes]
    return all(math.prod(size or FEW_NUMBERS + 1 for size in each) <= FEW_NUMBERS for each in sizes)
