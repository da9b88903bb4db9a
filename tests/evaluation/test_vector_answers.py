"""Vectors and numbers are compared with float's, and with how much they differ."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.task_agreement import add_answers, compare_answers, summarize_answers
from detent.evaluation.vector_answers import VECTORS
from detent.tasks import Task
from detent.tasks.purpose import Purpose
from tests.evaluation.agreement import agreed


def test_numbers_are_compared_with_how_much_they_differ():
    """An answer of 40 to everyone is off by little of 40 +- 4, and by all of how much people differ."""
    ages = 40.0 + 4.0 * np.array([[-1.0], [1.0], [-1.0], [1.0]])
    always = agreed(Task.REGRESS, ages, np.full_like(ages, 40.0))
    assert always.figures["relative_error"] == pytest.approx(0.1, abs=0.01)
    assert always.figures["error_of_spread"] == pytest.approx(1.0)
    assert agreed(Task.REGRESS, ages, ages + 0.4).figures["error_of_spread"] == pytest.approx(0.1)
    assert agreed(Task.REGRESS, np.full_like(ages, 40.0), ages).figures["still"] == 1.0
    assert "error_of_spread" not in agreed(Task.REGRESS, ages[:3], ages[:3]).figures
    lengths = [compare_answers(Purpose(Task.REGRESS, ""), *({"y": np.ones((1, n))},) * 2, 1) for n in (3, 4, 3, 4)]
    summed = summarize_answers(Purpose(Task.REGRESS, ""), [answer for each in lengths for answer in each])
    assert "error_of_spread" not in summed.figures and summed.samples == 4


def pitches(samples=4, frames=6):
    """Return a pitch and a confidence for each frame; float is sure of every other one, and differs there by 10."""
    rng = np.random.default_rng(0)
    sure = np.tile([0.9, 0.2], (samples, frames // 2))
    return {"pitch": 200.0 + 10.0 * rng.choice([-1.0, 1.0], (samples, frames)), "sure": sure}


def test_numbers_that_float_is_not_sure_of_say_nothing():
    expected = pitches()
    octave = expected["pitch"] * np.where(expected["sure"] > 0.5, 1.0, 2.0)  # wrong where there is no pitch
    facts = {"confidences": {"pitch": "sure"}}
    kept = agreed(Task.REGRESS, expected, expected | {"pitch": octave}, **facts)
    assert kept.figures["relative_error"] == kept.figures["error_of_spread"] == 0.0
    assert kept.summary.startswith("of the 50 % of the numbers that float is sure of, ")
    assert agreed(Task.REGRESS, expected, expected | {"pitch": octave}).figures["relative_error"] > 0.5
    still = np.where(expected["sure"] > 0.5, 200.0, expected["pitch"])
    lost = agreed(Task.REGRESS, expected, expected | {"pitch": still}, **facts)
    assert lost.figures["error_of_spread"] >= 1.0
    # What frames without a pitch differ by is no spread that an error may hide in.
    noise = np.where(expected["sure"] > 0.5, expected["pitch"], 1e4 * np.eye(4, 6))
    one, other = (
        agreed(Task.REGRESS, {**expected, "pitch": each}, {**expected, "pitch": each + 5.0}, **facts)
        for each in (expected["pitch"], noise)
    )
    assert one.figures["error_of_spread"] == other.figures["error_of_spread"] > 0.4


def test_a_model_that_is_sure_of_nothing_tells_nothing():
    expected = pitches() | {"sure": np.full((4, 6), 0.1)}
    found = agreed(Task.REGRESS, expected, expected, confidences={"pitch": "sure"})
    assert found.figures["unsure"] == 1.0 and found.summary == "the float model is sure of nothing in these samples"


def test_vectors_keep_their_ranking():
    rng = np.random.default_rng(0)
    first = rng.standard_normal((12, 32)).astype(np.float32)
    near, far = first + 0.01 * rng.standard_normal(first.shape), rng.standard_normal(first.shape)
    assert agreed(Task.EMBED, first, near).loss < 0.01
    assert agreed(Task.EMBED, first, far).loss > 0.5
    assert agreed(Task.EMBED, first[:2], near[:2]).loss is None  # two vectors have one similarity
    tokens = rng.standard_normal((5, 7, 32)).astype(np.float32)
    assert agreed(Task.EMBED, tokens, tokens).figures["cosine"] == pytest.approx(1.0)


def test_a_number_without_an_axis_is_that_of_its_sample():
    """Each sample is an inference of its own: 1, 2, 3, 4, each a half too large."""
    purpose = Purpose(Task.REGRESS, "")
    answers = []
    for number in (1.0, 2.0, 3.0, 4.0):
        answers += compare_answers(purpose, {"y": np.float32(number)}, {"y": np.float32(number + 0.5)}, 1)
    found = summarize_answers(purpose, answers * 2)
    assert found is not None and found.figures["error_of_spread"] == pytest.approx(0.5 / np.std([1, 2, 3, 4]))


def test_vectors_of_other_lengths_have_no_ranking() -> None:
    """A user may call the numbers of each token a vector: each is compared with float's, not with the others."""
    purpose = Purpose(Task.EMBED, "by test")
    rows = [{"y": np.arange(1.0, length)[None]} for length in (3, 4, 5, 6)]
    found = summarize_answers(purpose, [each for row in rows for each in compare_answers(purpose, row, row, 1)])
    assert found is not None and found.figures["cosine"] == pytest.approx(1.0) and "ranking" not in found.figures


def test_one_sample_again_and_again_ranks_nothing():
    vectors = np.repeat(np.random.default_rng(0).standard_normal((1, 32)), 6, axis=0)
    found = agreed(Task.EMBED, vectors, vectors + 0.01 * np.random.default_rng(1).standard_normal((6, 32)))
    assert found.loss is None and set(found.figures) == {"cosine", "worst_cosine"}
    assert found.figures["cosine"] > 0.999


def test_the_same_vectors_agree_without_any_length():
    zeros, others = {"y": np.zeros((4, 8))}, {"y": np.eye(4, 8)}
    assert agreed(Task.EMBED, zeros, zeros).figures == {"cosine": 1.0, "worst_cosine": 1.0}
    assert (
        agreed(Task.EMBED, zeros, others).figures["cosine"]
        == agreed(Task.EMBED, others, zeros).figures["cosine"]
        == 0.0
    )


def test_vectors_that_no_summary_uses_are_not_kept():
    vectors = np.random.default_rng(0).standard_normal((100, 8))
    purpose, answers = Purpose(Task.EMBED, ""), []
    for at in range(0, 100, 10):
        part = {"y": vectors[at : at + 10]}
        add_answers(purpose, answers, compare_answers(purpose, part, part, 10))
    assert [answer.vectors is not None for answer in answers] == [True] * VECTORS + [False] * (100 - VECTORS)
    assert summarize_answers(purpose, answers).samples == 100
