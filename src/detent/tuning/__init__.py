"""Tuning from end to end: a model, data and an acceptable loss in; the first model within it, or the best, out.

Models are judged on the user's own evaluation data, or else on the calibration samples that are held out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from detent.devices.catalog import WHERE_IT_HELPS
from detent.errors import UsageError
from detent.evaluation.dataset import Dataset
from detent.evaluation.evaluator import Evaluator
from detent.evaluation.metric_file import Metric, as_metric
from detent.graph.load import load, name_of, stored_bytes
from detent.graph.save import check_output, save
from detent.observe.samples import RowSelection
from detent.observe.sources import RowSource, input_specs, open_source
from detent.observe.store import fingerprint_of
from detent.options import TuneOptions
from detent.pipeline.job import Job
from detent.pipeline.run import Run
from detent.recipe import Recipe
from detent.recipe.file import to_toml
from detent.results.searched import Tuning
from detent.results.tensors import in_integers
from detent.tuning.steps import Blame, Kind
from detent.tuning.tuner import (
    OUT_OF_TIME,
    Clock,
    Record,
    TriedStep,
    Tuner,
    contents_of,
    key_of,
    parse_duration,
    recipe_beside,
)

FEWEST_JUDGED = 4  # an interval of fewer samples says nothing


def open_judge(job: Job, options: TuneOptions, metric: Metric | None) -> Evaluator:
    """Return the evaluator of a job's models: by labels or a metric, or else by the answers of the float model."""
    data, labels = options["evaluation"], options["labels"]
    if data is None:
        if options["eval_limit"] is not None:
            raise UsageError("--eval-limit is about the data of --eval: give that too.")
        data, labels = held_out_data(job), None
    prepared = Run(job).prepared
    return Evaluator(
        job.model,
        data,
        labels=labels,
        label_offset=options["label_offset"],
        metric=metric,
        preprocess=job.preprocess,
        limit=options["eval_limit"],
        batch=None if isinstance(data, Dataset) else job.options["batch"],
        threads=job.collecting.threads,
        providers=job.collecting.providers,
        emulate=job.recipe.emulated,
        purpose=(prepared.purpose, prepared.parts),
        progress=job.progress,
    )


def held_out_data(job: Job) -> Dataset:
    """Return the calibration samples that a run of the job holds out, as data to judge on."""
    source = _calibration_rows(job)
    rows = [row for at, row in enumerate(source.selection.rows) if at in source.selection.held_out]
    if len(rows) < FEWEST_JUDGED:
        raise UsageError(
            f"Of {len(source.selection.rows)} {source.rows.noun} {source.rows.place} only {len(rows)} are held out to "
            f"judge by, which says nothing: {FEWEST_JUDGED} or more would. Give {2 * FEWEST_JUDGED} samples or more, "
            "a larger --hold-out, or --eval."
        )
    judged = replace(source, selection=RowSelection(rows, frozenset(), len(rows), 0))
    folder = Path(job.calibration) if isinstance(job.calibration, (str, Path)) else None
    return Dataset(judged, folder, None, None, None)


