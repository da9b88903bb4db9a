"""Dynamic quantization: integer layers instead of float ones, for every form that these have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import detent
from detent.errors import ModelError
from detent.numerics.formats import IntegerFormat
from detent.recipe.recipe import PRESETS
from tests.models import build, conv_relu_conv, info, node, normal, residual, run

DYNAMIC = PRESETS["UINT8_DYNAMIC_QUANT"]
WEIGHTS = {
    f"{dtype} {granularity}{'' if symmetric else ' asymmetric'}": IntegerFormat(dtype, symmetric, "float", granularity)
    for dtype in ("uint8", "int8")
    for granularity in ("per_tensor", "per_channel")
    for symmetric in (True, False)
    if symmetric or granularity == "per_tensor"
}

LAYERS = {
    "conv": (node("Conv", "x w b", "y"), (1, 3, 8, 8), (4, 3, 3, 3), (4,)),
    "no bias": (node("Conv", "x w", "y"), (1, 3, 8, 8), (4, 3, 3, 3), None),
    "pads and strides": (
        node("Conv", "x w b", "y", pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]),
        (2, 3, 8, 8),
        (4, 3, 3, 3),
        (4,),
    ),
    "auto pad": (node("Conv", "x w b", "y", auto_pad="SAME_UPPER", strides=[2, 2]), (1, 3, 7, 8), (4, 3, 3, 3), (4,)),
    "groups": (node("Conv", "x w b", "y", group=2), (1, 4, 8, 8), (6, 2, 3, 3), (6,)),
    "depthwise": (node("Conv", "x w b", "y", group=4), (1, 4, 8, 8), (4, 1, 3, 3), (4,)),
    "one dimension": (node("Conv", "x w b", "y", pads=[1, 1]), (2, 3, 9), (4, 3, 3), (4,)),
    "three dimensions": (node("Conv", "x w b", "y"), (1, 3, 5, 6, 4), (4, 3, 2, 3, 2), (4,)),
    "gemm": (node("Gemm", "x w b", "y"), (5, 16), (16, 6), (6,)),
    "gemm transB": (node("Gemm", "x w b", "y", transB=1), (5, 16), (6, 16), (6,)),
    "gemm transA": (node("Gemm", "x w b", "y", transA=1), (16, 5), (16, 6), (6,)),
    "gemm alpha and beta": (node("Gemm", "x w b", "y", alpha=0.5, beta=2.0, transB=1), (5, 16), (6, 16), (6,)),
    "gemm and a row": (node("Gemm", "x w b", "y"), (5, 16), (16, 6), (1, 6)),
    "gemm and a column": (node("Gemm", "x w b", "y"), (5, 16), (16, 6), (5, 1)),
    "gemm and a matrix": (node("Gemm", "x w b", "y"), (5, 16), (16, 6), (5, 6)),
    "gemm and a number": (node("Gemm", "x w b", "y"), (5, 16), (16, 6), ()),
    "gemm without bias": (node("Gemm", "x w", "y", transB=1), (5, 16), (6, 16), None),
    "matmul": (node("MatMul", "x w", "y"), (5, 16), (16, 6), None),
    "batches of rows": (node("MatMul", "x w", "y"), (2, 3, 5, 16), (16, 6), None),
    "batches of both": (node("MatMul", "x w", "y"), (3, 5, 16), (3, 16, 6), None),
    "a row": (node("MatMul", "x w", "y"), (16,), (16, 6), None),
}


def layer(kind):
    one, size, shape, bias = LAYERS[kind]
    constants = {"w": normal(*shape) + np.float32(0.25)}
    if bias is not None:
        constants["b"] = normal(*bias, seed=1) if bias else np.array(0.75, np.float32)
    return build([one], "y", constants, inputs=[info("x", size)]), normal(*size, seed=9) + np.float32(0.5)


def quantized(proto, x, recipe=DYNAMIC, **fields):
    return detent.quantize(proto, None, [{"x": x}], recipe.replace(**fields))


def noise_db(exact, got):
    return 10 * np.log10((exact**2).sum() / ((exact - got) ** 2).sum())


def operators(proto):
    return [one.op_type for one in proto.graph.node]


@pytest.mark.parametrize("kind", LAYERS)
def test_every_form_of_a_layer(kind):
    proto, x = layer(kind)
    exact = run(proto, {"x": x})["y"]
    for weights in WEIGHTS.values():
        report = quantized(proto, x, weights=weights)
        onnx.checker.check_model(report.model, full_check=True)
        assert list(run(report.model, {"x": x})) == ["y"]
        # Not onnxruntime's answer: without VNNI its kernels for uint8 times int8 saturate at 16 bits.
        (got,) = ReferenceEvaluator(report.model).run(["y"], {"x": x})
        assert got.shape == exact.shape
        assert noise_db(exact, got) > 30
        ops = operators(report.model)
        assert ops.count("DynamicQuantizeLinear") == 1
        assert ("ConvInteger" in ops) == (LAYERS[kind][0].op_type == "Conv")
        assert not {"Conv", "Gemm", "MatMul"} & set(ops)
        assert report.model.opset_import[0].version == 17


def by_hand(x, w, params):
    """The product that the integer operators compute."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / np.float32(255))
    zero_point = np.rint(np.clip(-low / scale, 0, 255))
    codes = np.clip(np.rint(x / scale) + zero_point, 0, 255) - zero_point
    return (codes @ (params.encode(w) - params.zero_point)) * (scale * params.scale.astype(np.float32))


