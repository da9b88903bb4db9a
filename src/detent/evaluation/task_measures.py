"""Measures of a model at its task, against labels: tags, boxes, pixels, pairs.

A detector's boxes are mapped back to the pixels of the image and clipped to it, as their labels are. Masks are brought
to the model's output instead, pixel by pixel, through the same geometry; what was padded or lies outside is ignored.
The similarity of a pair is the cosine of two vectors; vectors of tokens are averaged over the tokens that are not
padding.

How sure a figure is, the bootstrap tells: the same figure on samples drawn from these with replacement.

A draw of n samples is how often each was drawn: a row of weights that add up to n. The rows follow from n alone, so two
models that are measured apart are judged on the same draws, and their difference in each draw is a paired one.

Average precision of a draw needs no new matching: with its image's weight on each detection, sorted by score once,

    precision = drawn hits so far / drawn detections so far          recall = drawn hits so far / drawn truths

and the precision is highest at hits, so only they are looked at. A hit covers those of the 101 recalls that lie between
the recall before it and its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, ModelError
from detent.evaluation.dataset import Dataset
from detent.evaluation.measures import Measure, by_sample
from detent.evaluation.sample_answers import threshold
from detent.execute.inference import Batch
from detent.observe.images import Geometry, Size, image_size
from detent.observe.preprocess import DeclaredImages
from detent.observe.samples import Array, Sample
from detent.results.paired import Floats
from detent.results.task_scores import TaskFigure, TaskScores
from detent.tasks import Task, channels_and_sides, shapes_text
from detent.tasks.detection import (
    RECALLS,
    THRESHOLDS,
    Detections,
    Matches,
    match_truths,
    mean_average_precision,
)
from detent.tasks.heads import Head, recognise_head
from detent.tasks.labels import IGNORED, BoxLabels, MaskLabels, PairLabels, TagLabels

Weights = npt.NDArray[np.float64]

DRAWS = 1000  # enough for the ends of a 95 % interval
FEWEST_DRAWS = 200
_MOST_WEIGHTS = 20_000_000  # numbers of all draws together, so that memory stays bounded
_AT_ONCE = 2_000_000  # numbers of a table in memory at a time


def draw_weights(samples: int, seed: int = 0) -> Weights:
    """Return how often each sample is drawn (columns) in each draw (rows); fewer draws of very many samples."""
    draws = int(np.clip(_MOST_WEIGHTS // max(samples, 1), FEWEST_DRAWS, DRAWS))
    generator = np.random.default_rng(seed)
    return generator.multinomial(samples, np.full(samples, 1 / samples), size=draws).astype(np.float64)


def drawn_precision(images: Sequence[dict[int, Matches]], weights: Weights) -> Weights:
    """Return the mean average precision at each threshold (columns) of each draw (rows); NaN without any truth."""
    by_class: dict[int, list[tuple[int, Matches]]] = {}
    for at, image in enumerate(images):
        for kind, matches in image.items():
            by_class.setdefault(kind, []).append((at, matches))
    total = np.zeros((len(weights), len(THRESHOLDS)))
    classes = np.zeros(len(weights))
    for found in by_class.values():
        truths = weights[:, [at for at, _ in found]] @ np.array([each.truths for _, each in found], np.float64)
        if truths.any():
            total += _drawn_class_precision(found, weights, truths)
            classes += truths > 0
    return np.divide(total, classes[:, None], out=np.full_like(total, np.nan), where=classes[:, None] > 0)


def _drawn_class_precision(found: Sequence[tuple[int, Matches]], weights: Weights, truths: Weights) -> Weights:
    scores = np.concatenate([each.scores for _, each in found])
    order = np.argsort(-scores, kind="mergesort")
    image = np.concatenate([np.full(len(each.scores), at) for at, each in found])[order]
    hits = np.concatenate([each.hits for _, each in found], axis=1)[:, order]
    ignored = np.concatenate([each.ignored for _, each in found], axis=1)[:, order]
    right = hits & ~ignored
    result = np.zeros((len(weights), len(THRESHOLDS)))
    if not right.any():
        return result
    end = int(np.flatnonzero(right.any(0))[-1]) + 1  # what follows the last hit changes no figure
    step = max(1, _AT_ONCE // end)
    for start in range(0, len(weights), step):
        rows = slice(start, start + step)
        drawn = weights[rows][:, image[:end].astype(np.intp)]
        seen = np.cumsum(drawn, axis=1)
        for column in range(len(THRESHOLDS)):
            at = np.flatnonzero(right[column, :end])
            if not len(at):
                continue
            counted = seen[:, at]
            skipped = np.flatnonzero(ignored[column, :end])
            if len(skipped):
                before = np.cumsum(np.insert(drawn[:, skipped], 0, 0.0, axis=1), axis=1)
                counted = counted - before[:, np.searchsorted(skipped, at)]
            result[rows, column] = _area(np.cumsum(drawn[:, at], axis=1), counted, truths[rows])
    return result


def _area(right: Weights, counted: Weights, truths: Weights) -> Weights:
    """Return the mean precision at the 101 recalls, from the counts at each hit (columns) of each draw (rows)."""
    precision = np.divide(right, counted, out=np.zeros_like(right), where=counted > 0)
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = np.divide(right, truths[:, None], out=np.zeros_like(right), where=truths[:, None] > 0)
    covered = np.searchsorted(RECALLS, recall.ravel(), side="right").reshape(recall.shape)
    area: Weights = (precision * np.diff(covered, axis=1, prepend=0)).sum(1) / len(RECALLS)
    return np.where(truths > 0, area, 0.0)


def drawn_overlap(common: Weights, found: Weights, truths: Weights, weights: Weights) -> Weights:
    """Return the mean intersection over union of each draw, over the classes that occur in it.

    Arguments are pixels of each sample (rows) and class (columns): of both, found, and labelled.
    """
    shared, predicted, labelled = (weights @ each for each in (common, found, truths))
    occurs = labelled > 0
    union = predicted + labelled - shared
    ratio = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    classes = occurs.sum(1)
    total = np.where(occurs, ratio, 0.0).sum(1)
    mean: Weights = np.divide(total, classes, out=np.full(len(weights), np.nan), where=classes > 0)
    return mean


def drawn_correlation(one: Weights, other: Weights, weights: Weights) -> Weights:
    """Return Spearman's rank correlation of two lists in each draw; 0 where one of them is constant."""
    ranks = [drawn_ranks(values, weights) for values in (one, other)]
    size = weights.sum(1, keepdims=True)
    centered = [each - (weights * each).sum(1, keepdims=True) / size for each in ranks]
    product = (weights * centered[0] * centered[1]).sum(1)
    power = (weights * centered[0] ** 2).sum(1) * (weights * centered[1] ** 2).sum(1)
    correlation: Weights = np.divide(product, np.sqrt(power), out=np.zeros_like(product), where=power > 0)
    return correlation


