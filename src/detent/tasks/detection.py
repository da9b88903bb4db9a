"""Detections: how the outputs of a detector become boxes, and how well boxes agree. Pure functions on arrays.

A box is x1, y1, x2, y2. The overlap of two boxes is their intersection over union:

    iou(a, b) = |a ∩ b| / |a ∪ b|

Average precision follows COCO. For one class and one threshold of overlap, detections are taken in the order of their
scores, at most a hundred for each image. Each matches the truth that it overlaps most among those not yet taken, or is
a false alarm. Precision is made monotone from the right and read at 101 recalls, 0, 0.01, ..., 1. Crowds, and truths
marked as ignored, neither count nor punish. The figure is the mean over the thresholds 0.50, 0.55, ..., 0.95, then over
the classes that occur.

Exporters write these layouts, which are recognised by shape and values:

| layout    | outputs                                | boxes                           | who writes it              |
| --------- | -------------------------------------- | ------------------------------- | -------------------------- |
| `columns` | (n, 4 + classes, anchors)              | center and size, in pixels      | YOLOv8, v9, v11, v12       |
| `rows`    | (n, anchors, 5 + classes)              | the same, or relative to a cell | YOLOv5, v6, v7, YOLOX      |
|           | (n, cells, classes + sides)            | distances from a cell's center  | NanoDet                    |
| `final`   | (n, objects, 6)                        | corners, score, class           | YOLOv10, exports with NMS  |
| `pair`    | (n, anchors, 4), (n, anchors, classes) | corners, or center and size     | SSD, RetinaNet, DETR       |
| `lists`   | (objects, 4), (objects), (objects)     | corners                         | torchvision                |
| `levels`  | (n, cells, classes), (n, cells, sides) | distances from a cell's center  | SCRFD, PicoDet             |

`levels` are such outputs for each grid. A distance is in strides: a number, or the mean of a distribution over bins.
Rows of NanoDet are told by their values: scores between 0 and 1, then logits of the bins. In other `rows` the fifth
number is the objectness, which the score of each class is multiplied with. Scores of a `pair` may
be logits. A first or last class of a `pair` that most positions are certain of is the background, and no object.

The boxes of a `pair` may be offsets from anchors that only the code around the model knows (SSD, RetinaFace). Two boxes
of one anchor overlap by the same share whatever that anchor is, since the overlap does not change if all is moved or
stretched:

    center = anchor's center + 0.1 x its size x offset        size = its size x exp(0.2 x offset)

So each position gets an anchor of its own, far from the others. That tells whether two models agree, not where objects
are, and neighbours are not suppressed.

More columns than these (mask coefficients, key points, angles) are not looked at here. They follow the classes if the
file's metadata says how many there are. Else they are told by their values: scores are between 0 and 1. The classes are
the first such columns behind the box, or the last ones if the key points come before them (YOLOv5-face).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.observe.sources import FEWEST_GRIDS, Shape, anchors_of, cells_of

Floats = npt.NDArray[np.float32]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # COCO counts this many detections of an image at most


@dataclass(frozen=True, eq=False)
class Detections:
    """The objects of one image: boxes (n, 4), scores (n,) and classes (n,), best first."""

    boxes: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, chosen: npt.NDArray[np.intp] | slice) -> Detections:
        """Return the objects at these places."""
        return Detections(self.boxes[chosen], self.scores[chosen], self.classes[chosen])

    def above(self, score: float) -> Detections:
        return self.take(np.flatnonzero(self.scores > score))


@dataclass(frozen=True, eq=False)
class Truths:
    """The labelled objects of one image. Those marked `ignored` may be found or not."""

    boxes: Floats
    classes: npt.NDArray[np.int64]
    ignored: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, boxes: npt.ArrayLike, classes: npt.ArrayLike, ignored: npt.ArrayLike | None = None) -> Truths:
        """Build from anything that numpy takes."""
        kinds = np.asarray(classes, np.int64).reshape(-1)
        skipped = np.zeros(len(kinds), np.bool_) if ignored is None else np.asarray(ignored, np.bool_)
        return cls(np.asarray(boxes, np.float32).reshape(-1, 4), kinds, skipped)


def overlaps(first: Floats, second: Floats, crowds: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each box of `first` with each of `second`.

    A crowd among `second` is a region full of objects: what lies inside it overlaps it fully, so the union is the
    first box alone.
    """
    return overlaps_in_pairs(first[:, None], second[None], None if crowds is None else crowds[None])


