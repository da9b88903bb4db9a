from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import detent
from detent.evaluation.metric_file import Metric
from detent.report.documents import page_of
from detent.report.losses import DISPUTED, MOST_CHANGES
from tests.evaluation.test_evaluator import CLASSES, SAME, one_hot, scaler

WORSE = scaler([0, *[1] * (CLASSES - 1)])


def test_never_two_bare_percentages():
    evaluation = detent.evaluate([SAME, WORSE], one_hot(0, 1, 2, 3, second=7), labels=[0, 1, 2, 7])
    text = str(evaluation)
    assert "Evaluated on 4 samples from an array, labels from the given list." in text
    # Wilson for 3 and 2 of 4; b = 1, c = 0, n = 4: 1/6 -+ 1.96 sqrt((3/6 - 1/36) / 6)
    assert "75.00  30.06 .. 95.44" in text
    assert "50.00  15.00 .. 85.00" in text
    assert "25.00  -38.32 .. 71.65" in text
    assert "1.000 (could be chance)" in text
    assert "array[0]" in text
    assert "became wrong" in text


def test_a_clear_loss_is_called_one():
    text = str(detent.evaluate([SAME, WORSE], one_hot(*[0] * 12, second=7), labels=[0] * 12))
    assert "<0.001 (hardly chance)" in text
    assert f"and {12 - MOST_CHANGES} more; --verbose lists them." in text
    assert text.splitlines()[-1].startswith("Next: detent tune")


def test_the_test_decides_where_the_interval_says_otherwise():
    # 5 of 12 became wrong, none right: p = 2 / 2^5; 5/14 - 1.96 sqrt((7/14 - 25/196) / 14) = 0.04
    evaluation = detent.evaluate([SAME, WORSE], one_hot(*[0] * 5, *[1] * 7, second=7), labels=[0] * 5 + [1] * 7)
    assert evaluation.models[1].loss.is_disputed
    assert evaluation.models[1].loss.beyond_chance is False
    assert "0.062 (could be chance)" in str(evaluation)
    assert DISPUTED in str(evaluation).replace("\n", " ")
    page = page_of(evaluation)
    assert "Worse, beyond chance" not in page
    assert "which could be chance: McNemar&#39;s exact test decides that (p 0.062)" in page
    assert "crosses zero" not in page
    agreed = detent.evaluate([SAME, WORSE], one_hot(*[0] * 12, second=7), labels=[0] * 12)
    assert DISPUTED not in str(agreed)
    assert "exact test decides that" not in page_of(agreed)


def test_of_several_models_those_that_are_worse_are_counted():
    clear, few = scaler([0, *[1] * (CLASSES - 1)]), scaler([1, 0, *[1] * (CLASSES - 2)])
    rows, labels = one_hot(*[0] * 12, *[1] * 3, second=7), [0] * 12 + [1] * 3
    page = page_of(detent.evaluate([SAME, clear, few], rows, labels=labels))
    assert "<h2>1 of 2 are worse, beyond chance</h2>" in page


def test_those_that_became_wrong_come_first():
    text = str(detent.evaluate([SAME, WORSE], one_hot(0, 0, 0, second=7), labels=[5, 7, 0]))
    wrong, right, never = (text.index(f"array[{row}]") for row in (2, 1, 0))
    assert wrong < right < never


def test_not_a_number_is_said():
    broken = scaler(np.full(CLASSES, math.nan))
    text = str(detent.evaluate([SAME, broken], one_hot(0, 1), labels=[0, 1]))
    assert "answers 2 samples with NaN: they count as wrong" in text


def test_outputs_only():
    text = str(detent.evaluate([SAME, WORSE, SAME], one_hot(0, 1, 2, 3, second=7)))
    assert "3 of 4" in text
    assert "25.00  4.56 .. 69.94  % of top answers changed" in text
    assert "exact" in text
    assert "changes 25.00 % of the top answers (95 % interval: 4.56 .. 69.94)." in text


def test_a_score_and_a_metric():
    score = Metric("height", score=lambda outputs, _: float(outputs.max()))
    text = str(detent.evaluate([SAME, WORSE], one_hot(0, 1), metric=score))
    assert "mean of height" in text
    assert "units of height" in text
    whole = Metric("rows", whole=lambda outputs, _: len(outputs))
    text = str(detent.evaluate([SAME, WORSE], one_hot(0, 1), metric=whole))
    assert text.splitlines()[-3].split()[-5:] == ["0", "-", "units", "of", "rows"]


def test_json_has_everything():
    evaluation = detent.evaluate([SAME, WORSE], one_hot(0, 1, 2, 3, second=7), labels=[0, 1, 2, 7])
    first, second = json.loads(evaluation.to_json())["models"]
    assert first["top1"]["right"] == 3
    assert "loss" not in first
    assert second["loss"]["points"] == 25
    assert second["loss"]["unit"] == "percentage points of top-1 accuracy"
    assert second["loss"]["changed"] == [{"name": "array[0]", "label": 0, "before": 0, "after": 7}]
    assert second["loss_top5"]["became_wrong"] == 1 - int(second["top5"]["right"] == 4)
    assert second["bytes"] == WORSE.ByteSize()
    assert evaluation.models[1].loss.points == 25


def test_json_of_outputs():
    same, other = json.loads(detent.evaluate([SAME, scaler(np.ones(CLASSES))], one_hot(0, 1)).to_json())["models"]
    assert "outputs" not in same
    assert other["outputs"]["y"]["sqnr_db"] is None  # infinite
    assert other["same_top_answer"]["count"] == 2
    assert other["same_top_answer"]["interval"][1] == pytest.approx(100)


def test_the_order_of_the_models_is_doubted_where_the_first_is_by_far_the_smallest():
    evaluation = detent.evaluate([SAME, WORSE], one_hot(0, 1, 2, 3), labels=[0, 1, 2, 3])
    first, other = evaluation.models
    doubt = "name the float one first"

    def text(small, large):
        models = [replace(first, bytes=small), replace(other, bytes=large)]
        return str(replace(evaluation, models=models))

    assert doubt in text(400, 1000)
    assert doubt not in text(500, 1000) and doubt not in text(1000, 400)
