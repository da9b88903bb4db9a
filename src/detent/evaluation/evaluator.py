"""Evaluating models on the same samples, one model at a time.

    evaluator = Evaluator("model.onnx", "photos/")
    before = evaluator.evaluate("model.onnx")
    loss = compare(before, evaluator.evaluate(candidate))
    loss.points, loss.unit, loss.interval

What is measured follows from what there is: a metric of the user's own, else the accuracy on labels, else how far the
outputs are from those of the reference model. Images are decoded and models run in threads, in exact arithmetic;
memory does not grow with the data but for a small record of each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from detent.evaluation.candidate import AnyModel, Candidate, same_model
from detent.evaluation.dataset import FIND, Dataset, LabelsLike, open_dataset
from detent.evaluation.measures import (
    AccuracyMeasure,
    CachedOutputs,
    DeviationMeasure,
    Measure,
    SampleMeasure,
    WholeMeasure,
)
from detent.evaluation.metric_file import Metric, as_metric
from detent.execute.inference import Batch, map_in_order
from detent.graph.session import DEFAULT_PROVIDERS
from detent.numerics.rounding import DeviceRounding
from detent.observe.preprocess import PreprocessOptions, preprocess_options
from detent.progress import Progress, silent
from detent.results.evaluated import Scores

STAGE = "evaluate"


class Evaluator:
    """Data and a measure, opened once, for any number of models.

    Keeps no model but the reference, and of its outputs no more than a few megabytes, to run it less often.
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
            progress: called as progress(stage, done, total).
        """
        self.metric = as_metric(metric)
        self.reference = Candidate(reference, providers)
        self.dataset: Dataset = (
            data
            if isinstance(data, Dataset)
            else open_dataset(
                data,
                self.reference.inputs,
                labels=labels,
                label_offset=label_offset,
                preprocess=preprocess_options(preprocess),
                limit=limit,
                batch=batch,
            )
        )
        self._given = reference
        self._reference_outputs = CachedOutputs(self.reference)
        self._threads = threads
        self._providers = tuple(providers)
        self._emulate = emulate
        self.progress = progress

    @property
    def compares_outputs(self) -> bool:
        """Whether models are only compared with the reference: there are no labels and no metric."""
        return self.metric is None and self.dataset.labels is None

    def evaluate(self, model: AnyModel) -> Scores:
        """What this model gets: a path, a ModelProto or an ir.Model with the inputs and outputs of the reference."""
        if same_model(model, self._given):
            return self.score(self.reference)
        return self.score(self.load(model))

    def load(self, model: AnyModel) -> Candidate:
        """A model to compare with the reference, be it the same file: in integers, if so asked."""
        candidate = Candidate(model, self._providers, emulate=self._emulate)
        candidate.check_like(self.reference)
        return candidate

    def score(self, candidate: Candidate) -> Scores:
        """Return the scores of a model that is loaded already."""
        measure = self._measure()

        def record(batch: Batch) -> Any:
            sample = batch.pending.load()
            return measure.record(batch, sample, candidate(sample))

        return measure.scores(self._watched(map_in_order(record, self.dataset, self._threads)))

    def _watched(self, records: Iterator[tuple[Batch, Any]]) -> Iterator[tuple[Batch, Any]]:
        """Pass records on, and tell the progress of each once it is dealt with."""
        self.progress(STAGE, 0, self.dataset.batches)
        for done, each in enumerate(records, 1):
            yield each
            self.progress(STAGE, done, self.dataset.batches)

    def _measure(self) -> Measure[Any]:
        if self.metric is not None:
            per_sample = self.metric.score is not None
            return SampleMeasure(self.dataset, self.metric) if per_sample else WholeMeasure(self.metric)
        return DeviationMeasure(self._reference_outputs) if self.compares_outputs else AccuracyMeasure(self.dataset)
