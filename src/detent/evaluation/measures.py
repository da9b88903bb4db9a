"""Who looks at a model's outputs: one judge for each kind of `Scores`.

A judge sees a batch twice. `look` runs in worker threads, several at once, and keeps what is needed of the outputs;
`add` gets that back in the order of the samples, in one thread, so that sums do not depend on timing and a user's own
code need not be thread-safe. What a judge keeps for longer is a small record for each sample; only the outputs for a
metric of all samples together are kept whole, in a temporary file.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from detent.errors import DataError, ModelError, OutputError, UsageError
from detent.evaluation.candidate import Candidate
from detent.evaluation.dataset import Dataset
from detent.evaluation.metric_file import LabelledSample, Metric, Outputs
from detent.evaluation.noise import NoiseSums
from detent.evaluation.scores import NO_ANSWER, Answers, Deviation, Integers, SampleScores, Scores, WholeScore
from detent.execute.inference import Batch, rows_of
from detent.observe.samples import Array, Sample


class Measure(Protocol):
    """Looks at one model."""

    def look(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> Any:
        """What to keep of a batch. Called from several threads at once."""

    def add(self, batch: Batch, kept: Any) -> None:
        """The next batch, in order."""

    def scores(self) -> Scores:
        """The verdict, after the last batch."""


def class_scores(outputs: Mapping[str, Array], size: int) -> Array | None:
    """The first output that is a row of class scores for each sample: (samples, classes), perhaps with axes of 1."""
    for array in outputs.values():
        if array.ndim >= 2 and array.shape[0] == size and array.shape[1] >= 2 and array[0, 0].size == 1:
            return array.reshape(size, -1).astype(np.float32, copy=False)
    return None


def top_answers(scores: Array) -> Integers:
    """The class of the largest score of each row, the first of equals; NO_ANSWER for rows with a NaN."""
    answers: Integers = np.where(np.isnan(scores).any(1), NO_ANSWER, scores.argmax(1)).astype(np.int64)
    return answers


def ranks_of(scores: Array, labels: Integers) -> Integers:
    """How many classes come before the label: larger scores, and equal ones of a lower class. All, where one is NaN."""
    own = np.take_along_axis(scores, labels[:, np.newaxis], 1)
    before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, np.newaxis]))
    ranks: Integers = np.where(np.isnan(scores).any(1), scores.shape[1], before.sum(1)).astype(np.int64)
    return ranks


class AccuracyMeasure:
    """Whether the label is the top answer."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._names: list[str] = []
        self._kept: list[tuple[Integers, Integers, Integers]] = []
        self._classes = 0

    def look(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> tuple[int, Integers, Integers]:
        """The number of classes, the answers, and the ranks of the labels."""
        scores = class_scores(outputs, len(batch.names))
        if scores is None:
            shapes = ", ".join(f"'{name}' {list(array.shape)}" for name, array in outputs.items())
            raise ModelError(
                f"The data has labels, but no output is a row of class scores for each sample: {shapes} on "
                f"{sample.origin}. Give a metric of your own (--metric FILE.py), or --no-labels to compare outputs."
            )
        classes = scores.shape[1]
        assert batch.labels is not None
        if not self._kept:
            _check_range(self._dataset, classes)
        return classes, top_answers(scores), ranks_of(scores, batch.labels)

    def add(self, batch: Batch, kept: tuple[int, Integers, Integers]) -> None:
        """Keep two numbers for each sample, beside its label."""
        assert batch.labels is not None
        self._classes, answers, ranks = kept
        self._names += batch.names
        self._kept.append((batch.labels, answers, ranks))

    def scores(self) -> Answers:
        """All of them."""
        labels, answers, ranks = (np.concatenate(column) for column in zip(*self._kept, strict=True))
        return Answers(self._names, labels, answers, ranks, self._classes)


def _check_range(dataset: Dataset, classes: int) -> None:
    """DataError where a label is none of the model's classes, or where which class it is can only be a wrong guess."""
    used, offset = dataset.used_labels(), dataset.label_offset
    outside = [name for name, label in used.items() if not 0 <= label < classes]
    if outside:
        shifted = f" (with --label-offset {offset})" if offset else ""
        raise DataError(
            f"{outside[0]} has the label {used[outside[0]]}{shifted}, but the model has the classes 0 to {classes - 1} "
            f"({len(outside)} of {len(used)} samples are outside). Labels count from 0; --label-offset N adds N to "
            "all, and --no-labels compares outputs without them."
        )
    assumed = dataset.assumed_classes
    if assumed is not None and assumed + offset != classes:
        raise DataError(
            f"There are {assumed} class folders, but the model has {classes} classes: which of them is which is not "
            "known. Name the folders by the numbers of the classes, or put a classes.txt beside them, with the name "
            "of each class in the model's order, one to a line; or give --no-labels to compare outputs without them."
        )


class DeviationMeasure:
    """How far the outputs are from those of the reference model."""

    def __init__(self, reference: CachedOutputs) -> None:
        self._reference = reference
        self._names: list[str] = []
        self._sums: dict[str, NoiseSums] = {}
        self._noise: list[list[float]] = []
        self._signal: list[list[float]] = []
        self._expected: list[Integers] = []
        self._answers: list[Integers] = []

    def look(
        self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]
    ) -> tuple[list[dict[str, NoiseSums]], Integers | None, Integers | None]:
        """The sums of each sample, and the top answers of both models."""
        size = len(batch.names)
        expected = self._reference(sample)
        for name, array in expected.items():
            if array.shape != outputs[name].shape:
                raise ModelError(
                    f"Output '{name}' has the shape {list(outputs[name].shape)} on {sample.origin}, but that of "
                    f"{self._reference.name} is {list(array.shape)}: there is nothing to compare. Give a metric of "
                    "your own (--metric FILE.py)."
                )
        sums = []
        for at in range(size):
            one, other = (rows_of(each, at, size, sample.origin) for each in (expected, outputs))
            sums.append({name: NoiseSums.of(one[name], other[name]) for name in one if one[name].dtype.kind in "fiub"})
        before, after = class_scores(expected, size), class_scores(outputs, size)
        if before is None or after is None:
            return sums, None, None
        return sums, top_answers(before), top_answers(after)

    def add(self, batch: Batch, kept: tuple[list[dict[str, NoiseSums]], Integers | None, Integers | None]) -> None:
        """Keep two numbers for each sample and output, and two answers."""
        sums, expected, answers = kept
        self._names += batch.names
        for sample in sums:
            self._sums = {name: self._sums.get(name, NoiseSums()) + more for name, more in sample.items()}
            self._noise.append([each.noise for each in sample.values()])
            self._signal.append([each.signal for each in sample.values()])
        if expected is not None and answers is not None:
            self._expected.append(expected)
            self._answers.append(answers)

    def scores(self) -> Deviation:
        """All of them. Answers are compared only where every sample has one."""
        answered = sum(len(each) for each in self._expected) == len(self._names)
        return Deviation(
            self._names,
            {name: sums.closeness() for name, sums in self._sums.items()},
            np.array(self._noise, np.float64),
            np.array(self._signal, np.float64),
            np.concatenate(self._expected) if answered else None,
            np.concatenate(self._answers) if answered else None,
        )


