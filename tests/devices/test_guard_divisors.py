from __future__ import annotations

import numpy as np
import onnx
import pytest

import detent
from detent.errors import ModelError
from tests.models import build, info, node, normal, run

ROWS = info("x", [8, 16])


def samples(count=4):
    return [{"x": normal(8, 16, seed=seed)} for seed in range(count)]


def linear_attention():
    """x / (the sum of the squares of a projection + 1e-6): that is near 0 for a row of small numbers."""
    return build(
        [
            node("MatMul", "x w", "p"),
            node("Relu", "p", "r"),
            node("Mul", "r r", "q"),
            node("Mul", "q q", "q4"),
            node("Add", "q4 small", "d", name="sum"),
            node("Div", "x d", "y", name="quotient"),
        ],
        "y",
        {"w": normal(16, 1, seed=9) / 2, "small": np.array(1e-3, np.float32)},
        [ROWS],
    )


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8"])
def test_a_divisor_never_rounds_to_zero(recipe):
    report = detent.quantize(linear_attention(), None, samples(), recipe)
    model = onnx.ModelProto()
    model.CopyFrom(report.model)
    (quotient,) = [each for each in model.graph.node if each.name == "quotient"]
    model.graph.output.append(onnx.ValueInfoProto(name=quotient.input[1]))
    for sample in samples():
        assert run(model, sample)[quotient.input[1]].min() > 0
    decisions = {each.node: each for each in report.nodes}
    assert decisions["quotient"].quantized
    assert any(each.node == "quotient" and each.by == "GuardDivisors" for each in report.changes)


def test_a_divisor_with_codes_of_its_own_is_left_alone():
    proto = build([node("Sigmoid", "x", "d"), node("Div", "x d", "y")], "y", inputs=[ROWS])
    report = detent.quantize(proto, None, samples(), "A16W8")
    assert not [each for each in report.changes if each.by == "GuardDivisors"]


def test_nan_in_an_output_is_an_error():
    # 0.01 is a code of its own beside 1, but not beside 1000: log(0) is infinite, whatever the float model says.
    proto = build(
        [
            *(node("LeakyRelu", "x", "l"), node("Abs", "l", "a")),  # without an activation function it stays float
            *(node("Add", "a small", "b"), node("Log", "b", "y", name="log")),
        ],
        "y",
        {"small": np.array(0.01, np.float32)},
        [ROWS],
    )
    data = [{"x": np.where(each["x"] > 1, 1000, 0).astype(np.float32)} for each in samples()]
    with pytest.raises(ModelError, match="'y'.*'log'"):
        detent.quantize(proto, None, data, "A8W8")
