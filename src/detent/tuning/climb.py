"""The climb: one rung after another, each on top of the best below it, until one loses little enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import onnx

from detent.evaluation.evaluator import Evaluator
from detent.pipeline.job import Job
from detent.pipeline.observed import Observed
from detent.pipeline.run import Run
from detent.progress import Progress
from detent.recipe import Recipe
from detent.recipe.file import to_toml
from detent.results.evaluated import Loss, Scores
from detent.results.quantized import Report
from detent.results.searched import RungOutcome
from detent.search.probing import unrefined
from detent.sensitivity_analysis.layer_errors import sensitivity
from detent.tuning.clock import Clock, OutOfTimeError
from detent.tuning.record import Record, key_of
from detent.tuning.rungs import Rung, exceptions, ingredients, plain, stages

Observer = Callable[[RungOutcome], None]

MET = "the target is met"
ENDED = "the ladder ends here"
OUT_OF_TIME = "the budget is used up"

OBSERVATIONS_KEPT = 2
"""With channels as they are and equalized: each holds the model and the statistics of all activations."""

CONFIDENT = 3.92
"""The width of a 95 % interval in standard errors."""


@dataclass(frozen=True, eq=False)
class Foothold:
    """A rung that was climbed. The model is None where an earlier run made it: then the record has it, if any has."""

    rung: Rung
    outcome: RungOutcome
    model: onnx.ModelProto | None


@dataclass(eq=False)
class Climb:
    """The state of a climb. `expected` is what the float model gets; `told` hears of every rung.

    `best` is the rung that lost least, and `footing` the one that others are built on: see `is_better`.
    """

    job: Job
    evaluator: Evaluator
    expected: Scores | None
    max_drop: float
    clock: Clock
    record: Record
    told: Observer
    outcomes: list[RungOutcome] = field(default_factory=list)
    best: Foothold | None = None
    footing: Foothold | None = None
    _observed: tuple[Observed, ...] = ()

    def run(self) -> str:
        """Climb. Why it stopped; the best rung is `best`."""
        try:
            for rung in self._ladder():
                self._try(rung)
                if self.outcomes[-1].loss <= self.max_drop:
                    return MET
                if self.clock.is_over:
                    return OUT_OF_TIME
        except OutOfTimeError:
            return OUT_OF_TIME
        return ENDED

    def _ladder(self) -> Iterator[Rung]:
        """The rungs; each is made when all below it are known."""
        yield plain(self.job.recipe)
        for ingredient in ingredients(self.job.recipe):
            rung = ingredient.added_to(self._footing)
            if rung is not None:
                yield rung
        yield from self._exceptions()

    def _exceptions(self) -> Iterator[Rung]:
        for ways in stages(self.job.recipe):
            recipe, progress = self._footing, self.clock.watching(self.job.progress)
            planned = self._run(unrefined(self._job(recipe, progress))).planned
            threads = self.job.collecting.threads
            found = sensitivity(planned.model, planned.plan, planned.probes, threads=threads, progress=progress)
            yield from exceptions(recipe, planned.plan.layout, found, ways)

    def _job(self, recipe: Recipe, progress: Progress) -> Job:
        return replace(self.job, recipe=recipe).with_options(progress=progress)

    def _run(self, job: Job) -> Run:
        """Start a run that shares what an earlier one observed, if its recipe allows that."""
        run = Run(job, self._observed)
        if run.observed.prepared.model not in (each.prepared.model for each in self._observed):
            self._observed = (run.observed, *self._observed[: OBSERVATIONS_KEPT - 1])
        return run

    @property
    def _footing(self) -> Recipe:
        assert self.footing is not None, "the lowest rung is always climbed"
        return self.footing.rung.recipe

    def _try(self, rung: Rung) -> None:
        key = f"{rung.name} {key_of({'recipe': to_toml(rung.recipe)})[:16]}"
        known = self.record.rungs.get(key)
        model = None
        if known is not None:
            outcome = RungOutcome.from_plain(known)
        else:
            outcome, model = self._climb(rung)
        kept = self.footing is None or is_better(outcome, self.footing.outcome)
        least = self.best is None or outcome.loss < self.best.outcome.loss
        outcome = replace(outcome, kept=kept)
        if known is None:
            self.record.add(key, outcome.to_plain(), model if least else None)
        reached = Foothold(rung, outcome, model)
        self.footing = reached if kept else self.footing
        self.best = reached if least else self.best
        self.outcomes.append(outcome)
        self.told(outcome)

    def _climb(self, rung: Rung) -> tuple[RungOutcome, onnx.ModelProto]:
        """Quantize and judge. The lowest rung is finished whatever the budget, so that there is a result."""
        start = self.clock.elapsed
        progress = self.job.progress if self.best is None else self.clock.watching(self.job.progress)
        report = self._run(self._job(rung.recipe, progress)).report()
        assert report.model is not None
        loss = self._judge(report.model, progress)
        outcome = RungOutcome(
            name=rung.name,
            what=rung.what,
            loss=loss.points,
            unit=loss.unit,
            interval=loss.interval,
            output_error=_output_error(report),
            seconds=self.clock.elapsed - start,
            bytes_after=report.model.ByteSize(),
        )
        return outcome, report.model

    def _judge(self, model: onnx.ModelProto, progress: Progress) -> Loss:
        self.evaluator.progress = progress
        return self.evaluator.evaluate(model).losses_against(self.expected)[0]


def is_better(new: RungOutcome, old: RungOutcome) -> bool:
    """Whether a rung is better than one below it: by its loss or, where these are too close to tell, by the outputs.

    The answers of a few samples change by chance; how far the outputs are from float is told by all of their numbers.
    """
    width = max((high - low for low, high in filter(None, (new.interval, old.interval))), default=0.0)
    if abs(new.loss - old.loss) > width / CONFIDENT or None in (new.output_error, old.output_error):
        return new.loss < old.loss
    assert new.output_error is not None
    assert old.output_error is not None
    return new.output_error < old.output_error


def _output_error(report: Report) -> float | None:
    """Noise power over signal power, the worst of the outputs."""
    if report.fidelity is None or report.in_sample or not report.fidelity.outputs:
        return None
    return max(float(10 ** (-each.sqnr_db / 10)) for each in report.fidelity.outputs.values())