def test_the_numbers_of_a_matmul():
    proto, x = layer("matmul")
    w = numpy_helper.to_array(proto.graph.initializer[0])
    weights = WEIGHTS["uint8 per_tensor asymmetric"]
    got = run(quantized(proto, x, weights=weights).model, {"x": x})["y"]
    np.testing.assert_allclose(got, by_hand(x, w, weights.fit(w.min(), w.max())), rtol=1e-5, atol=1e-5)


def test_weights_are_a_quarter():
    proto = build([node("MatMul", "x w", "y")], "y", {"w": normal(128, 128)}, inputs=[info("x", (1, 128))])
    report = quantized(proto, normal(1, 128))
    assert report.bytes_after == pytest.approx(128 * 128, abs=1500)


@pytest.mark.parametrize("weights", [each for each in WEIGHTS if each.startswith("int8")])
def test_convolutions_read_uint8(weights):
    """Codes of int8 are counted from -128 on, as is their zero point: onnxruntime read nothing else before 1.24."""
    proto, x = layer("conv")
    w = numpy_helper.to_array(proto.graph.initializer[0])
    report = quantized(proto, x, weights=WEIGHTS[weights])
    (layer_node,) = (each for each in report.model.graph.node if each.op_type == "ConvInteger")
    held = {each.name: numpy_helper.to_array(each) for each in report.model.graph.initializer}
    codes, zero_point, scale = (held[name] for name in (layer_node.input[1], layer_node.input[3], "w_scale"))
    assert codes.dtype == zero_point.dtype == np.uint8 and zero_point.ndim == 0
    found = (codes.astype(np.int32) - zero_point) * scale.reshape(-1, 1, 1, 1)
    assert np.abs(found - w).max() <= 0.51 * scale.max()


@pytest.mark.parametrize("maker", [conv_relu_conv, residual])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_small_networks(maker, weights):
    proto, x = maker(), normal(1, 3, 8, 8, seed=9)
    report = quantized(proto, x, weights=WEIGHTS[weights])
    assert noise_db(run(proto, {"x": x})["y"], run(report.model, {"x": x})["y"]) > 25
    assert report.fidelity.outputs["y"].sqnr_db > 25


@pytest.mark.parametrize("seed", range(6))
def test_random_networks(seed):
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(8, 40, 4)]
    nodes, constants = [], {}
    for index, (before, after) in enumerate(pairwise(sizes)):
        source, result = (f"a{index}" if index else "x"), f"h{index}"
        constants |= {
            f"w{index}": normal(before, after, seed=seed + index) / before**0.5,
            f"b{index}": normal(after, seed=index),
        }
        nodes.append(node("Gemm", f"{source} w{index} b{index}", result))
        nodes.append(node(("Relu", "Tanh")[int(rng.integers(2))], result, f"a{index + 1}"))
    proto = build(nodes, f"a{len(sizes) - 1}", constants, inputs=[info("x", (16, sizes[0]))])
    x = normal(16, sizes[0], seed=seed)
    report = quantized(proto, x)
    (exact,), (got,) = run(proto, {"x": x}).values(), run(report.model, {"x": x}).values()
    assert noise_db(exact, got) > 25


def test_an_input_of_several_layers_is_quantized_once():
    nodes = [node("Conv", "x w b", "a"), node("Conv", "x v", "c"), node("Add", "a c", "y")]
    proto = build(nodes, "y a", {"w": normal(4, 3, 3, 3), "b": normal(4), "v": normal(4, 3, 3, 3, seed=2)})
    x = normal(1, 3, 8, 8, seed=9)
    report = quantized(proto, x)
    assert operators(report.model).count("DynamicQuantizeLinear") == 1
    exact, got = run(proto, {"x": x}), run(report.model, {"x": x})
    assert list(got) == ["y", "a"]
    assert all(noise_db(exact[name], got[name]) > 30 for name in exact)


def test_a_weight_of_several_layers():
    nodes = [node("Gemm", "x w", "a", transB=1), node("MatMul", "a w", "y")]
    proto = build(nodes, "y", {"w": normal(8, 8)}, inputs=[info("x", (4, 8))])
    x = normal(4, 8, seed=9)
    got = run(quantized(proto, x).model, {"x": x})["y"]
    assert noise_db(run(proto, {"x": x})["y"], got) > 25


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_entries_of_a_table_have_a_scale_each(weights, axis):
    w = normal(12, 12) * np.float32(2) ** np.arange(-6, 6, dtype=np.float32).reshape(-1, 1)
    w = np.ascontiguousarray(w if axis == 0 else w.T)
    inputs = [info("x", (2, 3), onnx.TensorProto.INT64)]
    proto = build([node("Gather", "w x", "y", axis=axis)], "y", {"w": w}, inputs=inputs)
    x = np.array([[0, 11, 5], [7, 7, 1]])
    report = quantized(proto, x, weights=WEIGHTS[weights])
    onnx.checker.check_model(report.model, full_check=True)
    entries = np.abs(w).max(1 if axis == 0 else 0, keepdims=True)
    error = np.abs(run(report.model, {"x": x})["y"] - np.take(w, x, axis))
    assert (error <= np.take(entries, x, axis) / 127 / 2 * 1.001).all()
    assert operators(report.model) == ["Gather", "DequantizeLinear", "Gather", "Mul"]
    stored = {tensor.data_type for tensor in report.model.graph.initializer if tensor.dims == [12, 12]}
    assert stored <= {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}


def test_a_table_that_is_read_twice_is_stored_once():
    nodes = [node("Gather", "w x", "a"), node("Gather", "w z", "b"), node("Add", "a b", "y")]
    index = onnx.TensorProto.INT64
    proto = build(nodes, "y", {"w": normal(64, 64)}, inputs=[info("x", (3,), index), info("z", (3,), index)])
    feeds = {"x": np.array([1, 2, 3]), "z": np.array([60, 3, 3])}
    report = detent.quantize(proto, None, [feeds], DYNAMIC)
    assert report.bytes_after < 64 * 64 + 64 * 4 + 1500
    assert noise_db(run(proto, feeds)["y"], run(report.model, feeds)["y"]) > 35


def test_what_gather_picks_from_an_activation_stays_float():
    nodes = [node("MatMul", "x w", "a"), node("Gather", "a i", "y", axis=1)]
    proto = build(nodes, "y", {"w": normal(8, 6), "i": np.array([0, 3])}, inputs=[info("x", (4, 8))])
    report = quantized(proto, normal(4, 8))
    assert {one.node: one.reason for one in report.nodes}["gather_y"] == "what it picks from is not constant"


def test_layers_that_stay_float_and_why():
    nodes = [
        node("MatMul", "x w", "a"),
        node("Transpose", "a", "t", perm=[1, 0]),
        node("MatMul", "a t", "products"),
        node("MatMul", "v products", "left"),
        node("Add", "left bias", "s"),
        node("Gemm", "s u z", "y", beta=0.5),
    ]
    constants = {"w": normal(8, 6), "v": normal(3, 4), "bias": normal(4, seed=3), "u": normal(4, 6)}
    proto = build(nodes, "y", constants, inputs=[info("x", (4, 8)), info("z", (3, 6))])
    feeds = {"x": normal(4, 8, seed=9), "z": normal(3, 6, seed=8)}
    report = detent.quantize(proto, None, [feeds], DYNAMIC)
    reasons = {one.node: one.reason for one in report.nodes}
    assert reasons["matmul_a"] == "quantized"
    assert "two activations" in reasons["matmul_products"]
    assert "two activations" in reasons["matmul_left"]
    assert "Add is not quantized" in reasons["add_s"]
    assert "a factor of it could not be folded" in reasons["gemm_y"]
    assert noise_db(run(proto, feeds)["y"], run(report.model, feeds)["y"]) > 25
    onnx.checker.check_model(report.model, full_check=True)


def test_a_convolution_whose_weight_is_computed():
    nodes = [node("Conv", "x w", "c"), node("Conv", "x v", "d"), node("Add", "c d", "y")]
    proto = build(nodes, "y", {"w": normal(4, 3, 3, 3)}, inputs=[info("x", (1, 3, 8, 8)), info("v", (4, 3, 3, 3))])
    feeds = {"x": normal(1, 3, 8, 8), "v": normal(4, 3, 3, 3)}
    report = detent.quantize(proto, None, [feeds], DYNAMIC)
    reasons = {one.node: one.reason for one in report.nodes}
    assert reasons["conv_d"] == "its weight is not constant"
    assert operators(report.model).count("ConvInteger") == 1 and "Conv" in operators(report.model)


def test_operators_that_have_no_integer_form_stay_float():
    nodes = [node("ConvTranspose", "x w", "c"), node("Conv", "c v", "d"), node("Mul", "d m", "y")]
    constants = {"w": normal(3, 4, 2, 2), "v": normal(2, 4, 3, 3), "m": normal(2, 1, 1)}
    proto, x = build(nodes, "y", constants), normal(1, 3, 8, 8)
    report = quantized(proto, x, operators=())
    reasons = {one.node: one.reason for one in report.nodes}
    assert "integer operators" in reasons["convtranspose_c"]
    assert "integer operators" in reasons.get("mul_y", "integer operators")  # unless it was folded into the Conv
    assert noise_db(run(proto, {"x": x})["y"], run(report.model, {"x": x})["y"]) > 25
    assert {"ConvTranspose", "ConvInteger"} <= set(operators(report.model))


def test_nothing_to_quantize():
    with pytest.raises(ModelError, match="no node to quantize"):
        quantized(build([node("Relu", "x", "y")], "y"), normal(1, 3, 8, 8))
