"""How the outputs of a detector become boxes.

Exporters write these layouts, which are recognised by shape and values:

| layout    | outputs                                | boxes                           | who writes it              |
| --------- | -------------------------------------- | ------------------------------- | -------------------------- |
| `columns` | (n, 4 + classes, anchors)              | center and size, in pixels      | YOLOv8, v9, v11, v12       |
| `rows`    | (n, anchors, 5 + classes)              | the same, or relative to a cell | YOLOv5, v6, v7, YOLOX      |
|           | (n, anchors, 4 + classes)              | center and size                 | RT-DETR by Ultralytics     |
|           | (n, cells, classes + sides)            | distances from a cell's center  | NanoDet                    |
|           | (n, objects, 6 + others)               | as `final`                      | YOLO26's masks, key points |
| `pair`    | (n, anchors, 4), (n, anchors, classes) | corners, or center and size     | SSD, RetinaNet, DETR       |
|           | (n, anchors, 4), (n, classes, anchors) | the same                        | before an NMS of ONNX      |
|           | (n, anchors, 4 + points), (n, anchors, 1) | center and size               | BlazeFace                  |
| `levels`  | (n, cells, classes), (n, cells, sides) | distances from a cell's center  | SCRFD, PicoDet             |
| `final`   | (n, objects, 6)                        | corners, score, class           | YOLOv10, exports with NMS  |
|           | (objects, 6)                           | class, score, corners           | PaddleDetection            |
|           | (objects, 7)                           | image, corners, class, score    | YOLOv7 with its NMS        |
| `lists`   | (objects, 4), (objects), (objects)     | corners, scores and classes     | torchvision, TensorFlow    |
|           | (objects, 5), (objects)                | corners and score, class        | MMDetection                |

`levels` are such outputs for each grid, and a `pair` may be one for each grid too. A distance is in strides: a number,
or the mean of a distribution over bins. Rows of NanoDet are told by their values: scores between 0 and 1, then logits
of the bins. In other `rows` the fifth number is the objectness, which the score of each class is multiplied with,
unless the number of classes is known and leaves no place for it, or it is a score and the class comes behind it. Both
outputs of a `pair` may have their positions last, and scores may be logits. A first or last class of a `pair` that most
positions are certain of is the background, and no object. `lists` may have an axis of the batch, and more places than
objects: what is left over has a score of 0. Boxes may be shares of the image's sides.

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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.observe.sources import FEWEST_GRIDS, MOST_OBJECTS, OBJECT, Shape, anchors_of, cells_of
from detent.tasks.detection import Detections, Floats, suppress

Outputs = Mapping[str, npt.NDArray[Any]]

MOSTLY = 0.95  # of the boxes have a property that tells how they are given
DISTANCES = frozenset(4 * bins for bins in (8, 16, 17))  # columns: a distribution for each side, as detectors make them
# Detections below this score change no measure and cost time; COCO's own evaluation of YOLO uses the same.
LEAST_SCORE = 0.001

_BEYOND = 0.02  # how far rounding may carry a score out of 0..1
_VARIANCES = (0.1, 0.2)  # of the offsets of SSD's boxes, which all of its kind took over
_LARGEST_LOG = 3.0  # of a box's size beside its anchor: 20 times as large
_APART = 32.0  # distance of anchors of size 1, so that their boxes do not touch either
_ROW_FIRST = "detection_boxes"  # TensorFlow's detection models give rows before columns: y1, x1, y2, x2

ROWS_OF_OBJECTS = (6, 7)  # numbers of each object that a network chose itself, without an axis of the batch
FEWEST_ANCHORS, MOST_POINTS = 100, 32  # of boxes with key points behind them


@dataclass(frozen=True)
class Head:
    """How a detector's outputs are read: the layout, which outputs have it, and how many classes there are."""

    layout: str
    outputs: tuple[str, ...]
    classes: int
    image: tuple[int, int]

    def detect(self, outputs: Outputs, least: float = LEAST_SCORE) -> list[Detections]:
        """Return what is detected in each image of a batch, after non-maximum suppression."""
        if self.layout not in ("lists", "final"):
            return [_several(*each, least) for each in self.dense(outputs)]
        arrays = [outputs[name] for name in self.outputs]
        if arrays[0].ndim == 2:  # without an axis of the batch there is one image
            arrays = [array[None] for array in arrays]
        read = _lists if self.layout == "lists" else _final
        found = [read([array[at] for array in arrays]) for at in range(len(arrays[0]))]
        if self.outputs[0] == _ROW_FIRST:
            found = [replace(each, boxes=each.boxes[:, [1, 0, 3, 2]]) for each in found]
        ordered = [each.take(np.argsort(-each.scores, kind="stable")).above(least) for each in found]
        return [replace(each, boxes=_in_pixels(each.boxes, self.image)) for each in ordered]

    def dense(self, outputs: Outputs) -> list[tuple[Floats, Floats]]:
        """Return the corners (positions, 4) and scores (positions, classes) of each image, before any suppression.

        Raise ValueError for lists of objects, which have no positions.
        """
        if self.layout not in _DENSE:
            raise ValueError(f"outputs laid out as {self.layout} have no positions")
        arrays = [np.asarray(outputs[name], np.float32) for name in self.outputs]
        if self.layout == "levels":  # without an axis of the batch there is one image
            arrays = [array.reshape(-1, *array.shape[-2:]) for array in arrays]
        return [_DENSE[self.layout](self, [array[at] for array in arrays]) for at in range(len(arrays[0]))]

    def holds_objects(self, outputs: Outputs) -> bool:
        """Tell whether rows that a network chose itself have a class and a score; six numbers may be a rotation."""
        rows = outputs[self.outputs[0]].reshape(-1, outputs[self.outputs[0]].shape[-1])
        columns = ((5, 6),) if rows.shape[1] == 7 else ((5, 4), (0, 1))
        return self.layout != "final" or any(_are_kinds(rows[:, kind], rows[:, score]) for kind, score in columns)

    def has_places(self, outputs: Outputs) -> bool:
        """Tell whether boxes lie in the image; those that are offsets from unknown anchors do not."""
        if self.layout != "pair":
            return True
        boxes = _upright(np.asarray(outputs[self.outputs[0]], np.float32)[0])
        return boxes.shape[1] == 4 and not _are_offsets(boxes)


