"""Evaluate models on the same samples, one model at a time.

    evaluator = Evaluator("model.onnx", "photos/")
    before = evaluator.evaluate("model.onnx")
    loss = compare_scores(before, evaluator.evaluate(candidate))
    loss.points, loss.unit, loss.interval

What is measured follows from what is given: a metric of the user's own, else the accuracy on labels, which are classes
of samples, boxes, masks or pairs, else how far the outputs are from those of the reference model. Images are decoded
and models run in threads, in exact arithmetic. Memory grows with the data by a small record of each sample only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import onnx_ir as ir

from detent.errors import UsageError
from detent.evaluation import measures
from detent.evaluation.candidate import AnyModel, Candidate, model_name, same_model
from detent.evaluation.data_check import ASKED, settled
from detent.evaluation.dataset import FIND, Dataset, LabelsLike, open_dataset
from detent.evaluation.metric_file import Metric, as_metric
from detent.evaluation.task_measures import task_measure
from detent.execute.inference import Batch, map_in_order
from detent.graph.load import read, stored_bytes
from detent.graph.session import DEFAULT_PROVIDERS
from detent.numerics.codec import DeviceRounding
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.progress import Progress, silent
from detent.results import evaluated
from detent.tasks import Task, answer_heads, find_task
from detent.tasks.parts import OutputPart
from detent.tasks.purpose import Purpose, purpose_of

STAGE = "evaluate"


class Evaluator:
    """Data and a measure, opened once, for any number of models.

    Keeps no model but the reference, and at most a few megabytes of its outputs, to run it less often.
    """

    def __init__(
        self,
        reference: AnyModel,
        data: Any,
        *,
        labels: LabelsLike = FIND,
        label_offset: int = 0,
        metric: str | Path | Metric | None = None,
        preprocess: PreprocessOptions | Mapping[str, Any] | str | PathLike[str] | None = None,
        limit: int | None = None,
        batch: int | None = None,
        threads: int = 0,
        providers: Sequence[str] = DEFAULT_PROVIDERS,
        emulate: DeviceRounding | None = None,
        task: str | None = None,
        purpose: tuple[Purpose, Mapping[str, Sequence[OutputPart]]] | None = None,
        progress: Progress = silent,
    ) -> None:
        """Open the data for models like `reference`. Raises a DetentError for whatever does not fit.

        Args:
            reference: the model to compare with, normally the float one.
            data: a folder, a file, an array, a dict {input: array}, or a Dataset that is open already.
            labels: those in the folder (`FIND`), a file, a list, {name: label}, or None: compare outputs only.
            label_offset: added to every label; 1 where class 0 of the model is its background.
            metric: a Python file with score() or metric(), or a Metric.
            preprocess: how images become arrays, as for `quantize`.
            limit: use at most this many samples, evenly spaced.
            batch: samples per inference.
            threads: worker threads; 0: one per core.
            providers: onnxruntime's execution providers.
            emulate: compute the models that are compared in integers, with this rounding, as the NPU does.
            task: what the model is for, if the labels are to be of it.
            purpose: without labels, judge answers as this task reads them, and outputs by these parts.
            progress: called as progress(stage, done, total).
        """
        self.metric = as_metric(metric)
        self.reference = Candidate(reference, providers)
        if not isinstance(data, Dataset):
            inputs, images = self.reference.inputs, preprocess_options(preprocess)
            labelled = partial(open_dataset, labels=labels, label_offset=label_offset)
            data = labelled(data, inputs, preprocess=images, limit=limit, batch=batch)
        self.dataset: Dataset = data
        if task is not None:
            _check_task(task, reference, self.dataset)
        self._given = reference
        self._task = task
        self._purpose = purpose
        self._reference_outputs = measures.CachedOutputs(self.reference)
        self._threads = threads
        self._providers = tuple(providers)
        self.emulate = emulate
        self.progress = progress

    @property
    def compares_outputs(self) -> bool:
        """Whether models are only compared with the reference: there are no labels and no metric."""
        return self.metric is None and self.dataset.labels is None and self.dataset.truths is None

    def evaluate(self, model: AnyModel) -> evaluated.Scores:
        """Return the scores of a path, ModelProto or ir.Model with the inputs and outputs of the reference."""
        if same_model(model, self._given):
            return self.score(self.reference)
        return self.score(self.load(model))

    def load(self, model: AnyModel) -> Candidate:
        """Load a model to compare with the reference, which may be the same file: in integers with `emulate`."""
        candidate = Candidate(model, self._providers, emulate=self.emulate)
        candidate.check_like(self.reference)
        return candidate

    def score(self, candidate: Candidate) -> evaluated.Scores:
        """Return the scores of a model that is loaded already."""
        measure = self._measure()

        def record(batch: Batch) -> Any:
            sample = batch.pending.load()
            return measure.record(batch, sample, candidate(sample))

        return measure.scores(self._watched(map_in_order(record, self.dataset, self._threads)))

    def _watched(self, records: Iterator[tuple[Batch, Any]]) -> Iterator[tuple[Batch, Any]]:
        """Pass records on, and report progress after each."""
        self.progress(STAGE, 0, self.dataset.batches)
        for done, each in enumerate(records, 1):
            yield each
            self.progress(STAGE, done, self.dataset.batches)

    def _measure(self) -> measures.Measure[Any]:
        if self.metric is not None and self.metric.score is not None:
            return measures.SampleMeasure(self.dataset, self.metric)
        if self.metric is not None:
            return measures.WholeMeasure(self.metric)
        if self.dataset.truths is not None:
            return task_measure(self.dataset, self.reference.inputs[0].declared)
        if not self.compares_outputs:
            return measures.AccuracyMeasure(self.dataset, answer_heads(Task.CLASSIFY, self._model.graph))
        if self._purpose is not None:
            return measures.AgreementMeasure(self._reference_outputs, *self._purpose)
        return measures.DeviationMeasure(self._reference_outputs, self._recognised)

    @cached_property
    def _model(self) -> ir.Model:
        return self._given if isinstance(self._given, ir.Model) else read(self._given)

    @cached_property
    def _recognised(self) -> Purpose:
        """Return what the reference model is for. The outputs of a sample tell shapes that its file may leave open."""
        first = list(islice(self.dataset, ASKED))

        def answer(at: int) -> Mapping[str, Any]:
            return self._reference_outputs(first[at].pending.load())

        shapes = {name: array.shape for name, array in answer(0).items()}
        purpose = purpose_of(self._model, self._task, shapes)
        return purpose if self._task is not None else settled(purpose, answer, len(first), len(first[0].names))


def _check_task(task: str, model: AnyModel, dataset: Dataset) -> None:
    """Raise UsageError for a task that the model cannot have, or that the labels are not of."""
    loaded = model if isinstance(model, ir.Model) else read(model)
    found, _ = find_task(task, loaded.graph, loaded.metadata_props)
    labelled = Task.CLASSIFY if dataset.labels is not None else None if dataset.truths is None else dataset.truths.task
    if labelled is not None and labelled is not found:
        raise UsageError(
            f"--task {task}, but {dataset.labelled_by} has labels to {labelled}. Give labels of the task (--labels) or "
            "none (--no-labels)."
        )


def run_evaluation(models: Sequence[AnyModel], data: Any, **options: Any) -> evaluated.Evaluation:
    """Evaluate all models and compare them with the first. `options` are those of Evaluator."""
    if not models:
        raise UsageError("Give a model to evaluate, or several to compare with the first.")
    evaluator = Evaluator(models[0], data, **options)
    if evaluator.emulate is not None and len(models) == 1:
        models = [*models, *models]  # the file as onnxruntime computes it, and in integers
    if evaluator.compares_outputs and len(models) == 1:
        raise UsageError(
            f"There are no labels and no metric ({evaluator.dataset.described}), so outputs are compared with those "
            "of the first model: give two models or more, labelled data (--labels), or --metric FILE.py."
        )
    # All are loaded before any is measured: a missing file should not be noticed at the very end.
    others = [evaluator.load(model) for model in models[1:]]
    preprocess = evaluator.dataset.preprocess
    return evaluated.Evaluation(
        data=evaluator.dataset.described,
        note=evaluator.dataset.note,
        samples=len(evaluator.dataset),
        preprocess=None if preprocess is None else preprocess.to_dict(),
        models=_results(evaluator, models, others),
    )


def _results(
    evaluator: Evaluator, models: Sequence[AnyModel], others: Sequence[Candidate]
) -> list[evaluated.ModelResult]:
    results: list[evaluated.ModelResult] = []
    for number, (model, candidate) in enumerate(zip(models, (evaluator.reference, *others), strict=True)):
        start = time.perf_counter()
        # The first model is compared with itself by definition, not by running it twice.
        scores = None if number == 0 and evaluator.compares_outputs else evaluator.score(candidate)
        seconds = time.perf_counter() - start
        if number == 0 and scores is not None:
            scores.check_reference(candidate.name)
        losses = scores.losses_against(results[0].scores) if number and scores is not None else ()
        size = model.meta.get("bytes") if isinstance(model, ir.Model) else stored_bytes(model)
        name = model_name(model) + (f" (in integers, {evaluator.emulate})" if number and evaluator.emulate else "")
        results.append(evaluated.ModelResult(name, size, seconds, scores, losses))
    return results
