"""The error that candidates are judged by: it follows the task, and known answers have known errors."""

from __future__ import annotations

import numpy as np
import pytest

from detent.evaluation.answer_errors import BOX_WEIGHT, _softened_divergence, error_sums, total_error
from detent.tasks import Task
from detent.tasks.parts import OutputPart
from detent.tasks.purpose import Purpose
from tests.models import normal


def error(task, expected, found, parts=None, samples=1):
    purpose = Purpose(task, "", classes=2, image=(64, 64))
    return total_error([error_sums(purpose, parts or {}, {"y": expected}, {"y": found}, samples)])


@pytest.mark.parametrize("task", [Task.CLASSIFY, Task.SEGMENT, Task.EMBED, Task.REGRESS, Task.IMAGE])
def test_the_same_answers_have_no_error(task):
    answers = normal(2, 5, 8, 8) if task in (Task.SEGMENT, Task.IMAGE) else normal(2, 5)
    assert error(task, answers, answers, samples=2) == pytest.approx(0.0, abs=1e-9)


def test_classes_are_compared_by_the_divergence_of_their_probabilities():
    logits = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    found = np.log(np.array([[0.25, 0.5, 0.25]], np.float32))
    divergence, apart = 0.25 * np.log(2), np.log(2)
    alike = (apart**2 + apart**2) / 3 / 2  # half the variance of the errors -log 2, log 2 and 0
    assert error(Task.CLASSIFY, logits, found) == pytest.approx((divergence + alike) / 2, rel=1e-5)
    # What a Softmax left of the logits is softened by 4 only.
    roots = 2**0.25 + 2
    softened = 16 * (2**0.25 - 1) / roots * np.log(2**0.25)
    wanted = (divergence + softened) / 2
    assert error(Task.CLASSIFY, np.exp(logits), np.exp(found)) == pytest.approx(wanted, rel=1e-5)
    # A constant on all logits changes no answer, whatever it does to the squared error.
    assert error(Task.CLASSIFY, 3 * logits, 3 * logits + 5) == pytest.approx(0.0, abs=1e-6)


def test_a_certain_answer_tells_too():
    certain, worse, worst = (np.array([[12.0, 0.0, each]], np.float32) for each in (0.0, 1.0, 2.0))
    assert 1e-3 < error(Task.CLASSIFY, certain, worse) < error(Task.CLASSIFY, certain, worst)


def test_softening_without_end_is_the_limit_of_softening():
    logits, errors = normal(3, 7).astype(np.float64), 0.1 * normal(3, 7).astype(np.float64)
    limit = _softened_divergence(logits, logits + errors, np.inf)
    assert _softened_divergence(logits, logits + errors, 1e4) == pytest.approx(limit, rel=1e-3)


def test_the_smaller_error_of_all_classes_wins_where_the_first_is_certain():
    """The divergence of certain answers is nothing but the noise of a single logit."""
    logits = 3 * normal(16, 100) + 20 * np.eye(16, 100, dtype=np.float32)
    better, worse = logits + 0.1 * normal(16, 100), logits + 0.2 * normal(16, 100)
    assert error(Task.CLASSIFY, logits, better, samples=16) < error(Task.CLASSIFY, logits, worse, samples=16)


def test_one_score_has_another_class_beside_it():
    one, other = np.array([[0.75]], np.float32), np.array([[0.5]], np.float32)
    share = 3**0.25 / (1 + 3**0.25)
    softened = 16 * (share * np.log(2 * share) + (1 - share) * np.log(2 * (1 - share)))
    wanted = (0.75 * np.log(1.5) + 0.25 * np.log(0.5) + softened) / 2
    assert error(Task.CLASSIFY, one, other) == pytest.approx(wanted, rel=1e-4)
    logits = np.array([[np.log(3.0), 0.0]], np.float32)[:, :1]
    assert error(Task.CLASSIFY, logits - 2, logits - 2) == pytest.approx(0.0, abs=1e-9)


