"""Evaluation from end to end: models and data in, what each model got and lost out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from detent.errors import UsageError
from detent.evaluation.candidate import AnyModel, Candidate, model_name
from detent.evaluation.dataset import FIND, LabelsLike
from detent.evaluation.evaluator import Evaluator
from detent.evaluation.metric_file import Metric
from detent.graph.load import stored_bytes
from detent.numerics.rounding import DeviceRounding
from detent.observe.preprocess import PreprocessOptions
from detent.progress import Progress, silent
from detent.results.evaluated import (
    Answers,
    Deviation,
    Evaluation,
    Loss,
    ModelResult,
    Scores,
    compare,
    compare_answers,
    deviation_loss,
)


def run_evaluation(
    models: Sequence[AnyModel],
    data: Any,
    *,
    labels: LabelsLike = FIND,
    label_offset: int = 0,
    metric: str | Path | Metric | None = None,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: Sequence[str],
    emulate: DeviceRounding | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Judge all models; see `detent.evaluate` for the arguments."""
    if not models:
        raise UsageError("Give a model to evaluate, or several to compare with the first.")
    evaluator = Evaluator(
        models[0],
        data,
        labels=labels,
        label_offset=label_offset,
        metric=metric,
        preprocess=preprocess,
        limit=limit,
        batch=batch,
        threads=threads,
        providers=providers,
        emulate=emulate,
        progress=progress,
    )
    if emulate is not None and len(models) == 1:
        models = [*models, *models]  # the file as onnxruntime computes it, and in integers
    if evaluator.compares_outputs and len(models) == 1:
        raise UsageError(
            f"There are no labels and no metric ({evaluator.dataset.described}), so outputs are compared with those "
            "of the first model: give two models or more, labelled data (--labels), or --metric FILE.py."
        )
    # All are loaded before any is measured: a file that is not there should not be missed at the very end.
    others = [evaluator.load(model) for model in models[1:]]
    recipe = evaluator.dataset.preprocess
    return Evaluation(
        data=evaluator.dataset.described,
        note=evaluator.dataset.note,
        samples=len(evaluator.dataset),
        preprocess=None if recipe is None else recipe.to_dict(),
        models=_results(evaluator, models, others, emulate),
    )


def _results(
    evaluator: Evaluator, models: Sequence[AnyModel], others: Sequence[Candidate], emulate: DeviceRounding | None
) -> list[ModelResult]:
    results: list[ModelResult] = []
    first: Scores | None = None
    for number, (model, candidate) in enumerate(zip(models, (evaluator.reference, *others), strict=True)):
        start = time.perf_counter()
        # The first model is compared with itself by definition, not by running it twice.
        scores = None if number == 0 and evaluator.compares_outputs else evaluator.score(candidate)
        seconds = time.perf_counter() - start
        losses = () if number == 0 else _losses(first, scores)
        first = scores if number == 0 else first
        size = None if isinstance(model, ir.Model) else stored_bytes(model)
        name = model_name(model) + (f" (in integers, {emulate})" if number and emulate else "")
        results.append(ModelResult(name, size, seconds, scores, losses))
    return results


def _losses(before: Scores | None, after: Scores | None) -> tuple[Loss, ...]:
    if isinstance(after, Deviation):
        return (deviation_loss(after),)
    if isinstance(before, Answers) and isinstance(after, Answers):
        return tuple(compare_answers(before, after, top) for top in before.tops)
    assert before is not None
    assert after is not None
    return (compare(before, after),)