def overlaps_in_pairs(
    first: Floats, second: Floats, crowds: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.float64]:
    """Return the intersection over union of each box with the one at the same place; see `overlaps` for crowds."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.clip(sides, 0.0, None).prod(-1)
    size_a, size_b = (np.clip(each[..., 2:] - each[..., :2], 0.0, None).prod(-1) for each in (a, b))
    union = size_a + size_b - common
    if crowds is not None:
        union = np.where(crowds, size_a, union)
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0.0))


def suppress(found: Detections, overlap: float = 0.7, most: int = 300) -> Detections:
    """Keep the best of boxes of one class that overlap by more than `overlap`: non-maximum suppression."""
    order = np.argsort(-found.scores, kind="stable")
    found = found.take(order)
    if not len(found):
        return found
    # Boxes of different classes never meet once each class is moved to a place of its own.
    span = float(np.abs(found.boxes).max()) * 2 + 1
    moved = found.boxes.astype(np.float64) + (found.classes * span)[:, None]
    alive = np.ones(len(found), np.bool_)
    kept: list[int] = []
    for at in range(len(found)):
        if not alive[at]:
            continue
        kept.append(at)
        if len(kept) == most:
            break
        rest = np.flatnonzero(alive[at + 1 :]) + at + 1
        alive[rest] = overlaps(moved[at : at + 1], moved[rest])[0] <= overlap
    return found.take(np.array(kept, np.intp))


@dataclass(frozen=True, eq=False)
class Matches:
    """What became of one image's detections of one class.

    `hits` and `ignored` have a row for each threshold and a column for each detection; `truths` counts the objects that
    had to be found.
    """

    scores: Floats
    hits: npt.NDArray[np.bool_]
    ignored: npt.NDArray[np.bool_]
    truths: int


def match_truths(found: Detections, truths: Truths, most: int = MOST) -> dict[int, Matches]:
    """Match the detections of one image with its truths, class by class."""
    result = {}
    best = found.take(np.argsort(-found.scores, kind="stable"))
    for kind in np.union1d(best.classes, truths.classes):
        mine = best.take(np.flatnonzero(best.classes == kind)[:most])
        of_kind = np.flatnonzero(truths.classes == kind)
        # What is ignored comes last, so that a detection prefers a truth that counts.
        of_kind = of_kind[np.argsort(truths.ignored[of_kind], kind="stable")]
        skipped = truths.ignored[of_kind]
        result[int(kind)] = _match_class(mine, truths.boxes[of_kind], skipped)
    return result


def _match_class(found: Detections, boxes: Floats, skipped: npt.NDArray[np.bool_]) -> Matches:
    shared = overlaps(found.boxes, boxes, skipped)
    hits = np.zeros((len(THRESHOLDS), len(found)), np.bool_)
    ignored = np.zeros_like(hits)
    for row, threshold in enumerate(THRESHOLDS):
        taken = np.zeros(len(boxes), np.bool_)
        for at in range(len(found)):
            best, chosen = min(threshold, 1 - 1e-10), -1
            for truth in range(len(boxes)):
                if taken[truth] and not skipped[truth]:
                    continue
                if chosen >= 0 and not skipped[chosen] and skipped[truth]:
                    break  # it has a truth that counts; those that are ignored come after it
                if shared[at, truth] >= best:
                    best, chosen = shared[at, truth], truth
            if chosen >= 0:
                taken[chosen] = True
                hits[row, at] = True
                ignored[row, at] = skipped[chosen]
    return Matches(found.scores, hits, ignored, int((~skipped).sum()))


def mean_average_precision(images: Sequence[dict[int, Matches]]) -> npt.NDArray[np.float64]:
    """Return the mean average precision at each of THRESHOLDS, over the classes that occur; NaN without any truth."""
    by_class: dict[int, list[Matches]] = {}
    for image in images:
        for kind, matches in image.items():
            by_class.setdefault(kind, []).append(matches)
    rows = [_average_precision(matches) for matches in by_class.values() if sum(one.truths for one in matches)]
    return np.mean(rows, axis=0) if rows else np.full(len(THRESHOLDS), np.nan)


def _average_precision(matches: Sequence[Matches]) -> npt.NDArray[np.float64]:
    truths = sum(one.truths for one in matches)
    scores = np.concatenate([one.scores for one in matches])
    order = np.argsort(-scores, kind="mergesort")
    hits = np.concatenate([one.hits for one in matches], axis=1)[:, order]
    counted = ~np.concatenate([one.ignored for one in matches], axis=1)[:, order]
    right = np.cumsum(hits & counted, axis=1, dtype=np.float64)
    wrong = np.cumsum(~hits & counted, axis=1, dtype=np.float64)
    precisions = np.zeros(len(THRESHOLDS))
    for row in range(len(THRESHOLDS)):
        recall = right[row] / truths
        precision = right[row] / np.maximum(right[row] + wrong[row], np.finfo(np.float64).eps)
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(recall, RECALLS, side="left")
        precisions[row] = np.append(precision, 0.0)[np.minimum(at, len(precision))].mean()
    return precisions


def match_detections(first: Detections, second: Detections, overlap: float = 0.5) -> npt.NDArray[np.intp]:
    """Pair detections of two models: for each of `first`, the place of its partner in `second`, or -1.

    A partner has the same class and overlaps by more than `overlap`; the best of `first` choose first.
    """
    partners = np.full(len(first), -1, np.intp)
    shared = overlaps(first.boxes, second.boxes)
    shared[first.classes[:, None] != second.classes[None]] = 0.0
    for at in np.argsort(-first.scores, kind="stable"):
        best = int(shared[at].argmax()) if len(second) else 0
        if len(second) and shared[at, best] > overlap:
            partners[at] = best
            shared[:, best] = 0.0
    return partners


MOSTLY = 0.95  # of the boxes have a property that tells how they are given
DISTANCES = frozenset(4 * bins for bins in (8, 16, 17))  # columns: a distribution for each side, as detectors make them
# Detections below this score change no measure and cost time; COCO's own evaluation of YOLO uses the same.
LEAST_SCORE = 0.001

_BEYOND = 0.02  # how far rounding may carry a score out of 0..1
_VARIANCES = (0.1, 0.2)  # of the offsets of SSD's boxes, which all of its kind took over
_LARGEST_LOG = 3.0  # of a box's size beside its anchor: 20 times as large
_APART = 32.0  # distance of anchors of size 1, so that their boxes do not touch either


@dataclass(frozen=True)
class Head:
    """How a detector's outputs are read: the layout, which outputs have it, and how many classes there are."""

    layout: str
    outputs: tuple[str, ...]
    classes: int
    image: tuple[int, int]

    def detect(self, outputs: Mapping[str, npt.NDArray[np.generic]], least: float = LEAST_SCORE) -> list[Detections]:
        """Return what is detected in each image of a batch, after non-maximum suppression."""
        arrays = [np.asarray(outputs[name], np.float32) for name in self.outputs]
        if self.layout == "lists":  # torchvision's models take one image at a time
            return [_lists(arrays, least)]
        if self.layout == "final":
            return [_final(rows, least) for rows in arrays[0]]
        return [_several(*each, least) for each in self.dense(outputs)]

    def dense(self, outputs: Mapping[str, npt.NDArray[np.generic]]) -> list[tuple[Floats, Floats]]:
        """Return the corners (positions, 4) and scores (positions, classes) of each image, before any suppression.

        Raise ValueError for lists of objects, which have no positions.
        """
        if self.layout not in _DENSE:
            raise ValueError(f"outputs laid out as {self.layout} have no positions")
        arrays = [np.asarray(outputs[name], np.float32) for name in self.outputs]
        if self.layout == "levels":  # without an axis of the batch there is one image
            arrays = [array.reshape(-1, *array.shape[-2:]) for array in arrays]
        return [_DENSE[self.layout](self, [array[at] for array in arrays]) for at in range(len(arrays[0]))]

    def has_places(self, outputs: Mapping[str, npt.NDArray[np.generic]]) -> bool:
        """Tell whether boxes lie in the image; those that are offsets from unknown anchors do not."""
        return self.layout != "pair" or not _are_offsets(
            np.asarray(outputs[self.outputs[0]], np.float32).reshape(-1, 4)
        )