def recognise_head(shapes: Mapping[str, Shape], image: tuple[int, int], classes: int | None = None) -> Head | None:
    """Return how the outputs of a detector are laid out, or None if no layout fits.

    `shapes` are those of real outputs, so no dimension is open; `image` is the height and width of the input.
    """
    for name, shape in shapes.items():
        layout = None if _has_partner(name, shapes) else _layout_of_one(shape, image, classes)
        if layout is not None:
            return Head(layout[0], (name,), layout[1], image)
    return _lists_of(shapes, image) or _levels_of(shapes, image) or _pair_of(shapes, image)


def _has_partner(name: str, shapes: Mapping[str, Shape]) -> bool:
    """Tell whether another output has a row, or column, for each of this one: then boxes and scores are apart.

    Two of the same shape are two heads, as YOLOv9 has them.
    """
    shape = shapes[name]
    most = max((size or 0 for size in shape[1:]), default=0)
    others = [other for other in shapes.values() if len(shape) == len(other) == 3 and shape != other]
    return any(most in other[1:] for other in others)


def _layout_of_one(shape: Shape, image: tuple[int, int], classes: int | None) -> tuple[str, int] | None:
    if len(shape) == 2 and shape[1] in ROWS_OF_OBJECTS:
        return "final", classes or 0
    if len(shape) != 3 or None in shape:
        return None
    _, first, second = (int(size or 0) for size in shape)
    if second == OBJECT and first <= MOST_OBJECTS and first not in anchors_of(image):
        return "final", classes or 0
    if classes is not None:
        if first >= 4 + classes and second > first:
            return "columns", classes
        chosen = second > OBJECT and first <= MOST_OBJECTS and first not in anchors_of(image)
        if first > second and (second >= 4 + classes or chosen):
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
    """Return the head of boxes beside scores, of all anchors or of those of each grid."""
    found: dict[str, str] = {}
    classes: list[int] = []
    for name, shape in shapes.items():
        count = _positions(shape)
        for other, sizes in shapes.items():
            if count is None or other == name or other in (*found, *found.values()) or len(sizes) != 3:
                continue
            kinds = [int(sizes[3 - at] or 0) for at in (1, 2) if sizes[at] == count]
            if kinds and (4 in shape[1:] or kinds[0] == 1):
                found[name] = other
                classes.append(kinds[0])
                break
    whole = len(set(classes)) == 1 and 2 * len(found) == len(shapes)
    pairs = list(found.items()) if whole else list(found.items())[:1]
    return Head("pair", tuple(each for pair in pairs for each in pair), classes[0], image) if pairs else None


def _positions(shape: Shape) -> int | None:
    """Return how many boxes an output has, with or without key points behind them; None if it has no boxes."""
    if len(shape) not in (3, 4) or None in shape[1:]:
        return None
    if shape[-1] == 4 or _has_points(shape):
        return math.prod(size or 0 for size in shape[1:-1])
    return shape[2] if len(shape) == 3 and shape[1] == 4 and (shape[2] or 0) >= FEWEST_ANCHORS else None


def _has_points(shape: Shape) -> bool:
    """Tell whether rows may be boxes with key points behind them, many of them."""
    return len(shape) == 3 and (shape[1] or 0) >= FEWEST_ANCHORS and shape[2] in range(6, 4 + 2 * MOST_POINTS, 2)


def _lists_of(shapes: Mapping[str, Shape], image: tuple[int, int]) -> Head | None:
    """Return the head of boxes that were chosen, beside a score and a class of each."""
    for name, shape in shapes.items():
        beside = [other for other, sizes in shapes.items() if sizes == shape[:-1] and len(sizes) in (1, 2)]
        # Five scores of classes beside the best one look the same without an axis of the batch.
        scored = shape[-1:] == (5,) and len(shape) == 3
        if (shape[-1:] == (4,) and len(beside) >= 2) or (scored and beside):
            return Head("lists", (name, *beside[:2]), 0, image)
    return None


