"""Figures of draws: equal to the figures of the samples that were drawn."""

from __future__ import annotations

import time

import numpy as np
import pytest

from detent.evaluation.task_measures import draw_weights, drawn_correlation, drawn_overlap, drawn_precision, drawn_ranks
from detent.tasks.detection import Detections, Truths, match_truths, mean_average_precision


def scene(generator, classes=3, objects=6, alarms=10):
    """One image: truths, some of them crowds, and detections near some of them."""
    corners = generator.uniform(0, 80, (objects, 2))
    boxes = np.concatenate([corners, corners + generator.uniform(5, 20, (objects, 2))], 1).astype(np.float32)
    kinds = generator.integers(0, classes, objects)
    near = boxes[generator.integers(0, objects, alarms)] + generator.normal(0, 1.5, (alarms, 4)).astype(np.float32)
    guessed = generator.integers(0, classes, alarms)
    guessed[: alarms // 2] = kinds[generator.integers(0, objects, alarms // 2)]
    found = Detections(near.astype(np.float32), generator.uniform(0, 1, alarms).astype(np.float32), guessed)
    return match_truths(found, Truths.of(boxes, kinds, generator.uniform(0, 1, objects) < 0.2))


@pytest.fixture
def images():
    generator = np.random.default_rng(3)
    return [scene(generator) for _ in range(12)]


def test_all_once_is_the_precision_itself(images):
    assert drawn_precision(images, np.ones((1, 12)))[0] == pytest.approx(mean_average_precision(images), abs=1e-12)


def test_a_draw_without_some_images(images):
    weights = np.zeros((1, 12))
    weights[0, [0, 3, 7]] = 1
    expected = mean_average_precision([images[at] for at in (0, 3, 7)])
    assert drawn_precision(images, weights)[0] == pytest.approx(expected, abs=1e-12)


def test_images_drawn_twice_count_twice(images):
    weights = np.zeros((1, 12))
    weights[0, 2], weights[0, 5] = 2, 1
    expected = mean_average_precision([images[2], images[2], images[5]])
    # Copies of a detection are one step of the curve instead of two.
    assert drawn_precision(images, weights)[0] == pytest.approx(expected, abs=0.05)


def test_no_truth_is_no_figure():
    none = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    nothing = match_truths(none, Truths.of([], []))
    assert np.isnan(drawn_precision([nothing], np.ones((1, 1)))).all()


def test_draws_follow_from_the_number_of_samples():
    weights = draw_weights(50)
    assert weights.shape == (1000, 50)
    assert (weights.sum(1) == 50).all()
    assert (weights == draw_weights(50)).all()
    assert len(draw_weights(100_000)) == 200


def test_a_thousand_draws_are_quick():
    generator = np.random.default_rng(1)
    images = [scene(generator, classes=80, objects=8, alarms=200) for _ in range(64)]
    start = time.perf_counter()
    drawn_precision(images, draw_weights(64))
    assert time.perf_counter() - start < 20  # about a second on a quiet core


def test_ranks_share_ties():
    ranks = drawn_ranks(np.array([3.0, 1.0, 3.0, 2.0]), np.array([[1.0, 1, 1, 1], [2, 0, 1, 1]]))
    assert ranks[0].tolist() == [3.5, 1, 3.5, 2]
    assert ranks[1, 0] == 3.0  # 2, 3, 3, 3: the mean of the ranks 2, 3 and 4


def test_correlation_of_a_draw():
    generator = np.random.default_rng(0)
    one, other = generator.integers(0, 9, (2, 30)).astype(float)
    weights = draw_weights(30)[:1]
    rows = np.repeat(np.arange(30), weights[0].astype(int))
    ranks = [drawn_ranks(each[rows], np.ones((1, 30)))[0] for each in (one, other)]
    assert drawn_correlation(one, other, weights)[0] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert drawn_correlation(np.ones(30), other, weights)[0] == 0.0


def test_overlap_counts_classes_that_occur():
    common, found, truths = np.array([[4.0, 0, 0]]), np.array([[6.0, 0, 2]]), np.array([[6.0, 2, 0]])
    assert drawn_overlap(common, found, truths, np.ones((1, 1)))[0] == pytest.approx((4 / 8 + 0) / 2)
