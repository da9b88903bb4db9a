"""What a HardSigmoid gives beside larger values, joined: a product by one gives both a single position."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.comparison.inspection import inspect_model
from tests.models import build, info, node, normal, run

SHAPE = (1, 4, 8, 8)


def joined(gate: str = "Sigmoid"):
    nodes = [
        node("Conv", "x w", "c"),
        node(gate, "c", "h"),
        node("Relu", "x", "r"),
        node("Concat", "h r h", "j", axis=1),
        node("Conv", "j v", "y"),
    ]
    weights = {"w": normal(4, 4, 1, 1), "v": normal(2, 12, 1, 1, seed=1)}
    return build(nodes, "y", weights, [info("x", SHAPE)])


@pytest.fixture
def data():
    return [20 * normal(*SHAPE, seed=seed) for seed in range(16)]


def test_what_a_concat_joins_gets_one_position_where_rules_contradict_each_other(data):
    report = detent.quantize(joined(), None, data, "XINT8", equalize=False)
    assert "breaks the device's rule" not in str(report)
    rescaled = [each.node for each in report.changes if each.by == "RescaleIntoConcat"]
    assert rescaled == ["concat_j"]
    position = {each.name: each.position for each in inspect_model(report.model).quantized}
    (product,) = [name for name in position if "rescale" in name]
    assert position["h"] >= 7 > position[product] == position["r"] == position["j"]
    assert "align" not in str(detent.check(report.model, "npu-xint8"))
    found, expected = run(report.model, {"x": data[0]})["y"], run(joined("HardSigmoid"), {"x": data[0]})["y"]
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
    assert all(each.differing == 0 for each in detent.emulate(report.model, data[0]).outputs)


def test_nothing_is_multiplied_where_the_rules_agree(data):
    for model, recipe in ((joined("Relu"), "XINT8"), (joined(), "A8W8")):
        report = detent.quantize(model, None, data, recipe, equalize=False)
        assert not [each for each in report.changes if each.by == "RescaleIntoConcat"]
