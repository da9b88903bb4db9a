"""Tuning from end to end: a float model, data and an acceptable loss in; the cheapest model that keeps to it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from detent.errors import UsageError
from detent.evaluation.dataset import FIND, LabelsLike
from detent.evaluation.metric_file import Metric, as_metric
from detent.graph.load import load, name_of, stored_bytes
from detent.graph.save import check_output, save, write_text
from detent.observe.fingerprint import fingerprint_of
from detent.observe.preprocess import PreprocessOptions
from detent.pipeline.job import Job, make_job
from detent.progress import Progress
from detent.recipe import Recipe
from detent.recipe_file import to_toml
from detent.results.evaluated import Answers, SampleScores, Scores, WholeScore
from detent.results.searched import RungOutcome, Tuning
from detent.results.tensors import in_integers
from detent.tuning.climb import OUT_OF_TIME, Climb, Foothold, Observer
from detent.tuning.clock import Clock, parse_duration
from detent.tuning.judge import Judging, open_judge
from detent.tuning.record import Record, contents_of, key_of


def tune(
    model: str | PathLike[str] | onnx.ModelProto,
    output: str | PathLike[str] | None = None,
    calibration: Any = None,
    recipe: str | PathLike[str] | Recipe = "XINT8",
    *,
    max_drop: float = 1.0,
    evaluation: Any = None,
    metric: str | PathLike[str] | Metric | None = None,
    labels: LabelsLike = FIND,
    label_offset: int = 0,
    evaluation_limit: int | None = None,
    budget: str | float | None = None,
    recipe_file: str | PathLike[str] | None = None,
    preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
    fix_shapes: Mapping[str, Sequence[int]] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: str | Sequence[str] = (),
    resume: bool = True,
    progress: Progress | None = None,
    told: Observer | None = None,
) -> Tuning:
    """Climb from the cheapest way to quantize `model` to better ones, and stop at the first that loses little enough.

    Args:
        model: a path, or a ModelProto. Never modified.
        output: where to write the result; None: it is `tuning.model`.
        calibration: as for `quantize`.
        recipe: what to start from: its number formats and target are kept, but for layers that are spared at the end.
        max_drop: the acceptable loss: points of top-1 with labels, units of the metric with one, else percent of the
            answers that differ from the float model's (or of output error, where outputs are no class scores).
        evaluation: data to judge by, as for `evaluate`; None: a part of the calibration data, kept out of calibration.
        metric: a Python file with score(outputs, sample) or metric(outputs, labels), or a Metric.
        labels: those of the evaluation data, as for `evaluate`.
        label_offset: added to every label.
        evaluation_limit: judge by at most this many samples.
        budget: the time to take, in seconds or as "10m"; when it is over, the best so far is the result.
        recipe_file: where to write the winning recipe; None: beside the output, with the suffix .toml.
        preprocess, fix_shapes, limit, seed, batch, threads, providers: as for `quantize`.
        resume: keep what is found beside the output, and continue from it after an interruption or with more time.
        progress: called as progress(stage, done, total).
        told: called with each RungOutcome as soon as it is known.

    Raises:
        DetentError: UsageError, ModelError, DataError or OutputError; no output is left behind.
    """
    target = None if output is None else Path(output)
    written = _recipe_file(target, recipe_file)
    job = make_job(
        model,
        calibration,
        recipe,
        preprocess=preprocess,
        fix_shapes=fix_shapes,
        limit=limit,
        seed=seed,
        batch=batch,
        threads=threads,
        providers=providers,
        progress=progress,
    )
    if not max_drop >= 0.0:
        raise UsageError(f"The acceptable loss is {max_drop}: it must not be negative.")
    seconds = None if budget is None else parse_duration(budget)
    for file in filter(None, (target, written)):
        check_output(file, job.model)
    measure = as_metric(metric)
    judging = Judging(evaluation, measure, labels, label_offset, job.preprocess, evaluation_limit)
    record = Record.open(target, _key(job, judging), resume=resume)
    clock = Clock(seconds)
    job, evaluator = open_judge(job, judging)
    expected = None if evaluator.compares_outputs else evaluator.evaluate(job.model)
    climb = Climb(job, evaluator, expected, max_drop, clock, record, told or _untold)
    stopped = climb.run()
    assert climb.best is not None, "the lowest rung is always climbed"
    proto = climb.best.model if climb.best.model is not None else record.best_model()
    result = replace(_result(climb, climb.best, stopped), model=proto, output=None if target is None else str(target))
    if target is not None:
        save(ir.from_proto(proto), target)
    if written is not None:
        write_text(result.to_toml(), written)
    if stopped == OUT_OF_TIME and not result.met and record.folder is not None:
        return replace(result, kept=str(record.folder))
    record.remove()
    return result


def _recipe_file(output: Path | None, given: str | PathLike[str] | None) -> Path | None:
    if given is not None:
        return Path(given)
    return None if output is None else output.with_suffix(".toml")


def _untold(_: RungOutcome) -> None:
    """The observer that does nothing."""


def _key(job: Job, judging: Judging) -> str:
    """What the outcomes of rungs depend on."""
    metric = judging.metric
    return key_of(
        {
            "model": fingerprint_of(load(job.model)),
            "recipe": to_toml(job.recipe),
            "calibration": contents_of(job.calibration),
            "options": [job.preprocess, job.fix_shapes, job.limit, job.seed, job.batch],
            "preprocess": contents_of(job.preprocess.file) if job.preprocess and job.preprocess.file else None,
            "evaluation": [contents_of(judging.data), judging.labels, judging.label_offset, judging.limit],
            "metric": None if not isinstance(metric, Metric) else contents_of(metric.origin) or metric.name,
        }
    )


def _result(climb: Climb, best: Foothold, stopped: str) -> Tuning:
    job, base = climb.job, climb.job.recipe
    tuned = best.rung.recipe.replace(name=f"{base.name}-tuned", description=f"{base.name}, tuned: {best.rung.name}")
    return Tuning(
        source=name_of(job.model),
        output=None,
        recipe=tuned,
        taken=best.outcome.name,
        rungs=climb.outcomes,
        max_drop=climb.max_drop,
        met=best.outcome.loss <= climb.max_drop,
        stopped=stopped,
        data=climb.evaluator.dataset.described + in_integers(base.emulated),
        note=climb.evaluator.dataset.note,
        reference=_reference(climb.expected),
        samples=len(climb.evaluator.dataset),
        seconds=climb.clock.elapsed,
        bytes_before=stored_bytes(job.model),
    )


def _reference(scores: Scores | None) -> str:
    """What the float model gets, in words."""
    if isinstance(scores, Answers):
        return f"{scores.accuracy():.2f} % top-1"
    if isinstance(scores, SampleScores):
        return f"{scores.metric} {scores.mean:.4g}"
    if isinstance(scores, WholeScore):
        return f"{scores.metric} {scores.value:.4g}"
    return "what the others are compared with"
