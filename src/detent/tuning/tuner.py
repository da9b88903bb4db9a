"""Try one tuning step after another, each on top of the best before it, until one loses little enough.

The first step is the recipe as it is, and no step takes its place that loses more. So the result is never worse, on the
samples that judge, than the recipe as it is.

The same command continues after an interruption, from a folder `OUTPUT.tuning`. It holds `steps.detent`, with the
outcome of every step that is done, and `best.onnx`, the best model so far. Both are complete or absent. They belong to
one model, recipe, data and measure: the `key` tells.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from detent.devices.rewrites import SigmoidToHardSigmoid
from detent.errors import DataError, OutputError, UsageError
from detent.evaluation.evaluator import Evaluator
from detent.graph.load import load
from detent.graph.save import save
from detent.observe.store import TUNING, read_sealed, write_sealed
from detent.pipeline.job import Job
from detent.pipeline.observed import Observed
from detent.pipeline.run import Run
from detent.progress import Progress
from detent.recipe import Recipe
from detent.recipe.file import to_toml
from detent.results.evaluated import Scores
from detent.results.paired import spread_around
from detent.results.quantized import Report
from detent.results.searched import StepOutcome, Way
from detent.results.verdict import worst_sqnr
from detent.search import parts_of, unrefined
from detent.sensitivity_analysis import errors_of, sensitivity
from detent.sensitivity_analysis.variants import all_quantized, quantized_units
from detent.settings import parse_json
from detent.tuning.steps import Blame, Kind, TuningStep, exception_stages, exceptions, worth_trying

STEPS, BEST = "steps.detent", "best.onnx"
_OLD_STEPS = "ladder.json"  # plain JSON, as earlier versions wrote it


def recipe_beside(output: Path) -> Path:
    """Return where the recipe of the best step is written."""
    return output.parent / f"{output.stem}.toml"


def folder_beside(output: Path) -> Path:
    """Return where an interrupted tuning keeps what it has found."""
    return output.parent / f"{output.name}.tuning"


def key_of(parts: Mapping[str, Any]) -> str:
    """Return a text that differs if any part does."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def contents_of(data: object) -> object:
    """Return an identity of a folder or file without reading all of it: names, sizes and times.

    Arrays are identified by their bytes. The contents of a stream are unknown, so it never equals another.
    """
    if data is None:
        return None
    if isinstance(data, Mapping):
        return {str(name): contents_of(array) for name, array in data.items()}
    if isinstance(data, np.ndarray):
        return [str(data.dtype), data.shape, hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()]
    if not isinstance(data, (str, Path)):
        return secrets.token_hex()
    path = Path(data)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


WRITES = 5  # attempts to write into a folder that another process removes


