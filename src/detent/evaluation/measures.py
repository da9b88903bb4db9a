"""What is measured of a model's outputs: one `Measure` for each kind of `Scores`.

A measure has two halves. `record` runs in worker threads, several batches at once, and keeps what is needed of their
outputs. `scores` reads the records in the order of the samples, in one thread, so that sums do not depend on timing and
a user's own code need not be thread-safe. Measures hold no state of a model: one serves any number of them. How the
scores of two models are compared, and with which interval, is up to the `Scores` that a measure returns.

Memory holds a small record for each sample. Only a metric of all samples together needs their outputs whole: they wait
in a temporary file.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from detent.errors import DataError, ModelError, OutputError, UsageError
from detent.evaluation import task_agreement
from detent.evaluation.candidate import Candidate
from detent.evaluation.dataset import Dataset
from detent.evaluation.fidelity import NoiseSums
from detent.evaluation.metric_file import LabelledSample, Metric, Outputs
from detent.evaluation.sample_answers import SampleAnswer, without_common_infinities
from detent.execute.inference import Batch
from detent.observe.samples import Array, Sample
from detent.results.evaluated import NO_ANSWER, Answers, Deviation, Integers, SampleScores, Scores, WholeScore
from detent.results.paired import Floats
from detent.results.task_scores import AgreementScores
from detent.tasks import Task
from detent.tasks.parts import OutputPart
from detent.tasks.purpose import Purpose

# Room for the class scores of 8,000 samples of 1,000 classes; of larger outputs for the first few samples.
CACHE_BYTES = 32 * 2**20

Record = TypeVar("Record")


class Measure(Protocol[Record]):
    """What is computed of each batch, and how it becomes the scores of a model."""

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> Record:
        """Return what to keep of a batch. Called from several threads at once."""

    def scores(self, records: Iterable[tuple[Batch, Record]]) -> Scores:
        """Return the scores of all batches, which come in order and in one thread."""


def by_sample(records: Iterable[tuple[Batch, Sequence[Record]]]) -> tuple[list[str], list[Record]]:
    """Return the names of all samples, and the parts of all records, in order."""
    names: list[str] = []
    found: list[Record] = []
    for batch, record in records:
        names += batch.names
        found += record
    return names, found


def class_scores(outputs: Mapping[str, Array], size: int, heads: Container[str]) -> Array | None:
    """Return the first output that is a row of class scores for each sample: (samples, classes), or with axes of 1.

    It is one of `heads` if any of these is given out: features may come before what is computed from them.
    """
    rows = [array for name, array in outputs.items() if name in heads]
    for array in rows or outputs.values():
        if array.ndim >= 2 and array.shape[0] == size and array.shape[1] >= 2 and array[0, 0].size == 1:
            return array.reshape(size, -1).astype(np.float32, copy=False)
    return None


def top_answers(scores: Array) -> Integers:
    """Return the class of the largest score of each row, the first of equals; NO_ANSWER for rows with a NaN."""
    answers: Integers = np.where(np.isnan(scores).any(1), NO_ANSWER, scores.argmax(1)).astype(np.int64)
    return answers


def ranks_of(scores: Array, labels: Integers) -> Integers:
    """Count the classes before the label: those of larger scores, and of equal ones if lower. A NaN puts it last."""
    own = np.take_along_axis(scores, labels[:, np.newaxis], 1)
    before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, np.newaxis]))
    ranks: Integers = np.where(np.isnan(scores).any(1), scores.shape[1], before.sum(1)).astype(np.int64)
    return ranks


class AnswerRecord(NamedTuple):
    """The number of classes, and for each sample its label, the model's answer and the rank of the label."""

    classes: int
    labels: Integers
    answers: Integers
    ranks: Integers


class AccuracyMeasure:
    """Compares the top answers with labels."""

    def __init__(self, dataset: Dataset, heads: Container[str]) -> None:
        self._dataset, self._heads = dataset, heads
        self._checked_classes: int | None = None

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> AnswerRecord:
        scores = class_scores(outputs, len(batch.names), self._heads)
        if scores is None:
            shapes = ", ".join(f"'{name}' {list(array.shape)}" for name, array in outputs.items())
            raise ModelError(
                f"The data has labels, but no output is a row of class scores for each sample: {shapes} on "
                f"{sample.origin}. Give a metric of your own (--metric FILE.py), or --no-labels to compare outputs."
            )
        classes = scores.shape[1]
        assert batch.labels is not None
        if classes != self._checked_classes:  # a second thread may check once more, to the same end
            _check_labels(self._dataset, classes)
            self._checked_classes = classes
        return AnswerRecord(classes, batch.labels, top_answers(scores), ranks_of(scores, batch.labels))

    def scores(self, records: Iterable[tuple[Batch, AnswerRecord]]) -> Answers:
        names, found = by_sample((batch, [record]) for batch, record in records)
        labels, answers, ranks = (np.concatenate(column) for column in zip(*(each[1:] for each in found), strict=True))
        return Answers(names, labels, answers, ranks, found[-1].classes)