def drawn_ranks(values: Weights, weights: Weights) -> Weights:
    """Return the rank of each value (columns) in each draw (rows), from 1; equal values share the mean of theirs."""
    known, group = np.unique(values, return_inverse=True)
    sizes = np.zeros((len(weights), len(known)))
    np.add.at(sizes.T, group.reshape(-1), weights.T)
    ends = np.cumsum(sizes, axis=1)
    middles = ends - (sizes - 1) / 2
    ranks: Weights = middles[:, group.reshape(-1)]
    return ranks


def drawn_tag_precision(scores: Weights, truths: npt.NDArray[np.bool_], weights: Weights) -> Weights:
    """Return the mean average precision of tags in each draw, over the tags that occur in it; NaN without any.

    With samples from the best score down, it is the mean over those with the tag of the share with it so far.
    """
    total, tags = np.zeros(len(weights)), np.zeros(len(weights))
    for column in np.flatnonzero(truths.any(0)).tolist():
        order = np.argsort(-scores[:, column], kind="stable")
        drawn, right = weights[:, order], weights[:, order] * truths[order, column]
        hits, seen = np.cumsum(right, axis=1), np.cumsum(drawn, axis=1)
        precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
        occurs = right.sum(1)
        total += np.divide((right * precision).sum(1), occurs, out=np.zeros(len(weights)), where=occurs > 0)
        tags += occurs > 0
    mean: Weights = np.divide(total, tags, out=np.full(len(weights), np.nan), where=tags > 0)
    return mean


