"""Answers are compared as the task reads them."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.sample_answers import bootstrap
from detent.evaluation.task_agreement import compare_answers, summarize_answers
from detent.evaluation.vector_answers import spearman
from detent.tasks import Task
from detent.tasks.purpose import Purpose
from tests.evaluation.agreement import agreed


def test_an_output_that_passes_an_input_on_is_not_read():
    same, vectors = np.eye(4), np.random.default_rng(0).standard_normal((4, 8))
    outputs = [{"same": same, "y": vectors}, {"same": same, "y": -vectors}]
    assert agreed(Task.EMBED, *outputs).figures["cosine"] == 1.0
    assert agreed(Task.EMBED, *outputs, passed_on=frozenset({"same"})).figures["cosine"] == -1.0


def test_images_and_numbers():
    first = np.linspace(0, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)
    assert agreed(Task.IMAGE, first, first + 0.001).figures["psnr_db"] > 40
    assert agreed(Task.IMAGE, first, first).figures["psnr_db"] == 100.0
    assert agreed(Task.REGRESS, first, first * 0.9).figures["relative_error"] == pytest.approx(0.1)


def test_outputs_of_another_kind_have_no_answers():
    odd = {"y": np.zeros((1, 5), np.float32)}
    for task in (Task.DETECT, Task.SEGMENT, Task.IMAGE):
        assert compare_answers(Purpose(task, ""), odd, odd, 1) == []
    assert summarize_answers(Purpose(Task.DETECT, ""), []) is None


def test_statistics():
    assert bootstrap(np.array([0.0, 1.0, 0.0, 1.0]))[0] == 0.5
    low, high = bootstrap(np.array([0.0, 1.0] * 50))[1]
    assert 0.35 < low < 0.5 < high < 0.65
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 9.0])) == pytest.approx(1.0)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.ones(3)) == 0.0
    numbers = np.random.default_rng(0).standard_normal(66)
    assert spearman(numbers, numbers**3) == 1.0  # to the last bit
