from __future__ import annotations

import json
import math

import numpy as np
import pytest

import detent
from detent.measure.metric_file import Metric
from detent.report.evaluation_view import MOST_CHANGES
from tests.measure.test_evaluate import CLASSES, SAME, one_hot, scaler

WORSE = scaler([0, *[1] * (CLASSES - 1)])


def test_never_two_bare_percentages():
    evaluation = detent.evaluate([SAME, WORSE], one_hot(0, 1, 2, 3, second=7), labels=[0, 1, 2, 7])
    text = str(evaluation)
    assert "Evaluated on 4 samples from an array, labels from the given list." in text
    # Wilson for 3 and 2 of 4; b = 1, c = 0, n = 4: 1/6 -+ 1.96 sqrt((3/6 - 1/36) / 6)
    assert "75.00  30.06 .. 95.44" in text
    assert "50.00  15.00 .. 85.00" in text
    assert "25.00  -38.32 .. 71.65" in text
    assert "1 (could be chance)" in text
    assert "array[0]" in text
    assert "became wrong" in text


def test_a_clear_loss_is_called_one():
    text = str(detent.evaluate([SAME, WORSE], one_hot(*[0] * 12, second=7), labels=[0] * 12))
    assert f"{2 / 2**12:.3g} (hardly chance)" in text
    assert f"({MOST_CHANGES} of 12)" in text


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


def test_a_score_and_a_metric():
    score = Metric("height", score=lambda outputs, _: float(outputs.max()))
    text = str(detent.evaluate([SAME, WORSE], one_hot(0, 1), metric=score))
    assert "mean of height" in text
    assert "units of height" in text
    whole = Metric("rows", whole=lambda outputs, _: len(outputs))
    text = str(detent.evaluate([SAME, WORSE], one_hot(0, 1), metric=whole))
    assert text.splitlines()[-1].split()[-5:] == ["0", "-", "units", "of", "rows"]


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
