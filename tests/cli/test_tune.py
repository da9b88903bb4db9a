"""`detent tune` on the command line."""

from __future__ import annotations

import json

import pytest

from detent.cli.commands import MISSED
from detent.demo import CALIBRATION, FOLDER, MODEL, PREPROCESS
from detent.recipe.file import read_recipe

DEMO = ("--calib", CALIBRATION, "--preprocess", PREPROCESS)


def test_the_ladder_is_shown_and_the_result_written(detent, tmp_path):
    outcome = detent("tune", MODEL, tmp_path / "out.onnx", *DEMO, "--eval", FOLDER, "--max-drop", 1)
    assert outcome.code == 0, outcome.err
    assert "+ XINT8" in outcome.out
    assert "points of top-1" in outcome.out
    assert "within the 1 asked for" in outcome.out
    assert read_recipe(tmp_path / "out.toml").name == "XINT8"


def test_the_rounding_of_the_device_is_that_of_the_judge(detent, tmp_path):
    command = ("tune", MODEL, tmp_path / "out.onnx", *DEMO, "--max-drop", 100, "--rounding", "dpu")
    outcome = detent(*command)
    assert outcome.code == 0, outcome.err
    assert "in integers, with the rounding dpu; the float model" in " ".join(outcome.out.split())
    assert read_recipe(tmp_path / "out.toml").rounding == "dpu"


def test_a_target_that_is_missed_has_an_exit_code(detent, tmp_path):
    metric = tmp_path / "metric.py"
    metric.write_text("calls = [0]\ndef metric(outputs, labels):\n    calls[0] += 1\n    return -10 * calls[0]\n")
    outcome = detent("tune", MODEL, tmp_path / "out.onnx", *DEMO, "--metric", metric, "--budget", "1s", "--json")
    assert outcome.code == MISSED, outcome.err
    ladder = json.loads(outcome.out)
    assert not ladder["met"]
    assert ladder["rungs"][0]["unit"] == "units of metric"
    assert (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [("def score(outputs, sample): return float('nan')", "finite"), ("def score(outputs, sample): 1 / 0", "line 1")],
)
def test_a_metric_that_fails_is_named(detent, tmp_path, content, said):
    metric = tmp_path / "metric.py"
    metric.write_text(content)
    outcome = detent("tune", MODEL, tmp_path / "out.onnx", *DEMO, "--metric", metric)
    assert outcome.code == 2
    assert "metric.py" in outcome.err
    assert said in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metric.py"]


def test_the_report_is_saved(detent, tmp_path):
    out, report = tmp_path / "out.onnx", tmp_path / "ladder.json"
    outcome = detent("tune", MODEL, out, *DEMO, "--report", report, "--toml", tmp_path / "won.toml")
    assert outcome.code == 0, outcome.err
    assert json.loads(report.read_text())["taken"] == "XINT8"
    assert read_recipe(tmp_path / "won.toml").name == "XINT8"
    assert not out.with_suffix(".toml").exists()
