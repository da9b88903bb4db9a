"""The whole list on small networks that use all of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.prepare import default_passes, prepare
from tests.prepare.equivalence import bn_constants, f32, make, node, run


def prepared(proto, fix_shapes=None):
    model = ir.from_proto(proto)
    changes = prepare(model, default_passes(fix_shapes))
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    return after, changes


def network(opset):
    nodes = [
        node("BatchNormalization", "x p_s p_b p_m p_v", "n", name="norm"),
        node("Conv", "n w1", "c1", name="conv1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c1 s b m v", "b1", name="bn1"),
        node("Mul", "b1 half", "m1", name="half1"),
        node("Relu", "m1", "r1", name="relu1"),
        node("Dropout", "r1", "d1", name="drop"),
        node("Split", "d1", "left right", name="split", axis=1, **({"num_outputs": 2} if opset >= 18 else {})),
        node("Conv", "left w2", "c2", name="conv2", auto_pad="SAME_UPPER"),
        node("Conv", "right w2", "c3", name="conv3", auto_pad="SAME_UPPER"),
        node("Add", "c2 c3", "sum", name="add"),
        node("GlobalAveragePool", "sum", "g", name="gap"),
        node("Shape", "g", "gs", name="shape"),
        node("Gather", "gs zero", "batch", name="gather", axis=0),
        node("Concat", "batch minus", "target", name="concat", axis=0),
        node("Reshape", "g target", "flat", name="reshape"),
        node("MatMul", "flat w3", "mm", name="fc"),
        node("Add", "mm bias", "y", name="fc_bias"),
    ]
    constants = {
        **bn_constants(3, "p_"),
        **bn_constants(8),
        **{"w1": f32(8, 3, 3, 3), "w2": f32(5, 4, 2, 2), "w3": f32(5, 7), "bias": f32(7)},
        **{"half": np.array(0.5, np.float32), "zero": np.array([0]), "minus": np.array([-1])},
    }
    return make(nodes, {"x": ["N", 3, 24, 40]}, {"y": ["N", 7]}, constants, opset)


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("fixed", [False, True])
def test_all_together(opset, fixed):
    proto = network(opset)
    after, changes = prepared(proto, {"x": [2, 3, 24, 40]} if fixed else None)
    x = {"x": f32(2, 3, 24, 40)}
    want, got = run(proto, x)["y"], run(after, x)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    ops = [item.op_type for item in after.graph.node]
    assert not {"BatchNormalization", "Dropout", "Mul", "Split"} & set(ops)
    assert ops.count("AveragePool") == ops.count("GlobalAveragePool") == 1
    assert ("Shape" in ops) == (not fixed)
    assert "Gemm" in ops
    weights = [item.input[1] for item in after.graph.node if item.op_type == "Conv"]
    assert len(set(weights)) == len(weights) == 4
    assert {change.by for change in changes} >= {"FoldBatchNorm", "FoldAffine", "BatchNormToConv", "SplitToSlice"}
    shapes = {value.name: value for value in after.graph.value_info}
    assert all(name in shapes or name == "y" for item in after.graph.node for name in item.output)


def test_twice_is_once():
    once, _ = prepared(network(17), {"x": [1, 3, 24, 40]})
    again, changes = prepared(once)
    assert not changes
    assert [item.SerializeToString() for item in again.graph.node] == [
        item.SerializeToString() for item in once.graph.node
    ]


def test_result_is_the_same_every_time():
    first, second = (prepared(network(17))[0].SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


OPS = st.sampled_from(
    ["Conv", "BatchNormalization", "Mul", "Add", "Sub", "Div", "Relu", "Identity", "Depthwise", "ConvTranspose"]
)


@settings(max_examples=30, deadline=None)
@given(ops=st.lists(OPS, min_size=1, max_size=7), taps=st.sets(st.integers(0, 6), max_size=2), seed=st.integers(0, 99))
def test_random_chains(ops, taps, seed):
    nodes, constants, value = [], bn_constants(4), "x"
    for index, op in enumerate(ops):
        new = f"v{index}"
        if op == "BatchNormalization":
            nodes.append(node(op, f"{value} s b m v", new, epsilon=0.1))
        elif op in ("Relu", "Identity"):
            nodes.append(node(op, value, new))
        elif op in ("Mul", "Add", "Sub", "Div"):
            constants[f"k{index}"] = np.abs(f32(*[(), (4, 1, 1), (1,)][seed % 3], seed=index)) + np.float32(0.5)
            pair = f"k{index} {value}" if (seed + index) % 2 and op != "Div" else f"{value} k{index}"
            nodes.append(node(op, pair, new))
        else:
            depth = 1 if op == "Depthwise" else 4
            constants[f"w{index}"] = f32(4, depth, 2, 2, seed=index) / 4
            kind = "Conv" if op == "Depthwise" else op
            pads = [(seed + index) % 2] * 4
            nodes.append(node(kind, f"{value} w{index}", new, group=4 // depth, pads=pads))
        value = new
    outputs = sorted({f"v{tap}" for tap in taps if tap < len(ops)} | {value})
    proto = make(nodes, {"x": [1, 4, 9, 9]}, dict.fromkeys(outputs), constants)
    after, _ = prepared(proto)
    x = {"x": f32(1, 4, 9, 9, seed=seed)}
    want, got = run(proto, x), run(after, x)
    assert list(want) == list(got)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-4 * max(1e-3, float(np.abs(array).max())))