_MOST_CLASSES = 1 << 16  # larger numbers in a mask are not classes
_NO_LABELS = "Give labels of its task, --no-labels to compare outputs, or a metric of your own (--metric FILE.py)."


def task_measure(dataset: Dataset, declared: DeclaredImages | None) -> Measure[Any]:
    """Return the measure for the labels of a dataset. `declared` is what the model's file says about its classes."""
    truths = dataset.truths
    if isinstance(truths, TagLabels):
        return TagMeasure(truths)
    if isinstance(truths, BoxLabels):
        return DetectionMeasure(dataset, truths, () if declared is None else declared.names)
    if isinstance(truths, MaskLabels):
        return SegmentationMeasure(dataset, truths)
    assert isinstance(truths, PairLabels)
    return PairMeasure(truths)


def _input_size(dataset: Dataset, sample: Sample) -> Size:
    if dataset.preprocess is not None:
        return dataset.preprocess.size
    shape = next((array.shape for array in sample.feeds.values() if array.ndim == 4), None)
    if shape is None:
        raise DataError(f"{sample.origin}: labels of images need images, and the model takes none.")
    return (shape[1], shape[2]) if shape[3] in (1, 3) and shape[1] not in (1, 3) else (shape[2], shape[3])


def _geometry_of(dataset: Dataset, name: str, size: Size) -> Geometry:
    """Return where a sample lies in the input; arrays are the input itself."""
    path = dataset.path(name)
    if dataset.preprocess is None or path is None:
        return Geometry(size, size, (0, 0))
    return dataset.preprocess.geometry(image_size(path))


class FoundObjects(NamedTuple):
    """What became of the detections of one image, and how many there were."""

    matches: dict[int, Matches]
    detections: int


class DetectionMeasure:
    """COCO's mean average precision."""

    def __init__(self, dataset: Dataset, labels: BoxLabels, names: Sequence[str]) -> None:
        self._dataset = dataset
        self._labels = labels
        self._names = names
        self._classes: dict[tuple[int, bool], Mapping[int, int]] = {}

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> list[FoundObjects]:
        """Match the detections of each image with its labels."""
        size = _input_size(self._dataset, sample)
        shapes = {name: array.shape for name, array in outputs.items()}
        head = recognise_head(shapes, size, len(self._names) or None)
        if head is None:
            raise ModelError(
                f"The labels are boxes, but no output looks like detections: {shapes_text(shapes)} on {sample.origin}. "
                + _NO_LABELS
            )
        if not head.has_places(outputs):
            raise ModelError(
                f"The boxes in '{head.outputs[0]}' are offsets from anchors that the model's file does not hold, so "
                "labels say nothing about them. Give --no-labels to compare outputs, or a metric of your own that "
                "decodes them (--metric FILE.py)."
            )
        detected = head.detect(outputs)
        if len(detected) != len(batch.names):
            raise ModelError(
                f"The outputs are detections of {len(detected)} images, but {sample.origin} has {len(batch.names)}. "
                "Use a batch of 1."
            )
        classes = self._classes_of(head)
        return [self._match(name, found, size, classes) for name, found in zip(batch.names, detected, strict=True)]

    def _match(self, name: str, found: Detections, size: Size, classes: Mapping[int, int]) -> FoundObjects:
        placed = _geometry_of(self._dataset, name, size)
        finite = np.isfinite(found.scores) & np.isfinite(found.boxes).all(1)
        found = found.take(np.flatnonzero(finite))
        moved = Detections(placed.to_image(found.boxes), found.scores, found.classes)
        return FoundObjects(match_truths(moved, self._labels.truths(name, placed.image, classes)), len(found))

    def _classes_of(self, head: Head) -> Mapping[int, int]:
        by_number = head.layout == "lists" and not self._names
        key = (head.classes, by_number)
        if key not in self._classes:  # a second thread may look once more, to the same end
            self._classes[key] = self._labels.classes_of(head.classes, self._names, by_number=by_number)
        return self._classes[key]

    def scores(self, records: Iterable[tuple[Batch, list[FoundObjects]]]) -> TaskScores:
        """Put the precision of all images together, and of draws from them."""
        names, found = by_sample(records)
        images = [each.matches for each in found]
        if not any(matches.truths for image in images for matches in image.values()):
            raise DataError(f"None of the {len(names)} images has an object in {self._labels.described}. Use more.")
        precision = 100 * mean_average_precision(images)
        drawn = 100 * drawn_precision(images, draw_weights(len(images)))
        values = np.array([100 * mean_average_precision([image]).mean() for image in images])
        objects = sum(each.detections for each in found)
        mean = "Mean average precision over the classes, at overlaps of"
        return TaskScores(
            Task.DETECT.value,
            names,
            [
                TaskFigure("mAP50-95", float(precision.mean()), drawn.mean(1), f"{mean} 0.50 to 0.95, as COCO has it."),
                TaskFigure("mAP50", float(precision[0]), drawn[:, 0], f"{mean} 0.50."),
            ],
            values,
            "AP50-95 of the image",
            () if objects else ["It finds nothing in any image."],
            nothing_found=not objects,
        )


