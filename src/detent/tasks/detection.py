"""Detections, and how well boxes agree. Pure functions on arrays.

A box is x1, y1, x2, y2. The overlap of two boxes is their intersection over union:

    iou(a, b) = |a ∩ b| / |a ∪ b|

Average precision follows COCO. For one class and one threshold of overlap, detections are taken in the order of their
scores, at most a hundred for each image. Each matches the truth that it overlaps most among those not yet taken, or is
a false alarm. Precision is made monotone from the right and read at 101 recalls, 0, 0.01, ..., 1. Crowds, and truths
marked as ignored, neither count nor punish. The figure is the mean over the thresholds 0.50, 0.55, ..., 0.95, then over
the classes that occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
