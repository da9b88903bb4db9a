from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from detent.errors import UsageError
from detent.evaluation.metric_file import LabelledSample, Metric, load_metric

SAMPLE = LabelledSample("a.jpg", None, 1, {})
OUTPUTS = np.array([[1.0, 3.0, 2.0]], np.float32)


def write(tmp_path, text):
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_score(tmp_path):
    file = write(
        tmp_path,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Weights:\n"
        "    right: float = 2.0\n"
        "def score(outputs, sample):\n"
        "    return Weights().right * (outputs.argmax() == sample.label)\n",
    )
    metric = load_metric(file)
    assert (metric.name, metric.lower_is_better, metric.whole) == ("mine", False, None)
    assert metric.of_sample(OUTPUTS, SAMPLE) == 2.0


def test_a_metric(tmp_path):
    file = write(
        tmp_path, "lower_is_better = True\ndef metric(outputs, labels):\n    return abs(outputs.sum() - labels.sum())"
    )
    metric = load_metric(file)
    assert (metric.lower_is_better, metric.score) == (True, None)
    assert metric.of_all(OUTPUTS, np.array([1, 2])) == 3.0


@pytest.mark.parametrize("value", [True, 1, 1.5, np.float32(2), np.bool_(True), np.int8(-3), np.array(0.25)])
def test_what_counts_as_a_number(value):
    assert Metric("m", score=lambda *_: value).of_sample(OUTPUTS, SAMPLE) == float(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def score(outputs, sample):\n    return\n",
            r"mine.py, line 1: score\(\) must return a number, .* NoneType on a",
        ),
        (
            "\n\ndef score(outputs, sample):\n    return 'good'\n",
            r"line 3: score\(\) must return a number, .* str on a",
        ),
        ("def score(outputs, sample):\n    return outputs\n", r"must return a number, but returned ndarray on a.jpg"),
        ("def score(outputs, sample):\n    return float('nan')\n", r"line 1: score\(\) returned nan on a.jpg"),
        ("def score(outputs, sample):\n    return float('inf')\n", r"score\(\) returned inf"),
        (
            "def score(outputs, sample):\n    raise SystemExit(0)\n",
            r"line 2: score\(\) failed on a.jpg with SystemExit: 0",
        ),
        (
            "def helper(x):\n    return x[7]\ndef score(outputs, sample):\n    return helper(outputs)\n",
            r"mine.py, line 2: score\(\) failed on a.jpg with IndexError: .* outputs were of shape \[1, 3\]",
        ),
    ],
)
def test_scores_that_are_none(tmp_path, text, message):
    metric = load_metric(write(tmp_path, text))
    with pytest.raises(UsageError, match=message):
        metric.of_sample(OUTPUTS, SAMPLE)


def test_a_metric_that_fails(tmp_path):
    metric = load_metric(write(tmp_path, "def metric(outputs, labels):\n    return 1 / 0\n"))
    with pytest.raises(UsageError, match=r"line 2: metric\(\) failed with ZeroDivisionError: .*'a' \[2\], 'b' \[\]"):
        metric.of_all({"a": np.zeros(2), "b": np.zeros(())}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", r"mine.py: found neither of score\(outputs, sample\) and metric.*such as: def score"),
        ("def score(a, b): ...\ndef metric(a, b): ...\n", "found both of"),
        ("def score(outputs):\n    return 1\n", r"mine.py, line 1: score\(\) must take two arguments"),
        ("score = 3\n", "'score' must be a function, found int"),
        ("lower_is_better = 'yes'\ndef score(a, b): ...\n", "lower_is_better must be True or False, not 'yes'"),
        ("x = 1\nimport no_such_module\n", "mine.py, line 2: the metric file failed with ModuleNotFoundError"),
        ("import sys\nsys.exit()\n", "mine.py, line 2: the metric file failed with SystemExit"),
        ("x = 1\ny = = 2\n", "mine.py, line 2: this is not valid Python"),
    ],
)
def test_files_that_define_no_metric(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        load_metric(write(tmp_path, text))


def test_a_path_from_where_one_is(tmp_path, monkeypatch):
    write(tmp_path, "def score(outputs, sample):\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^mine.py, line 2: "):
        load_metric("mine.py").of_sample(OUTPUTS, SAMPLE)


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match="There is no metric file"):
        load_metric(tmp_path / "none.py")
    (tmp_path / "metric.toml").write_text("")
    with pytest.raises(UsageError, match=r"its name ends in .py"):
        load_metric(tmp_path / "metric.toml")


def test_functions_without_a_line():
    assert Metric("m", score=partial(lambda *_: 1)).of_sample(OUTPUTS, SAMPLE) == 1
    with pytest.raises(UsageError, match="^the metric: the metric.. returned nan"):
        Metric("m", whole=partial(lambda *_: math.nan)).of_all(OUTPUTS, None)
