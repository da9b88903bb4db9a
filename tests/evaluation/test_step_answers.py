"""Rows of scores for each step are read as text."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.step_answers import edit_distance
from detent.evaluation.task_agreement import compare_answers
from detent.tasks import Task
from detent.tasks.purpose import Purpose
from tests.evaluation.agreement import agreed


def steps(text, classes=5, sure=0.9):
    """Return the scores of one sequence: a row of shares for each class in `text`, [1, steps, classes]."""
    return np.array([[[sure if at == each else (1 - sure) / (classes - 1) for at in range(classes)] for each in text]])


def test_a_text_is_read_from_its_steps():
    """CTC: blanks (0) say nothing, repeated classes are one, and when a class is said does not count."""
    expected = steps([0, 1, 1, 0, 1, 0, 2, 3, 0, 0])  # 1 1 2 3
    later = steps([0, 0, 1, 0, 1, 0, 2, 2, 3, 0])
    assert agreed(Task.SEQUENCE, expected, later).figures == {"kept": 1.0, "classes": 4.0, "changed": 0.0}
    assert agreed(Task.SEQUENCE, expected, later).loss == 0.0
    lost = agreed(Task.SEQUENCE, expected, steps([0, 1, 1, 1, 1, 0, 2, 3, 0, 0]))  # 1 2 3
    assert lost.figures == {"kept": 0.0, "classes": 4.0, "changed": 0.25}
    assert lost.loss == pytest.approx((0.9 - 0.1 / 4) / 4)
    assert "0 of 1 sequences are kept whole, 1 of their 4 classes change" in lost.summary


def test_blanks_at_the_end_alone_do_not_divide_repeated_classes():
    expected, found = steps([1, 1, 2, 0, 0, 0]), steps([1, 2, 2, 0, 0, 0])
    assert agreed(Task.SEQUENCE, expected, found).figures == {"kept": 0.0, "classes": 3.0, "changed": 1 / 3}


def test_labels_of_tokens_are_compared_step_by_step():
    """Among those that are not the label of other words (0) in both."""
    expected, found = steps([0, 1, 2, 2, 0, 0]), steps([0, 1, 2, 0, 0, 0])
    assert agreed(Task.SEQUENCE, expected, found, tokens=True).figures == {
        "kept": 0.0,
        "classes": 3.0,
        "changed": 1 / 3,
    }
    assert agreed(Task.SEQUENCE, expected, found).figures["kept"] == 1.0  # as text they say the same: 1 2


def test_steps_may_come_first():
    expected, found = (np.swapaxes(steps(each), 0, 1) for each in ([0, 1, 0, 2, 0], [0, 1, 0, 3, 0]))
    answers = compare_answers(Purpose(Task.SEQUENCE, "by test"), {"y": expected}, {"y": found}, 1)
    assert [each.numbers["edits"] for each in answers] == [1]


def test_a_text_of_blanks_tells_nothing():
    assert agreed(Task.SEQUENCE, steps([0] * 8), steps([0] * 8)).loss is None


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [([], [], 0), ([1, 2], [], 2), ([1, 2, 3], [1, 3], 1), ([1, 2, 3], [2, 3, 4], 2), ([1, 2], [2, 1], 2)],
)
def test_edit_distance(one, other, distance):
    assert edit_distance(one, other) == edit_distance(other, one) == distance


def test_features_before_the_scores_are_no_text():
    features = np.random.default_rng(0).standard_normal((1, 4, 8))
    expected = {"features": features, "scores": steps([1, 2, 3, 4])}
    found = {"features": -features, "scores": steps([1, 2, 3, 4])}
    assert agreed(Task.SEQUENCE, expected, found, heads={"scores": "classes"}).figures["kept"] == 1.0