class TagMeasure:
    """Mean average precision of tags, and F1 of those above a half."""

    def __init__(self, labels: TagLabels) -> None:
        self._labels = labels

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> Floats:
        """Return the scores of each sample, from the output that has as many as there are tags."""
        used = [tag for tags in self._labels.tags.values() for tag in tags]
        least = self._labels.columns or 1 + max(used, default=0)
        rows = [
            array.reshape(len(batch.names), -1)
            for array in outputs.values()
            if array.ndim >= 2 and array.shape[0] == len(batch.names) and max(array.shape[1:]) == array[0].size
        ]
        fitting = [each for each in rows if each.shape[1] >= least] or rows
        if not fitting:
            shapes = shapes_text({name: array.shape for name, array in outputs.items()})
            raise ModelError(
                f"The labels are tags, but no output is a row of scores: {shapes} on {sample.origin}. {_NO_LABELS}"
            )
        return np.nan_to_num(np.asarray(fitting[0], np.float64), nan=-np.inf)

    def scores(self, records: Iterable[tuple[Batch, Floats]]) -> TaskScores:
        """Put the scores of all samples together, and of draws from them."""
        names, found = by_sample((batch, list(record)) for batch, record in records)
        scores = np.array(found)
        truths = self._labels.truths(names, scores.shape[1])
        if not truths.any():
            raise DataError(f"None of the {len(names)} samples has a tag in {self._labels.described}. Use more.")
        shown = scores > threshold(scores)
        common, both = (truths & shown).sum(1).astype(np.float64), (truths.sum(1) + shown.sum(1)).astype(np.float64)
        weights = draw_weights(len(names))
        precision = drawn_tag_precision(scores, truths, np.ones((1, len(names))))[0]
        return TaskScores(
            Task.TAG.value,
            names,
            [
                TaskFigure(
                    "mAP",
                    100 * float(precision),
                    100 * drawn_tag_precision(scores, truths, weights),
                    "Mean average precision over the tags that occur in the labels.",
                ),
                TaskFigure(
                    "F1",
                    200 * float(common.sum() / both.sum()),
                    200 * (weights @ common) / np.maximum(weights @ both, 1.0),
                    "F1 of the tags above a half, over all samples and tags together.",
                ),
            ],
            np.divide(200 * common, both, out=np.full(len(names), np.nan), where=both > 0),
            "F1 of the sample",
        )


class PixelCounts(NamedTuple):
    """Pixels of each class: labelled and found so, found so, labelled so."""

    common: npt.NDArray[np.int64]
    found: npt.NDArray[np.int64]
    truths: npt.NDArray[np.int64]


