"""Rows of scores are compared as classes or tags."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.row_answers import probabilities
from detent.evaluation.task_agreement import compare_answers, paired_costs, summarize_answers
from detent.tasks import Task
from detent.tasks.purpose import Purpose
from tests.evaluation.agreement import agreed


def test_a_change_costs_what_float_was_surer_of():
    expected = np.log(np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [0.2, 0.6, 0.2]]) * 3)
    found = expected.copy()
    found[1] = expected[1][[1, 0, 2]]
    same = agreed(Task.CLASSIFY, expected, expected)
    assert (same.loss, same.interval[0]) == (0.0, 0.0)
    assert same.interval[1] > 0.05  # four samples prove nothing
    changed = agreed(Task.CLASSIFY, expected, found)
    assert changed.loss == pytest.approx(0.1 / 4)
    assert changed.figures["same_top1"] == 0.75
    assert "3 of 4 samples keep their top class" in changed.summary


def test_shares_are_taken_as_they_are():
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    np.testing.assert_array_equal(probabilities(shares), shares)
    np.testing.assert_allclose(probabilities(np.log(shares)), shares)
    assert agreed(Task.CLASSIFY, shares, shares[::-1]).loss == pytest.approx((0.8 + 0.6) / 2)
    assert agreed(Task.CLASSIFY, np.array([[0.9], [0.6]]), np.array([[0.8], [0.4]])).loss == pytest.approx(0.1)


def test_more_samples_tell_more():
    rng = np.random.default_rng(0)
    few, many = rng.standard_normal((8, 10)) * 4, rng.standard_normal((200, 10)) * 4
    assert agreed(Task.CLASSIFY, few, few).interval[1] > 0.03 > agreed(Task.CLASSIFY, many, many).interval[1]


def test_a_tag_costs_what_float_was_sure_of():
    """A lost tag of 0.9 costs 0.8 and a new one of 0.2 half of 0.6, of tags that weigh 0.9 + 0.8 + 0.6."""
    expected = np.array([[0.9, 0.8, 0.1], [0.6, 0.2, 0.1]])
    found = np.array([[0.4, 0.7, 0.1], [0.55, 0.7, 0.1]])
    tags = agreed(Task.TAG, expected, found)
    assert tags.loss == pytest.approx((0.8 + 0.3) / 2.3)
    assert tags.figures == pytest.approx({"kept": 2 / 3, "new": 1 / 3, "score_shift": -0.65 / 3, "confident": 1.0})
    assert "2 of 3 tags above 0.5 are kept, 1 are new" in tags.summary
    logits = agreed(Task.TAG, *(np.log(each / (1 - each)) for each in (expected, found)))
    assert (logits.loss, logits.figures) == (pytest.approx(tags.loss), pytest.approx(tags.figures))
    assert agreed(Task.TAG, expected, expected - 0.05).loss == 0.0


def test_without_any_tag_the_best_are_compared():
    """The third of the best three moves from 0.1 to 0.05, of 0.4 + 0.2 + 0.1."""
    faint = agreed(Task.TAG, np.array([[0.4, 0.2, 0.1, 0.05]]), np.array([[0.4, 0.2, 0.1, 0.15]]))
    assert faint.loss == pytest.approx(0.05 / 0.7)
    assert faint.figures["confident"] == 0.0
    assert "2 of 3 of the 3 best tags" in faint.summary


def test_the_worst_of_several_answers_counts():
    expected = {"kind": np.array([[0.9, 0.1], [0.2, 0.8]]), "tags": np.array([[0.9, 0.1], [0.8, 0.1]])}
    heads = {"kind": "classes", "age": "number", "tags": "tags"}
    ages = np.array([[30.0], [40.0]])
    for broken, at in (("kind", 0), ("tags", 1)):
        found = dict(expected)
        found[broken] = expected[broken].copy()
        found[broken][0] = expected[broken][0][::-1]
        purpose = Purpose(Task.CLASSIFY, "by test", heads=heads)
        answers = compare_answers(purpose, {"age": ages, **expected}, {"age": ages, **found}, 2)
        summed = summarize_answers(purpose, answers)
        assert summed.summary.startswith(f"'{broken}' keeps least of 2 answers")
        assert summed.loss == pytest.approx([0.8 / 2, (0.8 + 0.4) / 1.7][at])
        costs, weights = paired_costs(purpose, answers)
        assert costs.sum() / weights.sum() == pytest.approx(summed.loss)