def recognise_head(shapes: Mapping[str, Shape], image: tuple[int, int], classes: int | None = None) -> Head | None:
    """Return how the outputs of a detector are laid out, or None if no layout fits.

    `shapes` are those of real outputs, so no dimension is open; `image` is the height and width of the input.
    """
    for name, shape in shapes.items():
        layout = None if _has_partner(name, shapes) else _layout_of_one(shape, image, classes)
        if layout is not None:
            return Head(layout[0], (name,), layout[1], image)
    return _levels_of(shapes, image) or _pair_of(shapes, image) or _lists_of(shapes, image)


def _has_partner(name: str, shapes: Mapping[str, Shape]) -> bool:
    """Tell whether another output has a row, or column, for each of this one: then boxes and scores are apart.

    Two of the same shape are two heads, as YOLOv9 has them.
    """
    shape = shapes[name]
    at = max(range(len(shape)), key=lambda axis: shape[axis] or 0, default=0)
    return any(len(shape) == len(other) == 3 and shape != other and shape[at] == other[at] for other in shapes.values())


def _layout_of_one(shape: Shape, image: tuple[int, int], classes: int | None) -> tuple[str, int] | None:
    if len(shape) != 3 or None in shape:
        return None
    _, first, second = (int(size or 0) for size in shape)
    if second == 6 and first <= 1000 and first not in anchors_of(image):
        return "final", classes or 0
    if classes is not None:
        if first >= 4 + classes and second > first:
            return "columns", classes
        if second >= 5 + classes and first > second:
            return "rows", classes
        return None
    if second > first >= 5 and second >= 100:
        return "columns", first - 4
    if first > second >= 6 and first >= 100:
        return "rows", second - 5
    return None