class SegmentationMeasure:
    """Mean intersection over union of the classes that occur in the labels, and the share of right pixels."""

    def __init__(self, dataset: Dataset, labels: MaskLabels) -> None:
        self._dataset = dataset
        self._labels = labels

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> list[PixelCounts]:
        """Count the pixels of each class in each image."""
        size = _input_size(self._dataset, sample)
        maps = _class_maps(outputs, sample.origin)
        return [self._count(name, *maps, at, size) for at, name in enumerate(batch.names)]

    def _count(self, name: str, answers: npt.NDArray[np.int64], classes: int, at: int, size: Size) -> PixelCounts:
        mask, answer = self._labels.mask(name), answers[at]
        placed = _geometry_of(self._dataset, name, size)
        if self._dataset.path(name) is None:
            placed = Geometry((mask.shape[0], mask.shape[1]), size, (0, 0))
        elif mask.shape != placed.image:
            raise DataError(
                f"{self._labels.files[name]} is {mask.shape[1]}x{mask.shape[0]}, but {name} is "
                f"{placed.image[1]}x{placed.image[0]}. A mask has the size of its image."
            )
        rows, columns = (
            placed.pixels_at(axis, (np.arange(answer.shape[axis]) + 0.5) * size[axis] / answer.shape[axis])
            for axis in (0, 1)
        )
        truth = np.where((rows >= 0)[:, None] & (columns >= 0)[None], mask[np.ix_(rows, columns)], IGNORED)
        known = truth != IGNORED
        largest = int(truth[known].max(initial=0))
        if classes and largest >= classes:
            raise DataError(
                f"{self._labels.files[name]} has the class {largest}, but the model has the classes 0 to {classes - 1} "
                f"({IGNORED} is ignored)."
            )
        count = max(classes, largest + 1, int(answer.max(initial=0)) + 1)
        right = known & (truth == answer)
        return PixelCounts(*(np.bincount(one, minlength=count) for one in (truth[right], answer[known], truth[known])))

    def scores(self, records: Iterable[tuple[Batch, list[PixelCounts]]]) -> TaskScores:
        """Put the counts of all images together, and of draws from them."""
        names, counts = by_sample(records)
        width = max(len(each.truths) for each in counts)
        common, found, truths = (
            np.array([np.pad(column, (0, width - len(column))) for column in columns], np.float64)
            for columns in zip(*counts, strict=True)
        )
        if not truths.any():
            raise DataError(f"None of the {len(names)} masks in {self._labels.described} has a pixel with a class.")
        weights = draw_weights(len(names))
        pixels = truths.sum(1)
        right = common.sum(1)
        return TaskScores(
            Task.SEGMENT.value,
            names,
            [
                TaskFigure(
                    "mIoU",
                    100 * float(drawn_overlap(common, found, truths, np.ones((1, len(names))))[0]),
                    100 * drawn_overlap(common, found, truths, weights),
                    "Mean intersection over union, over the classes that occur in the labels.",
                ),
                TaskFigure(
                    "pixels",
                    100 * float(right.sum() / pixels.sum()),
                    100 * (weights @ right) / np.maximum(weights @ pixels, 1.0),
                    "The share of labelled pixels with the right class.",
                ),
            ],
            100 * drawn_overlap(common, found, truths, np.eye(len(names))),
            "mIoU of the image",
        )


def _class_maps(outputs: Mapping[str, Array], origin: str) -> tuple[npt.NDArray[np.int64], int]:
    """Return the class of each pixel of each image, and how many classes there are; 0 if the outputs do not say."""
    for given in outputs.values():
        last = given.ndim == 4 and channels_and_sides(given.shape) == (given.shape[3], given.shape[1:3])
        array = np.moveaxis(given, 3, 1) if last and given.shape[1] > 1 else given
        if array.ndim == 4 and array.shape[1] == 1 and array.dtype.kind == "f":
            share = array[:, 0].min(initial=0.0) >= 0.0 and array[:, 0].max(initial=0.0) <= 1.0
            return (array[:, 0] > (0.5 if share else 0.0)).astype(np.int64), 2
        if array.ndim == 4 and array.shape[1] == 1:
            return _indices(array[:, 0]), 0
        if array.ndim == 4 and min(array.shape[2:]) > 1:
            return array.argmax(1).astype(np.int64), array.shape[1]
        if array.ndim == 3 and array.dtype.kind in "iu":
            return _indices(array), 0
    shapes = shapes_text({name: array.shape for name, array in outputs.items()})
    raise ModelError(f"The labels are masks, but no output is a map of classes: {shapes} on {origin}. {_NO_LABELS}")