class SampleMeasure:
    """The user's own measure, sample by sample."""

    def __init__(self, dataset: Dataset, metric: Metric) -> None:
        self._dataset = dataset
        self._metric = metric
        self._names: list[str] = []
        self._values: list[float] = []

    def look(
        self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]
    ) -> list[tuple[Mapping[str, Array], Mapping[str, Array]]]:
        """Inputs and outputs of each sample."""
        size = len(batch.names)
        parts = (sample.feeds, outputs)
        return [tuple(rows_of(part, at, size, sample.origin) for part in parts) for at in range(size)]  # type: ignore[misc]

    def add(self, batch: Batch, kept: list[tuple[Mapping[str, Array], Mapping[str, Array]]]) -> None:
        """Ask the user's function."""
        for at, (inputs, outputs) in enumerate(kept):
            name = batch.names[at]
            label = None if batch.labels is None else int(batch.labels[at])
            sample = LabelledSample(name, self._dataset.path(name), label, inputs)
            self._names.append(name)
            self._values.append(self._metric.of_sample(_as_given(outputs), sample))

    def scores(self) -> SampleScores:
        """All of them."""
        metric = self._metric
        return SampleScores(self._names, np.array(self._values, np.float64), metric.name, metric.lower_is_better)


class WholeMeasure:
    """The user's own measure of all samples at once. Their outputs wait for it in temporary files."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._stores: dict[str, RowStore] = {}
        self._labels: list[Integers] = []
        self._done = 0

    def look(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs, as they are."""
        size = len(batch.names)
        for name, array in outputs.items():
            if array.shape[:1] != (size,) or array.dtype.hasobject:
                raise self._not_rows(name, array, f"{sample.origin}, which should be {size} row(s) of numbers")
        return outputs

    def add(self, batch: Batch, kept: Mapping[str, Array]) -> None:
        """Put the rows behind those before them."""
        for name, array in kept.items():
            store = self._stores.setdefault(name, RowStore(array.dtype, array.shape[1:]))
            if array.shape[1:] != store.shape:
                raise self._not_rows(name, array, f"{batch.names[0]}, but rows of {list(store.shape)} before")
            store.append(array)
        if batch.labels is not None:
            self._labels.append(batch.labels)
        self._done += len(batch.names)

    def scores(self) -> WholeScore:
        """Ask the user's function."""
        labels = np.concatenate(self._labels) if self._labels else None
        outputs = {name: store.rows() for name, store in self._stores.items()}
        value = self._metric.of_all(_as_given(outputs), labels)
        return WholeScore(value, self._metric.name, self._metric.lower_is_better, self._done)

    def _not_rows(self, name: str, array: Array, where: str) -> UsageError:
        return UsageError(
            f"{self._metric.origin}: metric(outputs, labels) is given one row for each sample, but output '{name}' is "
            f"{array.dtype} {list(array.shape)} on {where}. Define score(outputs, sample) instead, which is given the "
            "outputs of one sample as they are."
        )