def detections(score, width, background=0.0):
    """One object among 84 positions of a 64 x 64 image: center and size, then two scores."""
    output = np.zeros((1, 6, 84), np.float32)
    output[0, :4] = np.array([32, 32, 20, 20], np.float32)[:, None]
    output[0, 4:] = background
    output[0, 2, 7], output[0, 4, 7] = width, score
    return output


def test_detections_are_compared_where_there_are_any():
    same = error(Task.DETECT, detections(0.8, 20), detections(0.8, 20, background=0.05))
    assert same == pytest.approx(0.0, abs=1e-9)  # noise below every threshold changes nothing
    assert error(Task.DETECT, detections(0.8, 20), detections(0.4, 20)) == pytest.approx(0.25 / 2, rel=1e-5)
    assert error(Task.DETECT, detections(0.8, 20), detections(0.8, 10)) == pytest.approx(0.5 * BOX_WEIGHT / 2, rel=1e-5)
    assert error(Task.DETECT, detections(0.8, 20), detections(np.nan, 20)) == np.inf


def test_with_nothing_detected_the_parts_tell():
    parts = {"y": [OutputPart("boxes", 1, 0, 4), OutputPart("scores", 1, 4, 6)]}
    found = detections(0.04, 20)
    assert error(Task.DETECT, detections(0.08, 20), found, parts) == pytest.approx(0.25 / 2, rel=1e-5)


def test_a_sample_without_objects_tells_nothing_beside_one_with_them():
    purpose = Purpose(Task.DETECT, "", classes=2, image=(64, 64))

    def sums(expected, found):
        return error_sums(purpose, {}, {"y": expected}, {"y": found}, 1)

    seen = sums(detections(0.8, 20.0), detections(0.7, 20.0))
    empty = sums(detections(0.01, 20.0), detections(0.09, 200.0))
    assert total_error([seen, empty]) == total_error([seen]) < total_error([empty])


def test_outputs_of_another_shape_than_the_tasks_are_compared_as_numbers():
    answers = normal(3, 2, 2, 2, 2)
    assert error(Task.CLASSIFY, answers, 0.5 * answers) == pytest.approx(0.25, rel=1e-5)


def test_parts_count_alike():
    sums = [{"small": (1.0, 10.0), "large": (3e6, 1e7)}, {"small": (3.0, 10.0), "large": (1e6, 1e7)}]
    assert total_error(sums) == pytest.approx((0.2 + 0.2) / 2)
    assert total_error([{"dead": (float("nan"), 0.0)}]) == np.inf


def test_numbers_that_float_is_not_sure_of_do_not_count():
    purpose = Purpose(Task.REGRESS, "", confidences={"pitch": "sure"})
    expected = {"pitch": np.array([[3.0, 4.0]]), "sure": np.array([[0.9, 0.1]])}
    found = {"pitch": np.array([[3.0, 9.0]]), "sure": expected["sure"]}
    assert total_error([error_sums(purpose, {}, expected, found, 1)]) == 0.0
    assert total_error([error_sums(Purpose(Task.REGRESS, ""), {}, expected, found, 1)]) > 0.0
    assert total_error([error_sums(purpose, {}, expected, found | {"pitch": np.array([[0.0, 4.0]])}, 1)]) == 0.5


@pytest.mark.parametrize("task", [Task.CLASSIFY, Task.SEQUENCE, Task.SEGMENT, Task.REGRESS])
def test_infinities_of_both_models_are_no_error(task):
    shape = {Task.SEQUENCE: (1, 3, 5), Task.SEGMENT: (1, 5, 6, 6)}.get(task, (1, 5))
    logits, noise = normal(*shape), 0.1 * normal(*shape, seed=1)
    logits.reshape(-1)[2] = -np.inf
    assert error(task, logits, logits) == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < error(task, logits, logits + noise) < 1.0
    assert error(task, logits, np.nan_to_num(logits, neginf=0.0)) == np.inf


def test_a_map_of_more_classes_than_columns_is_compared_by_classes():
    """A constant on all scores of a pixel changes no class."""
    logits = normal(1, 30, 8, 8)
    assert error(Task.SEGMENT, logits, logits + normal(1, 1, 8, 8)) == pytest.approx(0.0, abs=1e-6)