def _levels_of(shapes: Mapping[str, Shape], image: tuple[int, int]) -> Head | None:
    """Return the head of outputs that each hold scores, or distances, of one grid; None if columns do not tell which.

    Columns that are neither boxes nor the fewest beside them are of something else, such as key points.
    """
    if not all(len(shape) in (2, 3) for shape in shapes.values()):
        return None
    for anchors in (1, 2, 3):
        counts = {count * anchors for count in cells_of(image).values()}
        levels: dict[int, dict[int, str]] = {}  # rows of the grid: columns: output
        for name, shape in shapes.items():
            if shape[-2] in counts and shape[-1] is not None:
                levels.setdefault(int(shape[-2] or 0), {})[shape[-1]] = name
        kinds = {frozenset(level) for level in levels.values()}
        if len(levels) < FEWEST_GRIDS or len(kinds) != 1 or sum(map(len, levels.values())) != len(shapes):
            continue
        columns = kinds.pop()
        boxes = columns & {4} or columns & DISTANCES
        if len(boxes) == 1 and len(columns) > 1:
            sides, classes = min(boxes), min(columns - boxes)
            grids = [levels[rows] for rows in sorted(levels, reverse=True)]
            return Head("levels", tuple(grid[each] for grid in grids for each in (classes, sides)), classes, image)
    return None


def _pair_of(shapes: Mapping[str, Shape], image: tuple[int, int]) -> Head | None:
    boxes = [name for name, shape in shapes.items() if len(shape) in (3, 4) and shape[-1] == 4]
    for name in boxes:
        count = np.prod([size or 0 for size in shapes[name][1:-1]])
        for other, shape in shapes.items():
            if other != name and len(shape) == 3 and np.prod([size or 0 for size in shape[1:-1]]) == count:
                return Head("pair", (name, other), int(shape[-1] or 0), image)
    return None


def _lists_of(shapes: Mapping[str, Shape], image: tuple[int, int]) -> Head | None:
    boxes = [name for name, shape in shapes.items() if len(shape) == 2 and shape[-1] == 4]
    flat = [name for name, shape in shapes.items() if len(shape) == 1]
    return Head("lists", (boxes[0], *flat[:2]), 0, image) if boxes and len(flat) >= 2 else None


def _corners(centers: Floats) -> Floats:
    """Return boxes given by center and size as corners."""
    half = centers[..., 2:4] / 2
    return np.concatenate([centers[..., :2] - half, centers[..., :2] + half], axis=-1)


