"""Detections are matched with those of float."""

from __future__ import annotations

import numpy as np
import pytest

from detent.tasks import Task
from tests.evaluation.agreement import agreed


def detections(boxes, anchors=100):
    """Return an output of layout `columns` with two classes: (center x, center y, width, height, scores)."""
    found = np.zeros((1, 6, anchors), np.float32)
    for at, box in enumerate(boxes):
        found[0, :, at] = box
    return found


def test_detections_are_matched():
    first = detections([(20, 20, 10, 10, 0.9, 0), (50, 50, 20, 20, 0, 0.6), (80, 20, 8, 8, 0.3, 0)])
    facts = {"classes": 2, "image": (128, 128)}
    same = agreed(Task.DETECT, first, first, **facts)
    assert same.loss == pytest.approx(0.0, abs=1e-6)
    assert (same.figures["kept"], same.figures["new"], same.figures["score_shift"]) == (1.0, 0.0, 0.0)
    second = detections([(20, 20, 10, 10, 0.8, 0), (50, 50, 20, 20, 0.6, 0), (80, 20, 8, 8, 0.2, 0)])
    other = agreed(Task.DETECT, first, second, **facts)
    assert other.figures["kept"] == pytest.approx(2 / 3)  # the second has another class
    assert other.figures["new"] == pytest.approx(1 / 3)
    assert other.figures["score_shift"] == pytest.approx(-0.1)
    assert other.loss > 0.2
    none = agreed(Task.DETECT, first, detections([]), **facts)
    assert none.figures["kept"] == 0.0
    assert none.loss == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("width", "share"),
    [
        (10.0, 0.0),
        (9.2, (0.17 - 0.15) / 0.5),  # 0.08 from float's box: 0.17 is the hypotenuse of 0.08 and 0.15
        (6.4, (0.39 - 0.15) / 0.5),  # 0.36, and 0.39
    ],
)
def test_what_boxes_that_moved_cost(width, share):
    """Errors that know nothing of each other add up by their squares, so a small one hardly counts."""
    first = detections([(20, 20, 10, 10, 0.9, 0)])
    moved = agreed(Task.DETECT, first, detections([(20, 20, width, 10, 0.9, 0)]), classes=2, image=(128, 128))
    assert moved.figures["overlap"] == pytest.approx(width / 10.0)
    assert moved.loss == pytest.approx(share / 2, abs=1e-6)


def test_that_none_of_a_few_detections_is_lost_may_be_chance():
    """Of 10 kept, up to 28 % may be lost of others (Wilson), and each costs 0.3 of a mean one."""
    image = detections([(10 + 12 * at, 60, 8, 8, 0.9, 0) for at in range(10)])
    found = agreed(Task.DETECT, image, image, classes=2, image=(128, 128))
    assert found.figures["kept"] == 1.0
    assert (found.loss, *found.interval) == pytest.approx((0.0, 0.0, 0.3 * 0.2775), abs=1e-4)


def test_without_confident_detections_the_best_are_compared():
    first = detections([(20, 20, 10, 10, 0.1, 0), (50, 50, 20, 20, 0, 0.05)])
    found = agreed(Task.DETECT, first, first, classes=2, image=(128, 128))
    assert found.figures["confident"] == 0.0
    assert found.figures["kept"] == 1.0
    empty = agreed(Task.DETECT, detections([]), detections([]), classes=2, image=(128, 128))
    assert empty.loss is None


def test_the_same_detections_lose_exactly_nothing():
    rng = np.random.default_rng(0)
    boxes = np.concatenate([20 * rng.random((1, 4, 100)) + 20, rng.random((1, 2, 100))], axis=1).astype(np.float32)
    for scores in (1.0, 0.2):  # without a confident one, the best are compared, and the last of them is one
        outputs = boxes * np.array([1, 1, 1, 1, scores, scores], np.float32)[:, None]
        found = agreed(Task.DETECT, outputs, outputs, classes=2, image=(64, 64))
        assert (found.loss, found.interval[0]) == (0.0, 0.0)
        assert found.figures["boxes_per_sample"] == found.figures["boxes_per_sample_float"]


def test_scores_of_four_classes_are_no_confidences_of_the_four_numbers_of_a_box():
    """With 0 for the numbers that a score below a half belongs to, faint objects would have no boxes."""
    boxes, scores = np.zeros((1, 100, 4), np.float32), np.zeros((1, 100, 4), np.float32)
    boxes[0, :3], scores[0, :3, 2] = [[8, 8, 24, 24], [40, 8, 56, 24], [8, 40, 24, 56]], 0.4
    outputs = {"boxes": boxes, "scores": scores}
    heads = dict.fromkeys(outputs, "objects")
    found = agreed(Task.DETECT, outputs, outputs, image=(64, 64), heads=heads, confidences={"boxes": "scores"})
    assert found.figures["kept"] == 1.0
