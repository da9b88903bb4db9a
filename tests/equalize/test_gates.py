"""Self-gated activations: rescaled so that HardSigmoid is closer, while the float function stays what it was."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import detent
from detent.devices.rewrites import SigmoidToHardSigmoid
from detent.equalize.gates import SLOPE, gate_factor, scale_gates, slope_of
from detent.errors import UsageError
from tests.models import as_ir, build, find, node, normal

WEIGHTS = {
    "w1": normal(4, 3, 3, 3),
    "b1": normal(4, seed=1),
    "w2": normal(4, 4, 1, 1, seed=2),
    "b2": normal(4, seed=3),
    "w3": normal(2, 4, 1, 1, seed=4),
    "b3": normal(2, seed=5),
}
X = normal(1, 3, 8, 8, seed=6)


def silu(value: str) -> list:
    return [node("Sigmoid", value, f"{value}_s"), node("Mul", f"{value} {value}_s", f"{value}_a")]


def network(*after: object, output: str = "y"):
    """Two gated layers with a residual Add, and a layer behind them."""
    return build(
        [
            node("Conv", "x w1 b1", "c"),
            *silu("c"),
            node("Conv", "c_a w2 b2", "d"),
            *silu("d"),
            node("Add", "c_a d_a", "e"),
            node("Conv", "e w3 b3", "y"),
            *after,
        ],
        output,
        WEIGHTS,
    )


def run(proto, feeds=None):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds or {"x": X})[0]


def test_the_float_function_stays_and_the_gates_get_larger_inputs():
    proto = network()
    model = as_ir(proto)
    assert scale_gates(model, lambda node: True) == 2
    np.testing.assert_allclose(run(ir.to_proto(model)), run(proto), rtol=1e-5, atol=1e-6)
    gates = [each for each in model.graph if each.op_type == "Sigmoid"]
    assert all(gate_factor(gate) is not None for gate in gates)
    np.testing.assert_allclose(np.concatenate([slope_of(gate) for gate in gates]), 1 / SLOPE, rtol=1e-6)


def test_the_replaced_gate_has_the_steeper_slope():
    """x * clip(a x / 6 + 1/2, 0, 1), by hand, is what the network answers with HardSigmoid in it."""
    model = as_ir(network())
    scale_gates(model, lambda node: True)
    SigmoidToHardSigmoid(lambda node: True)(model)
    assert not [each for each in model.graph if each.op_type in ("Sigmoid",) or "gate_factor" in str(each.name)]
    steep = [
        node("HardSigmoid", "c", "c_s", alpha=SLOPE / 6, beta=0.5),
        node("HardSigmoid", "d", "d_s", alpha=SLOPE / 6, beta=0.5),
    ]
    by_hand = network()
    for other in steep:
        for each in by_hand.graph.node:
            if each.output[0] == other.output[0]:
                each.CopyFrom(other)
    np.testing.assert_allclose(run(ir.to_proto(model)), run(by_hand), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "nodes"),
    {
        "read by something else": [node("Softmax", "d", "z", axis=1)],
        "a graph output": [node("Identity", "d_a", "z")],
    }.items(),
)
def test_what_cannot_be_rescaled_stays(case, nodes):
    proto = network(*nodes)
    proto.graph.output.extend([type(proto.graph.output[0])(name="z")])
    model = as_ir(proto)
    scale_gates(model, lambda node: True)
    gates = {str(each.inputs[0].name): each for each in model.graph if each.op_type == "Sigmoid"}
    assert "d" in gates, f"{case}: the second gate has no factor"
    np.testing.assert_allclose(run(ir.to_proto(model)), run(proto), rtol=1e-5, atol=1e-6)


def test_gates_that_stay_float_are_left_alone():
    model = as_ir(network())
    assert scale_gates(model, lambda node: False) == 0
    np.testing.assert_array_equal(np.asarray(find(model, "conv_c").inputs[1].const_value), WEIGHTS["w1"])


def test_statistics_of_one_sigmoid_do_not_serve_the_other(tmp_path):
    samples = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(4)]
    statistics = tmp_path / "s.detent"
    detent.quantize(network(), None, samples, "XINT8", save_stats=statistics, equalize=False)
    detent.quantize(network(), None, samples, "XINT8", stats=statistics, equalize=False)
    with pytest.raises(UsageError, match="HardSigmoid"):
        detent.quantize(network(), None, samples, "A8W8", stats=statistics, equalize=False)
