from __future__ import annotations

import json
import shutil

import pytest

from detent.demo import FOLDER, MODEL, PREPROCESS


@pytest.fixture
def arguments(quantized_demo):
    return ["evaluate", MODEL, quantized_demo, "--data", FOLDER, "--preprocess", PREPROCESS, "--limit", 64]


def test_labelled_images(detent, arguments, tmp_path):
    outcome = detent(*arguments, "--json", "--report", tmp_path / "r.json", "--batch", 8, "--threads", 2)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["samples"] == 64
    assert found["models"][0]["top1"]["percent"] > 90
    assert json.loads((tmp_path / "r.json").read_text()) == found
    text = detent(*arguments)
    assert "64 of" in text.out
    assert "labels from labels.csv" in text.out
    assert "points of top-1" in text.out


def test_without_labels(detent, arguments):
    found = json.loads(detent(*arguments, "--no-labels", "--json").out)
    assert found["models"][1]["outputs"]["logits"]["sqnr_db"] > 10
    assert "top answer" in found["models"][1]["loss"]["unit"]


def test_a_metric_of_ones_own(detent, arguments, tmp_path):
    (tmp_path / "mine.py").write_text("def score(outputs, sample):\n    return outputs.argmax() == sample.label\n")
    found = json.loads(detent(*arguments, "--metric", tmp_path / "mine.py", "--json").out)
    assert found["models"][0]["score"]["mean"] > 0.9
    (tmp_path / "mine.py").write_text("def score(outputs, sample):\n    return outputs.undefined\n")
    failed = detent(*arguments, "--metric", tmp_path / "mine.py")
    assert failed.code == 2
    assert "mine.py, line 2: score() failed on" in failed.err


def test_a_file_of_labels(detent, arguments, tmp_path):
    shutil.copytree(FOLDER / "images", tmp_path / "d")
    options = [*arguments[:3], "--preprocess", PREPROCESS, "--data", tmp_path / "d", "--labels", FOLDER / "labels.csv"]
    found = json.loads(detent(*options, "--limit", 16, "--json").out)
    assert found["models"][0]["top1"]["right"] >= 14


@pytest.mark.parametrize(
    ("extra", "code", "message"),
    [
        (["--labels", FOLDER / "labels.csv", "--no-labels"], 2, "contradict each other"),
        (["--label-offset", 5], 4, "(with --label-offset 5), but the model has the classes 0 to 9"),
        (["--no-labels", "--label-offset", 1], 2, "there are no labels"),
        (["--report", MODEL], 5, "would overwrite"),
        (["--providers", "NoneProvider"], 2, "has no provider 'NoneProvider'"),
        (["--provider-options", "a=1"], 2, "name the provider that they are for"),
        (
            ["--providers", "CPUExecutionProvider", "--provider-options", "a"],
            2,
            "has the option 'a': expected KEY=VALUE",
        ),
        (["missing.onnx"], 3, "There is no file missing.onnx"),
        (["--mean", "x"], 2, "--mean 'x'"),
    ],
)
def test_what_cannot_be_done(detent, arguments, extra, code, message):
    outcome = detent(*arguments, *extra)
    assert outcome.code == code, outcome.err
    assert message in outcome.err


def test_one_model_needs_labels_or_a_metric(detent, arguments):
    options = ["evaluate", MODEL, *arguments[3:]]
    assert "top-1" in detent(*options).out
    outcome = detent(*options, "--no-labels")
    assert outcome.code == 2
    assert "give two models or more" in outcome.err


def test_emulated_models_answer_as_the_file_says(detent, quantized_demo):
    arguments = ("--data", FOLDER, "--preprocess", PREPROCESS, "--limit", 60, "--emulate", "half-even", "--json")
    outcome = detent("evaluate", quantized_demo, *arguments)
    assert outcome.code == 0, outcome.err
    _, integers = json.loads(outcome.out)["models"]
    assert integers["model"].endswith("(in integers, half-even)")
    assert integers["loss"]["changed"] == []
    assert integers["loss"]["points"] == 0


def test_a_float_model_cannot_be_emulated(detent):
    outcome = detent("evaluate", MODEL, MODEL, "--data", FOLDER, "--preprocess", PREPROCESS, "--emulate", "dpu")
    assert outcome.code == 3
    assert "is not quantized" in outcome.err