def _check_labels(dataset: Dataset, classes: int) -> None:
    """Raise DataError for a label that is not a class of the model, or if classes of folders can only be guessed."""
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


class CachedOutputs:
    """Runs a model on each sample once, as far as there is room for its outputs. Any number of threads may call it.

    Samples are told apart by their index, so all must come from one source.
    """

    def __init__(self, candidate: Candidate, most_bytes: int = CACHE_BYTES) -> None:
        self.name = candidate.name
        self._candidate = candidate
        self._room = most_bytes
        self._outputs: dict[int, dict[str, Array]] = {}
        self._lock = threading.Lock()

    def __call__(self, sample: Sample) -> dict[str, Array]:
        known = self._outputs.get(sample.index)
        if known is not None:
            return known
        outputs = self._candidate(sample)
        size = sum(array.nbytes for array in outputs.values())
        # Two threads may have computed the same sample; the room must be taken once.
        with self._lock:
            if size <= self._room and sample.index not in self._outputs:
                self._outputs[sample.index] = outputs
                self._room -= size
        return outputs


MOST_PAIRS = 1 << 24  # of rows, that are looked at; with more, rows are compared in their order


def rows_axis(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """Return the axis along which two shapes have different numbers of rows, 0 if they are equal.

    None if they differ in more than that: then nothing can be compared.
    """
    differing = [axis for axis, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    return None if len(one) != len(other) or len(differing) > 1 else (differing or [0])[0]


def matched(expected: Array, found: Array) -> tuple[Array, Array]:
    """Return two outputs with the rows side by side that belong together, if one has more of them than the other.

    So it is with a model that selects rows by its data. Rows that are closest to each other are paired first. One
    without a partner stands beside zeros: it counts as error whole, and so does an output of another shape altogether.
    """
    axis = rows_axis(expected.shape, found.shape)
    if axis is None or expected.shape == found.shape:
        return expected, np.zeros_like(expected) if axis is None else found
    sides = [np.moveaxis(array, axis, 0) for array in (expected, found)]
    orders = _pairs(*(np.asarray(rows, np.float64).reshape(len(rows), math.prod(rows.shape[1:])) for rows in sides))
    longest = max(map(len, sides))
    placed = []
    for rows, paired in zip(sides, orders, strict=True):
        # Only the longer side has rows that are left, so they stand behind the pairs.
        order = [*paired, *sorted({*range(len(rows))} - {*paired})]
        blank = np.zeros((longest - len(rows), *rows.shape[1:]), rows.dtype)
        placed.append(np.moveaxis(np.concatenate([rows[order], blank]), 0, axis))
    return placed[0], placed[1]


def _pairs(one: Floats, other: Floats) -> tuple[list[int], list[int]]:
    """Return a partner for each row of the shorter side, the closest pair first."""
    count = min(len(one), len(other))
    if len(one) * len(other) > MOST_PAIRS:
        return list(range(count)), list(range(count))
    apart = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2.0 * (one @ other.T)
    chosen: dict[int, int] = {}
    taken: set[int] = set()
    for at in np.argsort(apart, axis=None, kind="stable").tolist():
        if len(chosen) == count:
            break
        row, partner = divmod(at, len(other))
        if row not in chosen and partner not in taken:
            chosen[row] = partner
            taken.add(partner)
    return list(chosen), list(chosen.values())


class DeviationRecord(NamedTuple):
    """The sums of each output of each sample; the top answers of both models if they classify, else all answers."""

    sums: list[dict[str, NoiseSums]]
    expected: Integers | None = None
    answers: Integers | None = None
    compared: Sequence[SampleAnswer] = ()


class DeviationMeasure:
    """Compares answers, as the task reads them, and outputs with those of the reference model."""

    def __init__(self, reference: CachedOutputs, purpose: Purpose) -> None:
        self._reference, self._purpose = reference, purpose

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> DeviationRecord:
        """Return the sums of each sample, and the answers of both models. What only passes an input on is neither."""
        expected, outputs = (self._purpose.answers(each) or each for each in (self._reference(sample), outputs))
        for name, array in expected.items():
            if rows_axis(array.shape, outputs[name].shape) is None:
                raise ModelError(
                    f"Output '{name}' has the shape {list(outputs[name].shape)} on {sample.origin}, but that of "
                    f"{self._reference.name} is {list(array.shape)}: there is nothing to compare. Give a metric of "
                    "your own (--metric FILE.py)."
                )
        pairs = zip(*map(batch.split, without_common_infinities(expected, outputs)), strict=True)
        sums = [
            {name: NoiseSums.of(*matched(one[name], other[name])) for name in one if one[name].dtype.kind in "fiub"}
            for one, other in pairs
        ]
        scored = [kind for kind in self._purpose.heads.values() if kind != "number"]
        if self._purpose.task is not Task.CLASSIFY or len(scored) > 1:
            compared = task_agreement.compare_answers(self._purpose, expected, outputs, len(batch.names))
            return DeviationRecord(sums, compared=compared)
        heads = self._purpose.heads
        before, after = (class_scores(each, len(batch.names), heads) for each in (expected, outputs))
        # Top answers count only where both models give class scores; the noise counts in any case.
        if before is None or after is None:
            return DeviationRecord(sums)
        return DeviationRecord(sums, top_answers(before), top_answers(after))

    def scores(self, records: Iterable[tuple[Batch, DeviationRecord]]) -> Deviation:
        """Add the sums up. Answers are compared only if every sample has one."""
        names: list[str] = []
        noise: list[list[float]] = []
        signal: list[list[float]] = []
        expected: list[Integers | None] = []
        answers: list[Integers | None] = []
        compared: list[SampleAnswer] = []
        totals: dict[str, NoiseSums] = {}
        for batch, record in records:
            names += batch.names
            expected.append(record.expected)
            answers.append(record.answers)
            task_agreement.add_answers(self._purpose, compared, record.compared)
            for sample in record.sums:
                totals = {name: totals.get(name, NoiseSums()) + more for name, more in sample.items()}
                noise.append([each.noise for each in sample.values()])
                signal.append([each.signal for each in sample.values()])
        _check_comparable(self._reference.name, len(names), any(each.elements for each in totals.values()))
        return Deviation(
            names,
            {name: sums.closeness() for name, sums in totals.items()},
            np.array(noise, np.float64),
            np.array(signal, np.float64),
            _joined(expected),
            _joined(answers),
            task_agreement.summarize_answers(self._purpose, compared if len(compared) == len(names) else []),
        )


def _check_comparable(model: str, samples: int, found: bool) -> None:
    """Raise DataError if the outputs of the reference model are empty on all samples: nothing could be lost then."""
    if not found:
        raise DataError(
            f"{model} answers with no rows on any of the {samples} samples, so there is nothing to compare. Give "
            "samples in which it finds something, and check how they are read (--mean, --std, --order)."
        )


class AgreementRecord(NamedTuple):
    """The sums of each part of the outputs of each sample, and what became of its answer."""

    sums: list[list[NoiseSums]]
    answers: list[SampleAnswer]


class AgreementMeasure:
    """Compares answers with those of the reference model, as its task reads them, and outputs by their parts."""

    def __init__(self, reference: CachedOutputs, purpose: Purpose, parts: Mapping[str, Sequence[OutputPart]]) -> None:
        self._reference, self._purpose, self._parts = reference, purpose, parts

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> AgreementRecord:
        """Return the sums of each sample, and its answer."""
        expected = self._reference(sample)
        pairs = zip(*map(batch.split, without_common_infinities(expected, outputs)), strict=True)
        sums = [
            [NoiseSums.of(x, y) for name in one for x, y in self._of_parts(name, one[name], other[name])]
            for one, other in pairs
        ]
        return AgreementRecord(sums, task_agreement.compare_answers(self._purpose, expected, outputs, len(batch.names)))

    def _of_parts(self, name: str, x: Array, y: Array) -> list[tuple[Array, Array]]:
        """Return the parts of an output of both models."""
        if x.dtype.kind != "f":
            return []
        x, y = matched(x, y)
        return [(part.of(x), part.of(y)) for part in self._parts.get(name, ())] or [(x, y)]

    def scores(self, records: Iterable[tuple[Batch, AgreementRecord]]) -> AgreementScores:
        """Sum up all samples. Answers count only if every sample has one."""
        names: list[str] = []
        sums: list[list[NoiseSums]] = []
        answers: list[SampleAnswer] = []
        for batch, record in records:
            names += batch.names
            sums += record.sums
            task_agreement.add_answers(self._purpose, answers, record.answers)
        # A share of agreeing answers over some of the samples would look like one over all of them.
        answers = answers if len(answers) == len(names) else []
        _check_comparable(self._reference.name, len(names), any(each.elements for row in sums for each in row))
        noise, signal = (
            np.array([[getattr(each, what) for each in row] for row in sums]) for what in ("noise", "signal")
        )
        found = task_agreement.summarize_answers(self._purpose, answers)
        return AgreementScores(names, found, noise, signal, task_agreement.paired_costs(self._purpose, answers))


def _joined(parts: Sequence[Integers | None]) -> Integers | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


class SampleMeasure:
    """Asks the user's function about each sample."""

    def __init__(self, dataset: Dataset, metric: Metric) -> None:
        self._dataset = dataset
        self._metric = metric

    def record(
        self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]
    ) -> list[tuple[dict[str, Array], dict[str, Array]]]:
        """Return the inputs and outputs of each sample."""
        return list(zip(batch.split(sample.feeds), batch.split(outputs), strict=True))

    def scores(self, records: Iterable[tuple[Batch, list[tuple[dict[str, Array], dict[str, Array]]]]]) -> SampleScores:
        """Ask about one sample after another."""
        names: list[str] = []
        values: list[float] = []
        metric = self._metric
        for batch, record in records:
            for at, (name, (inputs, outputs)) in enumerate(zip(batch.names, record, strict=True)):
                label = None if batch.labels is None else int(batch.labels[at])
                sample = LabelledSample(name, self._dataset.path(name), label, inputs)
                names.append(name)
                values.append(metric.of_sample(_as_given(outputs), sample))
        return SampleScores(names, np.array(values, np.float64), metric.name, metric.lower_is_better)


class WholeMeasure:
    """Asks the user's function about all samples at once."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the outputs as they are."""
        size = len(batch.names)
        for name, array in outputs.items():
            if array.shape[:1] != (size,) or array.dtype.hasobject:
                raise self._not_rows(name, array, f"{sample.origin}, which should be {size} row(s) of numbers")
        return outputs

    def scores(self, records: Iterable[tuple[Batch, Mapping[str, Array]]]) -> WholeScore:
        """Collect the rows of all samples, then ask."""
        stores: dict[str, RowStore] = {}
        labels: list[Integers] = []
        samples = 0
        for batch, outputs in records:
            for name, array in outputs.items():
                store = stores.setdefault(name, RowStore(array.dtype, array.shape[1:]))
                if array.shape[1:] != store.shape:
                    raise self._not_rows(name, array, f"{batch.names[0]}, but rows of {list(store.shape)} before")
                store.append(array)
            if batch.labels is not None:
                labels.append(batch.labels)
            samples += len(batch.names)
        rows = {name: store.rows() for name, store in stores.items()}
        value = self._metric.of_all(_as_given(rows), np.concatenate(labels) if labels else None)
        return WholeScore(value, self._metric.name, self._metric.lower_is_better, samples)

    def _not_rows(self, name: str, array: Array, where: str) -> UsageError:
        return UsageError(
            f"{self._metric.origin}: metric(outputs, labels) is given one row for each sample, but output '{name}' is "
            f"{array.dtype} {list(array.shape)} on {where}. Define score(outputs, sample) instead, which is given the "
            "outputs of one sample as they are."
        )


class RowStore:
    """An array on disk that grows along its first axis. The file has no name and goes with the object."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._dtype = dtype
        self._count = 0
        self._file = tempfile.TemporaryFile(prefix="detent-")  # noqa: SIM115  (lives as long as the object)

    def append(self, rows: Array) -> None:
        """Add rows of the store's shape and type."""
        try:
            self._file.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        except OSError as error:
            raise OutputError(
                f"Cannot keep the model's outputs in {tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to a folder "
                "with more room, or use fewer samples (--limit)."
            ) from error
        self._count += len(rows)

    def rows(self) -> Array:
        """Return all rows, mapped into memory as they are read. Writing to the array does not reach the file."""
        shape = (self._count, *self.shape)
        if 0 in shape:
            return np.empty(shape, self._dtype)
        self._file.flush()
        # Copy-on-write: a metric that sorts its argument in place must not change what the next model is compared with.
        return np.memmap(self._file, self._dtype, "c", shape=shape)

    def __del__(self) -> None:
        self._file.close()


def _as_given(outputs: Mapping[str, Array]) -> Outputs:
    """Return outputs as the user's function takes them: the array itself if there is only one."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs
