"""Every fused operator against onnxruntime's own kernel of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from detent.prepare import InferShapes, TakeApart, prepare
from tests.models import since_runtime
from tests.prepare.equivalence import f32, info, make, node, run

MS = "com.microsoft"
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def model(nodes, inputs, constants=None, opset=17, outputs=("y",)):
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    proto = make(nodes, inputs, [], constants, opset, opsets=[helper.make_opsetid(MS, 1)])
    proto.graph.output.extend(outs)
    return proto


def taken_apart(proto, feeds):
    """Take the model apart, and check that nothing fused is left and that all outputs are the same."""
    step, values = TakeApart(), ir.from_proto(proto)
    prepare(values, [step])
    after = ir.to_proto(values)
    onnx.checker.check_model(after)
    assert not [each.op_type for each in after.graph.node if each.domain == MS], step.declined
    want, got = run(proto, feeds), run(after, feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=2e-5)
    return [each.op_type for each in after.graph.node]


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_gelus(op, opset):
    bias = " b" if op in ("BiasGelu", "FastGelu") else ""
    settings = {"alpha": 1.5} if op == "QuickGelu" else {}
    proto = model([node(op, f"x{bias}", "y", domain=MS, **settings)], {"x": [3, 50]}, {"b": f32(50, seed=3)}, opset)
    ops = taken_apart(proto, {"x": 3 * f32(3, 50)})
    assert ("Gelu" in ops) == (opset >= 20 and op != "QuickGelu")


@pytest.mark.parametrize("simple", [False, pytest.param(True, marks=since_runtime(21, "the sum with a bias"))])
@pytest.mark.parametrize("opset", [17, 18])
def test_the_norm_of_a_sum_and_the_sum_itself(simple, opset):
    op = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    names = "x skip g b" if simple else "x skip g t b"
    proto = model(
        [helper.make_node(op, names.split(), ["y", "", "", "total"], domain=MS, epsilon=1e-3)],
        {"x": [2, 5, 8], "skip": [2, 5, 8]},
        {"g": f32(8, seed=2), "t": f32(8, seed=3), "b": f32(8, seed=4)},
        opset,
        ("y", "total"),
    )
    taken_apart(proto, {"x": f32(2, 5, 8), "skip": f32(2, 5, 8, seed=1)})


@pytest.mark.parametrize("with_segments", [False, True])
def test_embeddings_and_the_lengths_that_they_hand_on(with_segments):
    hidden, heads = 8, 2
    constants = {
        **{"words": f32(20, hidden, seed=1), "places": f32(16, hidden, seed=2), "kinds": f32(2, hidden, seed=3)},
        **{"g": f32(hidden, seed=4), "t": f32(hidden, seed=5)},
        **{"w": f32(hidden, 3 * hidden, seed=6), "b": f32(3 * hidden, seed=7)},
    }
    segments = "segments words places kinds" if with_segments else "_ words places _"
    nodes = [
        node("EmbedLayerNormalization", f"ids {segments} g t mask", "e lengths", domain=MS),
        node("Attention", "e w b lengths", "y", domain=MS, num_heads=heads),
    ]
    inputs = [info(name, ["batch", "length"], INT32) for name in ("ids", "segments", "mask")]
    proto = model(nodes, inputs if with_segments else [inputs[0], inputs[2]], constants)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    ids = np.array([[3, 19, 0, 0, 0], [1, 2, 3, 4, 5]], np.int32)
    taken_apart(proto, {"ids": ids, "segments": 1 - mask, "mask": mask})


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["", "raw", "lengths"])
@pytest.mark.parametrize("sizes", [None, [8, 8, 12]])
def test_attention(mask, causal, sizes):
    total = sum(sizes or [8, 8, 8])
    settings = {"num_heads": 4, "unidirectional": causal} | ({"qkv_hidden_sizes": sizes} if sizes else {})
    proto = model(
        [node("Attention", f"x w b {mask}", "y", domain=MS, **settings)],
        [info("x", [2, "length", 6])] + ([info(mask, [2, "length"] if mask == "raw" else [2], INT32)] if mask else []),
        {"w": f32(6, total, seed=1), "b": f32(total, seed=2)},
    )
    given = np.array([[1, 1, 1, 0], [1, 1, 1, 1]]) if mask == "raw" else np.array([3, 4])
    taken_apart(proto, {"x": f32(2, 4, 6), "raw": given.astype(np.int32), "lengths": given.astype(np.int32)})


@pytest.mark.parametrize("mask", [False, pytest.param(True, marks=since_runtime(21, "a mask beside another"))])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_attention_of_a_query_a_key_and_a_value(mask, scale):
    names = "q k v b raw add" if mask else "q k v b"
    inputs = {"q": [2, 3, 8], "k": [2, 5, 8], "v": [2, 5, 12]}
    infos = [info(*each) for each in inputs.items()]
    if mask:
        infos += [info("raw", [2, 5], INT32), info("add", [1, 4, 3, 5])]
    settings = {"num_heads": 4} | ({"scale": scale} if scale else {})
    proto = model([node("MultiHeadAttention", names, "y", domain=MS, **settings)], infos, {"b": f32(28, seed=9)})
    feeds = {name: f32(*shape, seed=index) for index, (name, shape) in enumerate(inputs.items())}
    feeds |= {"raw": np.array([[1, 1, 0, 0, 1], [1, 1, 1, 1, 1]], np.int32), "add": f32(1, 4, 3, 5, seed=8)}
    taken_apart(proto, feeds)


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_product_that_transposes_and_scales(transposed):
    a, b = ([2, 4, 3] if transposed[0] else [2, 3, 4]), ([2, 5, 4] if transposed[1] else [2, 4, 5])
    settings = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.25}
    proto = model([node("FusedMatMul", "a b", "y", domain=MS, **settings)], {"a": a, "b": b})
    taken_apart(proto, {"a": f32(*a), "b": f32(*b, seed=1)})


@pytest.mark.parametrize(
    ("nodes", "inputs", "why"),
    [
        ([node("Attention", "x w b", "y", domain=MS, num_heads=2)], {"x": [1, 3, 6], "w": [6, 18]}, "not constant"),
        (
            [node("Attention", "x c b _ past", "y present", domain=MS, num_heads=2)],
            {"x": [1, 3, 6], "past": [2, 1, 2, 4, 3]},
            "computed before",
        ),
        ([node("Attention", "x c b", "y present", domain=MS, num_heads=2)], {"x": [1, 3, 6]}, "further outputs"),
        ([node("Attention", "x c b m", "y", domain=MS, num_heads=2)], {"x": [1, 3, 6], "m": None}, "dimensions"),
        ([node("Attention", "x c b", "y", domain=MS, num_heads=12)], {"x": [1, 3, 6]}, "12 heads"),
        ([node("Attention", "x b", "y", domain=MS, num_heads=2)], {"x": [1, 3, 6]}, "other shapes"),
        ([node("Attention", "x c c", "y", domain=MS, num_heads=2)], {"x": [1, 3, 6]}, "other shapes"),
        (
            [node("Attention", "x c b", "y", domain=MS, num_heads=2, qkv_hidden_sizes=[6, 12])],
            {"x": [1, 3, 6]},
            "other shapes",
        ),
    ],
)
def test_what_stays_whole_says_why_and_leaves_nothing_behind(nodes, inputs, why):
    infos = [info(name, shape if shape else [1, 3, 3], FLOAT if shape else INT32) for name, shape in inputs.items()]
    outputs = tuple(nodes[0].output)
    proto = model(nodes, infos, {"c": f32(6, 18), "b": f32(18, seed=1)}, outputs=outputs)
    step, values = TakeApart(), ir.from_proto(proto)
    prepare(values, [step])
    assert why in step.declined[0].what
    assert set(values.graph.initializers) == {"c", "b"}
    assert len(values.graph) == 1


def test_the_simple_norm_that_onnx_does_not_have():
    nodes = [node("SimplifiedLayerNormalization", "x g", "y", axis=-1, epsilon=1e-3)]
    taken_apart(model(nodes, {"x": [2, 5, 8]}, {"g": f32(8, seed=2)}), {"x": f32(2, 5, 8)})


def test_types_behind_an_operator_that_stays_whole_are_asked_of_onnxruntime():
    nodes = [
        node("Attention", "x c b", "a present", domain=MS, num_heads=2),
        node("MatMul", "a w", "y"),
    ]
    proto = model(
        nodes, {"x": [1, 3, 6]}, {"c": f32(6, 18), "b": f32(18, seed=1), "w": f32(6, 2)}, outputs=("y", "present")
    )
    values = ir.from_proto(proto)
    prepare(values, [InferShapes()])
    (result,) = [each.outputs[0] for each in values.graph if each.op_type == "MatMul"]
    assert result.dtype == ir.DataType.FLOAT
    assert list(result.shape) == [1, 3, 2]