def _indices(array: Array) -> npt.NDArray[np.int64]:
    """Return classes as they are; what cannot be one becomes the class that is never right."""
    return np.where((array < 0) | (array > _MOST_CLASSES), IGNORED, array).astype(np.int64)


class PairMeasure:
    """Spearman's rank correlation of similarities with scores."""

    def __init__(self, labels: PairLabels) -> None:
        self._labels = labels

    def record(self, batch: Batch, sample: Sample, outputs: Mapping[str, Array]) -> Floats:
        """Return a vector of length 1 for each sample."""
        vectors = _vectors(outputs, sample, len(batch.names))
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Floats = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
        return unit

    def scores(self, records: Iterable[tuple[Batch, Floats]]) -> TaskScores:
        """Compare the similarities of all pairs with their scores, and of draws from them."""
        rows = np.concatenate([record for _, record in records])
        labels = self._labels
        similar = (rows[labels.first] * rows[labels.second]).sum(1)
        similar = np.where(np.isfinite(similar), similar, -1.0)
        names = [f"pair {at}" for at in range(len(similar))]
        all_once = np.ones((1, len(names)))
        value = 100 * float(drawn_correlation(similar, labels.score, all_once)[0])
        drawn = 100 * drawn_correlation(similar, labels.score, draw_weights(len(names)))
        places = [np.argsort(np.argsort(each, kind="stable"), kind="stable") for each in (similar, labels.score)]
        near = 100 * (1 - np.abs(places[0] - places[1]) / len(names))
        meaning = "Spearman's rank correlation of the similarities with the scores, times 100."
        warnings = ["All pairs are equally similar."] if np.ptp(similar) == 0.0 else []
        figure = TaskFigure("Spearman", value, drawn, meaning)
        return TaskScores(Task.EMBED.value, names, [figure], near, "nearness of its rank", warnings)


def _vectors(outputs: Mapping[str, Array], sample: Sample, size: int) -> Floats:
    """Return one vector for each sample: a sentence's, else the mean of its tokens', else any row of numbers."""
    floats = {name: np.asarray(array, np.float64) for name, array in outputs.items() if array.dtype.kind == "f"}
    rows = {name: array for name, array in floats.items() if array.ndim >= 2 and array.shape[0] == size}
    flat = {name: array.reshape(size, -1) for name, array in rows.items() if max(array.shape[1:]) == array[0].size}
    for name, array in flat.items():
        if "sentence" in name.lower() or "embed" in name.lower():
            return array
    for array in rows.values():
        if array.ndim == 3:
            mask = _token_mask(sample, array.shape[:2])[..., None]
            mean: Floats = (array * mask).sum(1) / np.maximum(mask.sum(1), 1.0)
            return mean
    if flat:
        return next(iter(flat.values()))
    shapes = shapes_text({name: array.shape for name, array in outputs.items()})
    raise ModelError(f"The labels are pairs, but no output is a vector for each sample: {shapes}. {_NO_LABELS}")


def _token_mask(sample: Sample, shape: tuple[int, ...]) -> Floats:
    """Return 1 for tokens and 0 for padding."""
    tokens = {name: array for name, array in sample.feeds.items() if array.shape == shape and array.dtype.kind in "iu"}
    named = next((array for name, array in tokens.items() if "mask" in name.lower()), None)
    if named is None:
        named = next(iter(tokens.values()), np.ones(shape))
    mask: Floats = (named != 0).astype(np.float64)
    return mask