def _as_given(outputs: Mapping[str, Array]) -> Outputs:
    """As the user's function takes them: the array itself where there is only one."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


# FUSED The outputs of a model on samples that it has seen, as far as a small amount of memory goes.


MOST_BYTES = 32 * 2**20
"""Class scores of 8,000 samples of 1,000 classes; of larger outputs the first few."""


class CachedOutputs:
    """Runs a model, and again only on samples whose outputs there was no room for. Any number of threads may call it.

    Samples are told apart by their index: they must come from one source.
    """

    def __init__(self, candidate: Candidate, most_bytes: int = MOST_BYTES) -> None:
        self.name = candidate.name
        self._candidate = candidate
        self._room = most_bytes
        self._outputs: dict[int, dict[str, Array]] = {}
        self._lock = threading.Lock()

    def __call__(self, sample: Sample) -> dict[str, Array]:
        """All outputs by name."""
        known = self._outputs.get(sample.index)
        if known is not None:
            return known
        outputs = self._candidate(sample)
        size = sum(array.nbytes for array in outputs.values())
        with self._lock:
            if size <= self._room and sample.index not in self._outputs:
                self._outputs[sample.index] = outputs
                self._room -= size
        return outputs


# FUSED Rows of numbers that are put away in a temporary file as they come, and read back as one array.


class RowStore:
    """An array that grows along its first axis. It takes no memory; the file has no name and goes with the object."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._dtype = dtype
        self._count = 0
        self._file = tempfile.TemporaryFile(prefix="detent-")  # noqa: SIM115  (lives as long as the object)

    def append(self, rows: Array) -> None:
        """Put rows of the store's shape and type behind those before."""
        try:
            self._file.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        except OSError as error:
            raise OutputError(
                f"Cannot keep the model's outputs in {tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to a folder "
                "with more room, or use fewer samples (--limit)."
            ) from error
        self._count += len(rows)

    def rows(self) -> Array:
        """All rows, mapped into memory as they are read. What is written to the array does not reach the file."""
        shape = (self._count, *self.shape)
        if 0 in shape:
            return np.empty(shape, self._dtype)
        self._file.flush()
        return np.memmap(self._file, self._dtype, "c", shape=shape)

    def __del__(self) -> None:
        self._file.close()
