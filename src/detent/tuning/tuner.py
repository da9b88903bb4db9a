"""Try one tuning step after another, each on top of the best before it, until one loses little enough."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import onnx

from detent.errors import UsageError
from detent.evaluation.evaluator import Evaluator
from detent.pipeline.job import Job
from detent.pipeline.observed import Observed
from detent.pipeline.run import Run
from detent.progress import Progress
from detent.recipe import Recipe
from detent.recipe.file import to_toml
from detent.results.evaluated import Loss, Scores
from detent.results.quantized import Report
from detent.results.searched import StepOutcome
from detent.search.probing import unrefined
from detent.sensitivity_analysis.layer_errors import sensitivity
from detent.tuning.record import Record, key_of
from detent.tuning.steps import TuningStep, exception_stages, exceptions, ingredients, plain

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class OutOfTimeError(Exception):
    """The budget is used up. Whoever set it catches this."""


def parse_duration(text: str | float) -> float:
    """Return seconds, from a number of them or from `90s`, `10m`, `1h30m`."""
    if isinstance(text, (int, float)):
        seconds = float(text)
    else:
        parts = re.findall(r"([0-9]*\.?[0-9]+)\s*([smh]?)", text.lower())
        if not parts or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", text.lower()):
            raise UsageError(f"'{text}' is not a duration. Write 90s, 10m or 1h30m.")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0.0 < seconds < math.inf:
        raise UsageError(f"The budget is {text}: it must be some time, such as 10m.")
    return seconds


@dataclass
class Clock:
    """Counts from when it is made. Without a budget it never runs out."""

    budget: float | None = None
    now: Callable[[], float] = time.perf_counter
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now()

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return self.now() - self._start

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return self.budget is not None and self.elapsed >= self.budget

    def watching(self, progress: Progress) -> Progress:
        """Return an observer that raises OutOfTimeError at the first call after the budget is used up."""

        def step(stage: str, done: int, total: int | None) -> None:
            if self.is_over:
                raise OutOfTimeError
            progress(stage, done, total)

        return step


Observer = Callable[[StepOutcome], None]

MET = "the target is met"
ENDED = "the ladder ends here"
OUT_OF_TIME = "the budget is used up"

OBSERVATIONS_KEPT = 2
"""With channels as they are and equalized: each holds the model and the statistics of all activations."""

CONFIDENT = 3.92
"""The width of a 95 % interval in standard errors."""


@dataclass(frozen=True, eq=False)
class TriedStep:
    """A step that was tried. The model is None if an earlier run made it: then the record may have it."""

    step: TuningStep
    outcome: StepOutcome
    model: onnx.ModelProto | None


@dataclass(eq=False)
class Tuner:
    """A tuning. `expected` is what the float model gets; `on_step` hears of every step.

    `best` is the step that lost least, and `base` the one that others are built on: see `is_better`.
    """

    job: Job
    evaluator: Evaluator
    expected: Scores | None
    max_drop: float
    clock: Clock
    record: Record
    on_step: Observer
    outcomes: list[StepOutcome] = field(default_factory=list)
    best: TriedStep | None = None
    base: TriedStep | None = None
    _observed: tuple[Observed, ...] = ()

    def run(self) -> str:
        """Try steps until one is good enough, and return why it stopped; the best one is `best`."""
        try:
            for step in self._steps():
                self._try(step)
                if self.outcomes[-1].loss <= self.max_drop:
                    return MET
                if self.clock.is_over:
                    return OUT_OF_TIME
        except OutOfTimeError:
            return OUT_OF_TIME
        return ENDED

    def _steps(self) -> Iterator[TuningStep]:
        """Yield the steps; each is made when all before it are known."""
        yield plain(self.job.recipe)
        for ingredient in ingredients(self.job.recipe):
            step = ingredient.added_to(self._base_recipe)
            if step is not None:
                yield step
        yield from self._exceptions()

    def _exceptions(self) -> Iterator[TuningStep]:
        for ways in exception_stages(self.job.recipe):
            recipe, progress = self._base_recipe, self.clock.watching(self.job.progress)
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
    def _base_recipe(self) -> Recipe:
        assert self.base is not None, "the first step is always finished"
        return self.base.step.recipe

    def _try(self, step: TuningStep) -> None:
        key = f"{step.name} {key_of({'recipe': to_toml(step.recipe)})[:16]}"
        known = self.record.steps.get(key)
        model = None
        if known is not None:
            outcome = StepOutcome.from_plain(known)
        else:
            outcome, model = self._quantize(step)
        kept = self.base is None or is_better(outcome, self.base.outcome)
        least = self.best is None or outcome.loss < self.best.outcome.loss
        outcome = replace(outcome, kept=kept)
        if known is None:
            self.record.add(key, outcome.to_plain(), model if least else None)
        tried = TriedStep(step, outcome, model)
        self.base = tried if kept else self.base
        self.best = tried if least else self.best
        self.outcomes.append(outcome)
        self.on_step(outcome)

    def _quantize(self, step: TuningStep) -> tuple[StepOutcome, onnx.ModelProto]:
        """Quantize and judge. The first step is finished whatever the budget, so that there is a result."""
        start = self.clock.elapsed
        progress = self.job.progress if self.best is None else self.clock.watching(self.job.progress)
        report = self._run(self._job(step.recipe, progress)).report()
        assert report.model is not None
        loss = self._judge(report.model, progress)
        outcome = StepOutcome(
            name=step.name,
            what=step.what,
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


def is_better(new: StepOutcome, old: StepOutcome) -> bool:
    """Whether a step is better than an earlier one: by its loss or, if these are too close to tell, by the outputs.

    The answers of a few samples change by chance; how far the outputs are from float is told by all of their numbers.
    """
    width = max((high - low for low, high in filter(None, (new.interval, old.interval))), default=0.0)
    if abs(new.loss - old.loss) > width / CONFIDENT or None in (new.output_error, old.output_error):
        return new.loss < old.loss
    assert new.output_error is not None
    assert old.output_error is not None
    return new.output_error < old.output_error


def _output_error(report: Report) -> float | None:
    """Return noise power over signal power of the worst output."""
    if report.fidelity is None or report.in_sample or not report.fidelity.outputs:
        return None
    return max(float(10 ** (-each.sqnr_db / 10)) for each in report.fidelity.outputs.values())