@dataclass
class Record:
    """The outcomes of steps by name, as plain values; empty, and never written, without a folder."""

    folder: Path | None
    key: str
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    best: str | None = None

    @classmethod
    def open(cls, output: Path | None, key: str, *, resume: bool) -> Record:
        """Return what an earlier run left, if it was about the same; else an empty record."""
        if output is None or not resume:
            return cls(None, key)
        folder = folder_beside(output)
        found = _read(folder)
        if found.get("key") != key or (found.get("best") is not None and not (folder / BEST).exists()):
            return cls(folder, key)
        return cls(folder, key, found["rungs"], found["best"])

    def add(self, name: str, outcome: dict[str, Any], best: onnx.ModelProto | None) -> None:
        """Keep the outcome of a step, and its model if that is the best so far."""
        self.steps[name] = outcome
        if best is not None:
            self.best = name
        if self.folder is None:
            return
        for attempt in range(WRITES):
            try:
                self._write(self.folder, best)
                return
            except OutputError as error:
                # Another tuning of the same output has ended meanwhile, and removed the folder.
                if not isinstance(error.__cause__, FileNotFoundError) or attempt + 1 == WRITES:
                    raise
                time.sleep(0.05)

    def _write(self, folder: Path, best: onnx.ModelProto | None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"Cannot make the folder {folder}: {error.strerror}.") from error
        if best is not None:
            save(ir.from_proto(best), folder / BEST)
        plain = {"key": self.key, "rungs": self.steps, "best": self.best}
        write_sealed(folder / STEPS, TUNING, json.dumps(plain).encode())

    def best_model(self) -> onnx.ModelProto:
        """Load the best model of an earlier run."""
        assert self.folder is not None
        return ir.to_proto(load(self.folder / BEST))

    def remove(self) -> None:
        """Forget everything: the output is written."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _read(folder: Path) -> dict[str, Any]:
    try:
        old = folder / _OLD_STEPS
        found = parse_json(old.read_bytes() if old.exists() else read_sealed(folder / STEPS, TUNING))
    except (OSError, ValueError, DataError):
        return {}  # there is none, or one that cannot be read: it is made anew
    return found if isinstance(found, dict) else {}


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
ENDED = "there is nothing more to try"
OUT_OF_TIME = "the budget is used up"

BLAMING_SAMPLES = 8  # enough to tell whether weights or activations make most of the error
_KIND_OF_WAY: dict[Way, Kind] = {"w8": "weights", "a16": "activations"}

# With channels as they are and equalized: each holds the model and the statistics of all activations.
OBSERVATIONS_KEPT = 2


@dataclass(frozen=True, eq=False)
class TriedStep:
    """A step that was tried. The model is None if an earlier run made it: then the record may have it."""

    step: TuningStep
    outcome: StepOutcome
    model: onnx.ModelProto | None


@dataclass(eq=False)
class Tuner:
    """A tuning. `expected` are the scores of the float model; `on_step` is called with the outcome of every step.

    `best` is the best step so far, and the one that others are built on; the first is the recipe as it is.
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
    blame: Blame | None = None
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
        yield TuningStep(self.job.recipe.name, "the recipe as it is", self.job.recipe)
        self.blame = self._blame()
        for ingredient in worth_trying(self.job.recipe, self.blame):
            step = ingredient.added_to(self._best_recipe)
            if step is not None:
                yield step
        yield from self._exceptions()

    def _blame(self) -> Blame:
        """Measure whether weights or activations make the error, on a few samples."""
        if self.job.recipe.dynamic:
            return Blame(1.0, 1.0)
        progress = self.clock.watching(self.job.progress)
        planned = self._run(unrefined(self._job(self.job.recipe, progress))).planned
        units = quantized_units(planned.model, planned.plan)
        kinds = {kind: [unit for unit in units if unit.is_weight is kind] for kind in (True, False)}
        errors = errors_of(
            planned.model,
            planned.plan,
            [all_quantized(str(kind), of_kind) for kind, of_kind in kinds.items()],
            planned.probes[:BLAMING_SAMPLES],
            parts=parts_of(planned),
            threads=self.job.collecting.threads,
            progress=progress,
        )
        hardened = any(change.by == SigmoidToHardSigmoid.__name__ for change in planned.notes.changes)
        return Blame(errors[str(True)], errors[str(False)], hardened)

    def _exceptions(self) -> Iterator[TuningStep]:
        if self.job.recipe.dynamic:
            return
        for ways in exception_stages(self.job.recipe):
            recipe, progress = self._best_recipe, self.clock.watching(self.job.progress)
            planned = self._run(unrefined(self._job(recipe, progress))).planned
            found = sensitivity(
                planned.model,
                planned.plan,
                planned.probes,
                parts=parts_of(planned),
                threads=self.job.collecting.threads,
                progress=progress,
            )
            # Measured again, because weights may have more bits by now than in the first step.
            weights, activations = (
                sum(found.errors[each.name] for each in found.sources if each.is_weight is kind)
                for kind in (True, False)
            )
            blame = Blame(weights, activations)
            helping = [way for way in ways if blame.blames(_KIND_OF_WAY.get(way))]
            yield from exceptions(recipe, planned.plan.layout, found, helping)

    def _job(self, recipe: Recipe, progress: Progress) -> Job:
        return replace(self.job, recipe=recipe).with_options(progress=progress)

    def _run(self, job: Job) -> Run:
        """Start a run that shares what an earlier one observed, if its recipe allows that."""
        run = Run(job, self._observed)
        if run.observed.prepared.model not in (each.prepared.model for each in self._observed):
            self._observed = (run.observed, *self._observed[: OBSERVATIONS_KEPT - 1])
        return run

    @property
    def _best_recipe(self) -> Recipe:
        assert self.best is not None, "the first step is always finished"
        return self.best.step.recipe

    def _try(self, step: TuningStep) -> None:
        key = f"{step.name} {key_of({'recipe': to_toml(step.recipe)})[:16]}"
        known = self.record.steps.get(key)
        outcome, model = self._quantize(step) if known is None else (StepOutcome.from_plain(known), None)
        kept = self.best is None or self._is_improvement(outcome, self.best.outcome)
        outcome = replace(outcome, kept=kept)
        if known is None:
            self.record.add(key, outcome.to_plain(), model if kept else None)
        if kept:
            self.best = TriedStep(step, outcome, model)
        self.outcomes.append(outcome)
        self.on_step(outcome)

    def _is_improvement(self, new: StepOutcome, best: StepOutcome) -> bool:
        """Return whether a step takes the place of the best: never one that loses more than the first step did."""
        if new.loss <= self.max_drop < best.loss:
            return True
        return new.loss <= self.outcomes[0].loss and is_better(new, best)

    def _quantize(self, step: TuningStep) -> tuple[StepOutcome, onnx.ModelProto]:
        """Quantize and judge. The first step is finished whatever the budget, so that there is a result."""
        start = self.clock.elapsed
        progress = self.job.progress if self.best is None else self.clock.watching(self.job.progress)
        report = self._run(self._job(step.recipe, progress)).report()
        assert report.model is not None
        self.evaluator.progress = progress
        scores = self.evaluator.evaluate(report.model)
        loss, drawn = scores.losses_against(self.expected)[0], scores.drawn_losses(self.expected)
        outcome = StepOutcome(
            name=step.name,
            what=step.what,
            loss=loss.points,
            unit=loss.unit,
            interval=loss.interval,
            output_error=_output_error(report),
            seconds=self.clock.elapsed - start,
            bytes_after=report.model.ByteSize(),
            drawn=None if drawn is None else tuple(drawn.tolist()),
        )
        return outcome, report.model


def is_better(new: StepOutcome, old: StepOutcome) -> bool:
    """Return whether a step is better than another: by its loss or, if these are too close to tell, by the outputs.

    Losses are compared in pairs, on the same draws of the same samples, so that a loss of both on a hard sample
    cancels. The answers of a few samples change by chance; the distance of the outputs from float is more reliable,
    because all of their numbers contribute.
    """
    if new.drawn is None or old.drawn is None or new.output_error is None or old.output_error is None:
        return new.loss < old.loss
    low, high = spread_around(new.loss - old.loss, np.array(new.drawn) - np.array(old.drawn))
    if low > 0.0 or high < 0.0:
        return high < 0.0
    return new.output_error < old.output_error


def _output_error(report: Report) -> float | None:
    """Return noise power over signal power of the worst part of the outputs."""
    worst = None if report.fidelity is None or report.in_sample else worst_sqnr(report.fidelity)
    return None if worst is None else float(10 ** (-worst / 10))