def with_enough_held_out(job: Job) -> Job:
    """Return the job with as many samples held out as judge at least, if the user does not say how many.

    No more than half of the samples are held out for that: of fewer, the rest would not calibrate.
    """
    source = _calibration_rows(job)
    step = source.batch if source.whole else 1
    needed, read = -(-FEWEST_JUDGED // step) * step, len(source.selection.rows)
    if job.options["hold_out"] is not None or len(source.selection.held_out) >= needed or read < 2 * needed:
        return job
    return job.with_options(hold_out=needed)


def _calibration_rows(job: Job) -> RowSource:
    if job.calibration is None:
        raise UsageError("There is nothing to judge by: give calibration data (--calib), and --eval or --metric.")
    source = open_source(
        job.calibration,
        input_specs(load(job.model)),
        preprocess=job.preprocess,
        limit=job.options["limit"],
        hold_out=job.options["hold_out"],
        seed=job.options["seed"],
        batch=job.options["batch"],
    )
    if not isinstance(source, RowSource):
        raise UsageError(
            "Models are judged on the same samples again and again, which a stream cannot give: give --eval a folder, "
            "or an array."
        )
    return source


def run_tuning(job: Job, output: Path | None, options: TuneOptions) -> Tuning:
    """Tune; see `detent.tune`. The result and its recipe are written if there is an output."""
    max_drop, budget, toml = options["max_drop"], options["budget"], options["toml"]
    recipe_file = Path(toml) if toml is not None else None if output is None else recipe_beside(output)
    if not max_drop >= 0.0:
        raise UsageError(f"The acceptable loss is {max_drop}: it must not be negative.")
    seconds = None if budget is None else parse_duration(budget)
    for file in filter(None, (output, recipe_file)):
        check_output(file, job.model)
    metric = as_metric(options["metric"])
    if options["evaluation"] is None:
        job = with_enough_held_out(job)
    record = Record.open(output, _key(job, options, metric), resume=options["resume"])
    clock = Clock(seconds)
    evaluator = open_judge(job, options, metric)
    expected = None if evaluator.compares_outputs else evaluator.evaluate(job.model)
    tuner = Tuner(job, evaluator, expected, max_drop, clock, record, options["on_step"] or (lambda _: None))
    stopped = tuner.run()
    assert tuner.best is not None, "the first step is always finished"
    proto = tuner.best.model if tuner.best.model is not None else record.best_model()
    result = replace(_result(tuner, tuner.best, stopped), model=proto, output=None if output is None else str(output))
    result = replace(result, recipe=_decided(result.recipe, proto))
    if output is not None:
        save(ir.from_proto(proto), output)
    if recipe_file is not None:
        result = result.with_file(recipe_file)
    if stopped == OUT_OF_TIME and not result.met and record.folder is not None:
        return replace(result, kept=str(record.folder))
    record.remove()
    return result


def _decided(recipe: Recipe, model: onnx.ModelProto) -> Recipe:
    """Return the recipe of `model`, with `without` for the steps that `quantize` might otherwise add by itself."""
    if recipe.also or recipe.refinement is None:
        return recipe
    present = {node.op_type for node in model.graph.node}
    steps = [step for step, operator in WHERE_IT_HELPS.items() if operator in present]
    return recipe.replace(without=tuple(dict.fromkeys((*recipe.without, *steps))))


def _key(job: Job, options: TuneOptions, metric: Metric | None) -> str:
    """Return what the outcomes of steps depend on."""
    judged = [options[name] for name in ("labels", "label_offset", "eval_limit")]
    return key_of(
        {
            "model": fingerprint_of(load(job.model)),
            "recipe": to_toml(job.recipe),
            "calibration": contents_of(job.calibration),
            "options": [
                job.preprocess,
                job.shapes,
                *(job.options[name] for name in ("limit", "hold_out", "seed", "batch", "task")),
            ],
            "preprocess": contents_of(job.preprocess.file) if job.preprocess and job.preprocess.file else None,
            "evaluation": [contents_of(options["evaluation"]), *judged],
            "metric": None if metric is None else contents_of(metric.origin) or metric.name,
        }
    )


def _result(tuner: Tuner, best: TriedStep, stopped: str) -> Tuning:
    job, base = tuner.job, tuner.job.recipe
    tuned = best.step.recipe
    if tuned != base:
        tuned = tuned.replace(name=f"{base.name}-tuned", description=f"{base.name}, tuned: {best.step.name}")
    return Tuning(
        source=name_of(job.model),
        output=None,
        recipe=tuned,
        taken=best.outcome.name,
        steps=tuner.outcomes,
        max_drop=tuner.max_drop,
        met=best.outcome.loss <= tuner.max_drop,
        stopped=stopped,
        data=tuner.evaluator.dataset.described + in_integers(base.emulated),
        note=tuner.evaluator.dataset.note,
        reference="what the others are compared with" if tuner.expected is None else tuner.expected.summary,
        samples=len(tuner.evaluator.dataset),
        seconds=tuner.clock.elapsed,
        bytes_before=stored_bytes(job.model),
        blame=_blame_text(tuner.blame),
    )


def _blame_text(blame: Blame | None) -> str:
    """Say what causes the error, and which steps were left out for that."""
    if blame is None:
        return ""
    kind: Kind = "weights" if blame.weights >= blame.activations else "activations"
    other: Kind = "activations" if kind == "weights" else "weights"
    text = f"Rounding the {kind} makes {100 * blame.share(kind):.0f} % of the error"
    return f"{text}." if blame.blames(other) else f"{text}: steps that only change {other} were left out."