def _corners(centers: Floats) -> Floats:
    """Return boxes given by center and size as corners."""
    half = centers[..., 2:4] / 2
    return np.concatenate([centers[..., :2] - half, centers[..., :2] + half], axis=-1)


def _in_pixels(boxes: Floats, image: tuple[int, int]) -> Floats:
    """Return boxes in pixels, which may be shares of the image's sides."""
    return boxes * np.array([image[1], image[0]] * 2, np.float32) if np.abs(boxes).max(initial=0.0) <= 2.0 else boxes


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
    if rows.shape[1] == 4 + head.classes == 5:
        return _in_pixels(_corners(rows), head.image), rows[:, 4:]
    if len(rows) not in anchors_of(head.image) and _are_kinds(rows[:, 5], rows[:, 4]) and rows[:, 4].any():
        chosen = np.zeros((len(rows), head.classes), np.float32)
        chosen[np.arange(len(rows)), np.clip(rows[:, 5], 0, head.classes - 1).astype(np.int64)] = rows[:, 4]
        return _in_pixels(rows[:, :4], head.image), chosen
    if _is_on_grid(rows, head.image):
        rows = _off_grid(rows, head.image)
    boxes = _in_pixels(_corners(rows), head.image)
    if rows.shape[1] == 4 + head.classes:
        return boxes, _scores_alone(rows[:, 4:])
    return boxes, rows[:, 4:5] * _scores_alone(rows[:, 5 : 5 + head.classes])


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


def _final(outputs: Sequence[npt.NDArray[Any]]) -> Detections:
    rows = np.asarray(outputs[0], np.float32)
    if rows.shape[1] == 7:
        boxes, kinds, scores = rows[:, 1:5], rows[:, 5], rows[:, 6]
    elif _are_kinds(rows[:, 0], rows[:, 1]) and not _are_kinds(rows[:, 5], rows[:, 4]):
        kinds, scores, boxes = rows[:, 0], rows[:, 1], rows[:, 2:]
    else:
        boxes, scores, kinds = rows[:, :4], rows[:, 4], rows[:, 5]
    return Detections(boxes, scores, kinds.astype(np.int64))


def _are_kinds(kinds: Floats, scores: Floats) -> bool:
    return _are_whole(kinds) and _are_shares(scores)


def _are_whole(numbers: npt.NDArray[Any]) -> bool:
    return bool((numbers == np.rint(numbers)).all())


def _pair(head: Head, outputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    pairs = [_pair_alone(head, *outputs[at : at + 2]) for at in range(0, len(outputs), 2)]
    boxes, scores = (np.concatenate(each) for each in zip(*pairs, strict=True))
    scores = _without_background(scores)
    if boxes.shape[1] > 4:
        return _on_own_cells(boxes, head.image), scores
    if _are_offsets(boxes):
        return _on_own_anchors(boxes), scores
    return _in_pixels(boxes if _are_corners(boxes) else _corners(boxes), head.image), scores


def _pair_alone(head: Head, boxes: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Return boxes and scores of each position, whichever way they lie."""
    boxes = _upright(boxes)
    lies = scores.shape[-1] == len(boxes) != head.classes
    return boxes, scores.T if lies else scores.reshape(-1, head.classes)


def _upright(boxes: Floats) -> Floats:
    """Return boxes as rows."""
    return boxes.T if boxes.shape[0] == 4 != boxes.shape[-1] else boxes.reshape(-1, boxes.shape[-1])


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


def _on_own_cells(rows: Floats, image: tuple[int, int]) -> Floats:
    """Return corners of boxes given by center and size, in pixels beside an anchor, each at a place of its own."""
    at = np.arange(len(rows))
    places = np.stack([at % 256, at // 256], axis=1) * 4.0 * max(image)
    centers = places + np.clip(rows[:, :2], -max(image), max(image))
    sizes = np.clip(rows[:, 2:4], 1.0, 2.0 * max(image))
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
    return np.asarray(1 / (1 + np.exp(-np.maximum(logits, -80.0))), np.float32)  # what is below is 0 all the same


def _lists(outputs: Sequence[npt.NDArray[Any]]) -> Detections:
    boxes, *others = outputs
    if boxes.shape[1] == 5:
        boxes, others = boxes[:, :4], [boxes[:, 4], *others[:1]]
    # Scores are shares; labels are whole numbers.
    scores, labels = sorted(others, key=lambda each: (each.dtype.kind != "f", bool(len(each)) and _are_whole(each)))
    if not len(boxes) == len(scores) == len(labels):
        raise DataError(f"The lists of detections differ in length: {len(boxes)}, {len(scores)} and {len(labels)}.")
    return Detections(np.asarray(boxes, np.float32), np.asarray(scores, np.float32), labels.astype(np.int64))


_DENSE = {"columns": _columns, "rows": _rows, "pair": _pair, "levels": _levels}
