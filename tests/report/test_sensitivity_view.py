from __future__ import annotations

import json
import math

import pytest

from detent.measure.proposal import propose
from detent.measure.sensitivity import Sensitivity, sensitivity
from detent.report.sensitivity_view import SHOWN, SensitivityReport, bar
from tests.measure.test_proposal import THREE, layer
from tests.measure.test_sensitivity import SAMPLES
from tests.models import SMALL_MODELS, XINT8, planned


@pytest.mark.parametrize(
    ("error", "largest", "length"),
    [(1.0, 1.0, 20), (0.1, 1.0, 13), (1e-3, 1.0, 0), (1e-9, 1.0, 0), (0.0, 1.0, 0), (0.0, 0.0, 0), (1.0, math.inf, 0)],
)
def test_bars_are_in_decibels(error, largest, length):
    assert bar(error, largest) == "#" * length


def test_the_worst_comes_first():
    model, plan = planned(SMALL_MODELS["residual"]())
    found = sensitivity(model, plan, SAMPLES)
    text = str(SensitivityReport("model.onnx", XINT8, found))
    order = [layer.node for layer in found.worst_first()]
    assert [line.split()[0] for line in text.splitlines()[3:]] == order
    assert "other answers" not in text
    plain = json.loads(SensitivityReport("model.onnx", XINT8, found).to_json())
    assert [each["node"] for each in plain["layers"]] == order
    assert plain["error_db"] == pytest.approx(10 * math.log10(found.total))
    assert "proposal" not in plain


def test_a_proposal_is_said():
    for wanted, said in [(8.0, "leave float a, relu. Expected error 9.0 dB"), (20.0, "Nothing needs to change")]:
        report = SensitivityReport("model.onnx", XINT8, THREE, propose(THREE, None, XINT8, wanted))
        assert said in str(report)
        assert report.to_dict()["proposal"]["reached"]
    assert "overrides = []" in report.to_toml()


def test_many_layers_and_an_error_of_nothing():
    layers = tuple(layer(f"layer\n{index}") for index in range(SHOWN + 3))
    report = SensitivityReport("model.onnx", XINT8, Sensitivity(layers, (), {}, 0.0, None, 1, True))
    text = str(report)
    assert "and 3 more" in text
    assert "layer\\n0" in text
    assert "error -inf dB" in text
    assert report.to_dict()["error_db"] is None
