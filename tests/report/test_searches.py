from __future__ import annotations

import dataclasses
import json
import math

import pytest

from detent.device_check import placement
from detent.recipe import Override
from detent.report.documents import page_of
from detent.report.searches import SHOWN, bar_length
from detent.results.searched import Sensitivity, SensitivityReport
from detent.search import propose
from detent.sensitivity_analysis import sensitivity
from tests.device_check.test_placement import NETWORK
from tests.models import SMALL_MODELS, XINT8, planned
from tests.search.test_proposal import THREE, layer
from tests.sensitivity_analysis.test_layer_errors import SAMPLES


@pytest.mark.parametrize(
    ("error", "largest", "length"),
    [(1.0, 1.0, 20), (0.1, 1.0, 13), (1e-3, 1.0, 0), (1e-9, 1.0, 0), (0.0, 1.0, 0), (0.0, 0.0, 0), (1.0, math.inf, 0)],
)
def test_bars_are_in_decibels(error, largest, length):
    assert round(20 * bar_length(error, largest)) == length


def test_the_worst_comes_first():
    model, plan = planned(SMALL_MODELS["residual"]())
    found = sensitivity(model, plan, SAMPLES)
    text = str(SensitivityReport("model.onnx", XINT8, found))
    order = [layer.node for layer in found.worst_first()]
    assert [line.split()[0] for line in text.splitlines()[-len(order) - 2 : -2]] == order
    assert text.splitlines()[-1].startswith(
        "Next: detent sensitivity model.onnx --calib DATA --recipe XINT8 --max-error"
    )
    assert "other answers" not in text
    plain = json.loads(SensitivityReport("model.onnx", XINT8, found).to_json())
    assert [each["node"] for each in plain["layers"]] == order
    assert plain["error_db"] == pytest.approx(10 * math.log10(found.total))
    assert "proposal" not in plain


def test_a_proposal_is_said():
    for wanted, said in [(8.0, "leave float a, relu."), (20.0, "nothing needs to change")]:
        report = SensitivityReport("model.onnx", XINT8, THREE, propose(THREE, None, XINT8, wanted))
        assert said in str(report)
        assert report.to_dict()["proposal"]["reached"]
    assert "overrides = []" in report.to_toml()


def test_the_data_and_what_the_device_loses_are_said():
    proposal = propose(THREE, None, XINT8, 8.0)
    network, _ = planned(NETWORK)
    mixed = XINT8.replace(overrides=(Override(nodes=("add_b",), leave_float=True),))
    device = placement(network, XINT8, mixed, "model.onnx")
    report = SensitivityReport("model.onnx", XINT8, THREE, proposal, "8 images from photos/", "Guessed mean.", device)
    assert str(report).splitlines()[1:3] == ["On 8 images from photos/.", "Guessed mean."]
    assert str(report).splitlines()[-2] == f"{device}."
    plain = report.to_dict()
    assert plain["data"] == "8 images from photos/"
    assert plain["proposal"]["device"]["after"] == {"device_nodes": 3, "cpu_nodes": 1, "subgraphs": 2}
    page = page_of(report)
    assert '<div class="verdict warn"><h2>A better recipe, but less of it on the device</h2>' in page
    assert page.count(str(device)) == 2
    assert "On 8 images from photos/." in page
    assert "Guessed mean." in page
    harmless = dataclasses.replace(report, device=placement(network, XINT8, XINT8, "model.onnx"))
    assert '<div class="verdict good"><h2>A better recipe</h2>' in page_of(harmless)


def test_gains_are_shown_where_they_were_measured():
    for exact in (False, True):
        report = SensitivityReport("model.onnx", XINT8, dataclasses.replace(THREE, exact=exact))
        assert ("gain left float" in str(report)) is exact
        assert (">Gain left float</button>" in page_of(report)) is exact
        assert "Gains were measured" not in page_of(report)


def test_many_layers_and_an_error_of_nothing():
    layers = tuple(layer(f"layer\n{index}") for index in range(SHOWN + 3))
    report = SensitivityReport("model.onnx", XINT8, Sensitivity(layers, (), {}, 0.0, None, 1, True))
    text = str(report)
    assert "and 3 more" in text
    assert "layer\\n0" in text
    assert "error -inf dB" in text
    assert report.to_dict()["error_db"] is None
