"""How the outputs of a detector become boxes: the layouts that exporters write, recognised by shape and values.

| layout    | outputs                                | boxes                           | who writes it              |
| --------- | -------------------------------------- | ------------------------------- | -------------------------- |
| `columns` | (n, 4 + classes, anchors)              | center and size, in pixels      | YOLOv8, v9, v11, v12       |
| `rows`    | (n, anchors, 5 + classes)              | the same, or relative to a cell | YOLOv5, v6, v7, YOLOX      |
| `final`   | (n, objects, 6)                        | corners, score, class           | YOLOv10, exports with NMS  |
| `pair`    | (n, anchors, 4), (n, anchors, classes) | corners, or center and size     | SSD, RetinaNet, DETR       |
| `lists`   | (objects, 4), (objects), (objects)     | corners                         | torchvision                |

In `rows` the fifth number is the objectness, which the score of each class is multiplied with. Scores of a `pair` may
be logits.

More columns than these (mask coefficients, key points, angles) follow the classes and are not looked at here; the
number of classes then has to be known, from the file's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.tasks.boxes import Detections, suppress

Floats = npt.NDArray[np.float32]
Shape = tuple[int | None, ...]

STRIDES = (8, 16, 32, 64)  # of the grids that common detectors predict on
# Detections below this score change no measure and cost time; COCO's own evaluation of YOLO uses the same.
LEAST_SCORE = 0.001


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
        return [_DENSE[self.layout](self, [array[at] for array in arrays]) for at in range(len(arrays[0]))]


def recognise_head(shapes: Mapping[str, Shape], image: tuple[int, int], classes: int | None = None) -> Head | None:
    """Return how the outputs of a detector are laid out, or None if no layout fits.

    `shapes` are those of real outputs, so no dimension is open; `image` is the height and width of the input.
    """
    for name, shape in shapes.items():
        layout = _layout_of_one(shape, image, classes)
        if layout is not None:
            return Head(layout[0], (name,), layout[1], image)
    return _pair_of(shapes, image) or _lists_of(shapes, image)


def anchors_of(image: tuple[int, int]) -> dict[int, tuple[int, ...]]:
    """Return which strides give how many cells: {8400: (8, 16, 32)} and others, for one anchor to a cell."""
    cells = [-(-image[0] // stride) * -(-image[1] // stride) for stride in STRIDES]
    return {
        sum(cells[low:high]): STRIDES[low:high]
        for low in range(len(STRIDES))
        for high in range(low + 1, len(STRIDES) + 1)
    }


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
    return _corners(rows), rows[:, 4 : 4 + head.classes]


def _rows(head: Head, outputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    rows = outputs[0]
    if _is_on_grid(rows, head.image):
        rows = _off_grid(rows, head.image)
    return _corners(rows), rows[:, 4:5] * rows[:, 5 : 5 + head.classes]


def _is_on_grid(rows: Floats, image: tuple[int, int]) -> bool:
    """Tell whether boxes are relative to cells: then centers stay near 0, though cells are all over the image."""
    return len(rows) in anchors_of(image) and float(np.percentile(np.abs(rows[:, :2]), 90)) < min(image) / 32


def _off_grid(rows: Floats, image: tuple[int, int]) -> Floats:
    """Return boxes in pixels: centers are offsets from the cell, sizes are logarithms, both in strides."""
    cells, strides = [], []
    for stride in anchors_of(image)[len(rows)]:
        y, x = np.mgrid[: -(-image[0] // stride), : -(-image[1] // stride)]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        strides.append(np.full((x.size, 1), stride))
    offset, scale = np.concatenate(cells), np.concatenate(strides)
    boxes = np.concatenate([(rows[:, :2] + offset) * scale, np.exp(rows[:, 2:4]) * scale, rows[:, 4:]], axis=1)
    return boxes.astype(np.float32)


def _final(rows: Floats, least: float) -> Detections:
    rows = rows[rows[:, 4] > least]
    order = np.argsort(-rows[:, 4], kind="stable")
    return Detections(rows[order, :4], rows[order, 4], rows[order, 5].astype(np.int64))


def _pair(head: Head, outputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    boxes, scores = outputs[0].reshape(-1, 4), outputs[1].reshape(-1, head.classes)
    if scores.min(initial=0.0) < 0.0 or scores.max(initial=0.0) > 1.0:
        scores = np.asarray(1 / (1 + np.exp(-scores)), np.float32)
    # Corners are in order; centers and sizes of small boxes are not.
    if float((boxes[:, 2:] >= boxes[:, :2]).all(axis=1).mean()) < 0.95:
        boxes = _corners(boxes)
    if np.abs(boxes).max(initial=0.0) <= 2.0:
        boxes = boxes * np.array([head.image[1], head.image[0]] * 2, np.float32)
    return boxes, scores


def _lists(outputs: Sequence[Floats], least: float) -> Detections:
    boxes, *others = outputs
    # Scores are shares; labels are whole numbers.
    scores, labels = sorted(others, key=lambda values: bool(len(values)) and bool((values == np.rint(values)).all()))
    if not len(boxes) == len(scores) == len(labels):
        raise DataError(f"The lists of detections differ in length: {len(boxes)}, {len(scores)} and {len(labels)}.")
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > least]
    return Detections(boxes[order], scores[order], labels[order].astype(np.int64))


_DENSE = {"columns": _columns, "rows": _rows, "pair": _pair}