def _several(boxes: Floats, scores: Floats, least: float) -> Detections:
    """Return each box once for each class whose score is above `least`."""
    at, kind = np.nonzero(scores > least)
    if len(at) > 30_000:  # the best ones, as COCO's evaluation of YOLO has it
        best = np.argpartition(-scores[at, kind], 30_000)[:30_000]
        at, kind = at[best], kind[best]
    return suppress(Detections(boxes[at], scores[at, kind], kind.astype(np.int64)))


def _columns(head: Head, outputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    rows = outputs[0].T
    return _corners(rows), _scores_alone(rows[:, 4 : 4 + head.classes])


def _rows(head: Head, outputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    rows = outputs[0]
    sides = _columns_of_distances(rows, head.image)
    if sides:
        return _around_cells(rows[:, -sides:], head.image), rows[:, :-sides]
    if _is_on_grid(rows, head.image):
        rows = _off_grid(rows, head.image)
    return _corners(rows), rows[:, 4:5] * _scores_alone(rows[:, 5 : 5 + head.classes])


def _scores_alone(columns: Floats) -> Floats:
    """Return columns with 0 for those that are no scores of classes: see the module's docstring."""
    if not columns.size:
        return columns
    between = (columns.min(axis=0) >= -_BEYOND) & (columns.max(axis=0) <= 1.0 + _BEYOND)
    first = np.logical_and.accumulate(between)
    classes = first if first.any() else np.logical_and.accumulate(between[::-1])[::-1]
    # Logits are no scores either; there is nothing better to go by.
    return np.asarray(columns * classes, np.float32) if classes.any() else columns


def _columns_of_distances(rows: Floats, image: tuple[int, int]) -> int:
    """Return how many columns hold distributions of distances behind the scores; 0 if the rows are of another kind."""
    if len(rows) not in anchors_of(image):
        return 0
    between = (rows.min(axis=0) >= -_BEYOND) & (rows.max(axis=0) <= 1.0 + _BEYOND)
    for sides in sorted(DISTANCES):
        scores, logits = between[:-sides], between[-sides:]
        if len(scores) and scores.all() and float(logits.mean()) < 1.0 - MOSTLY:
            return sides
    return 0


def _around_cells(logits: Floats, image: tuple[int, int]) -> Floats:
    """Return corners of boxes whose sides are given by distributions, for the cells of all grids.

    NanoDet measures from the centers of cells, and NanoDet-Plus, which has a fourth grid, from their corners.
    """
    strides = anchors_of(image)[len(logits)]
    middle = 0.5 if len(strides) == FEWEST_GRIDS else 0.0
    cells, scale = _cells(image, strides)
    distances, center = _expected(logits.reshape(len(logits), 4, -1)), cells + middle
    corners = np.concatenate([center - distances[:, :2], center + distances[:, 2:]], axis=1) * scale
    return np.asarray(corners, np.float32)


def _cells(image: tuple[int, int], strides: Sequence[int]) -> tuple[Floats, Floats]:
    """Return column and row of each cell of grids, one grid after the other, and its stride."""
    cells, scales = [], []
    for stride in strides:
        y, x = np.mgrid[: -(-image[0] // stride), : -(-image[1] // stride)]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        scales.append(np.full((x.size, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(scales).astype(np.float32)


def _is_on_grid(rows: Floats, image: tuple[int, int]) -> bool:
    """Tell whether boxes are relative to cells: then centers stay near 0, though cells are all over the image."""
    return len(rows) in anchors_of(image) and float(np.percentile(np.abs(rows[:, :2]), 90)) < min(image) / 32


def _off_grid(rows: Floats, image: tuple[int, int]) -> Floats:
    """Return boxes in pixels: centers are offsets from the cell, sizes are logarithms, both in strides."""
    offset, scale = _cells(image, anchors_of(image)[len(rows)])
    boxes = np.concatenate([(rows[:, :2] + offset) * scale, np.exp(rows[:, 2:4]) * scale, rows[:, 4:]], axis=1)
    return boxes.astype(np.float32)


def _final(rows: Floats, least: float) -> Detections:
    rows = rows[rows[:, 4] > least]
    order = np.argsort(-rows[:, 4], kind="stable")
    return Detections(rows[order, :4], rows[order, 4], rows[order, 5].astype(np.int64))


def _pair(head: Head, outputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    boxes, scores = outputs[0].reshape(-1, 4), _without_background(outputs[1].reshape(-1, head.classes))
    if _are_offsets(boxes):
        return _on_own_anchors(boxes), scores
    if not _are_corners(boxes):
        boxes = _corners(boxes)
    if np.abs(boxes).max(initial=0.0) <= 2.0:
        boxes = boxes * np.array([head.image[1], head.image[0]] * 2, np.float32)
    return boxes, scores


def _are_corners(boxes: Floats) -> bool:
    """Tell whether boxes are given by corners, which are in order; centers and sizes of small boxes are not."""
    return float((boxes[:, 2:] >= boxes[:, :2]).all(axis=1).mean()) >= MOSTLY if len(boxes) else True


def _are_offsets(boxes: Floats) -> bool:
    """Tell whether boxes are relative to anchors: neither corners in order nor positive sizes."""
    return not _are_corners(boxes) and float((boxes[:, 2:] >= 0.0).all(axis=1).mean()) < MOSTLY


def _on_own_anchors(offsets: Floats) -> Floats:
    """Return corners of boxes on anchors of size 1, each at a place of its own: see the module's docstring."""
    at = np.arange(len(offsets))
    places = np.stack([at % 256, at // 256], axis=1) * _APART
    sizes = np.exp(np.clip(_VARIANCES[1] * offsets[:, 2:], -_LARGEST_LOG, _LARGEST_LOG))
    centers = places + np.clip(_VARIANCES[0] * offsets[:, :2], -1.0, 1.0)
    return _corners(np.concatenate([centers, sizes], axis=1).astype(np.float32))


def _without_background(scores: Floats) -> Floats:
    """Return shares of classes, with 0 for a class that stands for nothing: no object is at most positions."""
    shares = scores if _are_shares(scores) else _shares(scores)
    if not len(shares) or shares.shape[1] == 1:
        return shares
    best = shares.argmax(axis=1)
    for at in (0, shares.shape[1] - 1):
        if float(((best == at) & (shares[:, at] > 0.5)).mean()) > 0.5:
            # A class of nothing needs a Softmax: it takes from the others what it has.
            shares = scores.copy() if _are_shares(scores) else _softmax(scores)
            shares[:, at] = 0.0
            break
    return shares


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


def _levels(head: Head, outputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    corners, scores = [], []
    strides = {count: stride for stride, count in cells_of(head.image).items()}
    for seen, sides in zip(outputs[::2], outputs[1::2], strict=True):
        anchors = next(each for each in (1, 2, 3) if len(seen) % each == 0 and len(seen) // each in strides)
        stride = strides[len(seen) // anchors]
        # PicoDet measures from the center of a cell, SCRFD from its corner: half a cell moves no verdict.
        center = np.repeat(_cells(head.image, [stride])[0] + 0.5, anchors, axis=0)
        distances = sides if sides.shape[-1] == 4 else _expected(sides.reshape(len(sides), 4, -1))
        if float((distances >= 0).mean()) < MOSTLY:
            raise ValueError("boxes are not given by the distances of their sides")
        corners.append(np.concatenate([center - distances[:, :2], center + distances[:, 2:]], axis=1) * stride)
        scores.append(seen)
    every = np.concatenate(scores)
    return np.concatenate(corners).astype(np.float32), every if _are_shares(every) else _shares(every)


def _expected(logits: Floats) -> Floats:
    """Return the mean of a distribution over 0, 1, 2, ..., given by logits along the last axis."""
    return np.asarray((_softmax(logits) * np.arange(logits.shape[-1])).sum(-1), np.float32)


def _are_shares(scores: Floats) -> bool:
    return bool(scores.min(initial=0.0) >= 0.0 and scores.max(initial=0.0) <= 1.0)


def _shares(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logits)), np.float32)


def _lists(outputs: Sequence[Floats], least: float) -> Detections:
    boxes, *others = outputs
    # Scores are shares; labels are whole numbers.
    scores, labels = sorted(others, key=lambda values: bool(len(values)) and bool((values == np.rint(values)).all()))
    if not len(boxes) == len(scores) == len(labels):
        raise DataError(f"The lists of detections differ in length: {len(boxes)}, {len(scores)} and {len(labels)}.")
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > least]
    return Detections(boxes[order], scores[order], labels[order].astype(np.int64))


_DENSE = {"columns": _columns, "rows": _rows, "pair": _pair, "levels": _levels}
