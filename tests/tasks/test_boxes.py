"""Boxes by hand, and average precision against COCO's own evaluation."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from detent.tasks.detection import (
    Detections,
    Truths,
    match_detections,
    match_truths,
    mean_average_precision,
    overlaps,
    suppress,
)


def boxes(*rows):
    return np.array(rows, np.float32).reshape(-1, 4)


def found(*rows):
    """Detections of (x1, y1, x2, y2, score, class)."""
    array = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(array[:, :4], array[:, 4], array[:, 5].astype(np.int64))


def test_overlap_by_hand():
    first = boxes([0, 0, 2, 2])
    second = boxes([1, 1, 3, 3], [0, 0, 2, 2], [2, 2, 4, 4], [0, 0, 4, 1])
    np.testing.assert_allclose(overlaps(first, second), [[1 / 7, 1.0, 0.0, 2 / 6]])


def test_what_lies_in_a_crowd_overlaps_it_fully():
    crowd = np.array([True])
    np.testing.assert_allclose(overlaps(boxes([0, 0, 2, 2]), boxes([0, 0, 10, 10]), crowd), [[1.0]])


def test_boxes_without_an_area_overlap_nothing():
    assert overlaps(boxes([1, 1, 1, 1]), boxes([1, 1, 1, 1]))[0, 0] == 0.0


def test_the_best_of_overlapping_boxes_stays():
    kept = suppress(
        found([0, 0, 10, 10, 0.8, 1], [0, 0, 10, 9, 0.9, 1], [0, 0, 10, 10, 0.5, 2], [20, 0, 30, 9, 0.1, 1])
    )
    assert kept.scores.tolist() == pytest.approx([0.9, 0.5, 0.1])
    assert kept.classes.tolist() == [1, 2, 1]


def test_suppression_keeps_no_more_than_asked():
    rows = [[20 * at, 0, 20 * at + 10, 10, 0.9 - at / 100, 0] for at in range(10)]
    assert len(suppress(found(*rows), most=3)) == 3


def test_partners_have_the_same_class_and_place():
    first = found([0, 0, 10, 10, 0.9, 1], [0, 0, 10, 10, 0.8, 2], [50, 50, 60, 60, 0.7, 1])
    second = found([0, 0, 10, 9, 0.6, 1], [50, 50, 60, 60, 0.6, 2])
    assert match_detections(first, second).tolist() == [0, -1, -1]
    assert match_detections(first, found()).tolist() == [-1, -1, -1]


def test_precision_by_hand():
    """Two truths; found first, then a false alarm, then the second: precision 1 up to recall 1/2, then 2/3."""
    truths = Truths.of(boxes([0, 0, 10, 10], [50, 50, 60, 60]), [0, 0])
    image = match_truths(found([0, 0, 10, 10, 0.9, 0], [80, 0, 90, 9, 0.8, 0], [50, 50, 60, 60, 0.7, 0]), truths)
    np.testing.assert_allclose(mean_average_precision([image]), (51 + 50 * 2 / 3) / 101)


def test_nothing_to_find_is_no_number():
    assert np.isnan(mean_average_precision([match_truths(found([0, 0, 1, 1, 0.5, 0]), Truths.of([], []))])).all()


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_pycocotools(seed):
    """Random images with crowds, missed and doubled boxes, many classes and more than a hundred detections."""
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(seed)
    images, annotations, results, matches = [], [], [], []
    for image in range(1, 13):
        count = int(rng.integers(0, 9))
        corner = rng.uniform(0, 400, (count, 2))
        size = rng.uniform(5, 200, (count, 2))
        truth, kinds = np.concatenate([corner, corner + size], 1), rng.integers(0, 5, count)
        crowd = rng.random(count) < 0.15
        moved = np.concatenate(
            [truth + rng.normal(0, 8, truth.shape), rng.uniform(0, 400, (int(rng.integers(0, 150)), 4))]
        )
        moved = np.concatenate([np.minimum(moved[:, :2], moved[:, 2:]), np.maximum(moved[:, :2], moved[:, 2:])], 1)
        classes = np.concatenate([kinds, rng.integers(0, 5, len(moved) - count)])
        scores = rng.random(len(moved)).astype(np.float32)
        images.append({"id": image})
        for at in range(count):
            wide, high = size[at]
            box = [*corner[at], wide, high]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image, "category_id": int(kinds[at]), "bbox": box}
                | {"area": wide * high, "iscrowd": int(crowd[at])}
            )
        for box, kind, score in zip(moved, classes, scores, strict=True):
            shape = [*box[:2], *(box[2:] - box[:2])]
            results.append({"image_id": image, "category_id": int(kind), "bbox": shape, "score": float(score)})
        matches.append(
            match_truths(Detections(moved.astype(np.float32), scores, classes), Truths.of(truth, kinds, crowd))
        )
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = {"images": images, "annotations": annotations, "categories": [{"id": at} for at in range(5)]}
        truth.createIndex()
        judged = evaluation.COCOeval(truth, truth.loadRes(results), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    precisions = mean_average_precision(matches)
    assert precisions.mean() == pytest.approx(judged.stats[0], abs=1e-3)
    assert precisions[0] == pytest.approx(judged.stats[1], abs=1e-3)
