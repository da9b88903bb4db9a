from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.comparison.inspection import inspect_model
from detent.emit import emit
from detent.errors import ModelError
from detent.plan.layout import Role
from detent.recipe.file import find_recipe
from tests.convert.forms import constants, converted, foreign, ops, pair, quantized, same
from tests.models import SMALL_MODELS, build, conv_relu_conv, info, node, normal, planned, run


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8", "A16W8"])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_weights_stay_rounded_and_activations_do_not(name, recipe):
    """The result is the float model with the weights that the plan rounds to."""
    proto = SMALL_MODELS[name]()
    model, plan = planned(proto, recipe=find_recipe(recipe))
    expected = onnx.ModelProto()
    expected.CopyFrom(proto)
    for tensor in expected.graph.initializer:
        site = plan.layout.sites.get(tensor.name)
        if site is not None and site.role is not Role.ACTIVATION:
            params = plan.of(tensor.name)
            codes = params.encode(numpy_helper.to_array(tensor)) - params.broadcast(tuple(tensor.dims))[1]
            scale = params.broadcast(tuple(tensor.dims))[0].astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(codes.astype(np.float32) * scale, tensor.name))
    emit(model, plan)
    result, done = converted(ir.to_proto(model), "float")
    assert ops(result) == ops(expected)
    same(expected, result)
    assert {change.by for change in done.changes} == {"float"}
    assert not done.declined


def test_names_of_weights_and_outputs_come_back():
    result, _ = converted(quantized(conv_relu_conv()), "float")
    assert set(constants(result)) == {"w1", "b1", "w2", "b2"}
    assert [value.name for value in result.graph.output] == ["y"]
    assert {entry.domain: entry.version for entry in result.opset_import} == {"": 17}


def test_a_pair_from_input_to_output_becomes_an_identity():
    result, _ = converted(pair("uint8", 128), "float")
    assert ops(result) == ["Identity"]
    x = normal(4, 6)
    np.testing.assert_array_equal(run(result, {"x": x})["y"], x)


def test_a_pair_that_rescales_stays():
    proto = build(
        [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q t z", "d"), node("Relu", "d", "y")],
        "y",
        {"s": np.float32(0.5), "t": np.float32(0.25), "z": np.int8(0)},
    )
    with pytest.raises(ModelError, match="rescale"):
        converted(proto, "float")


def test_codes_that_something_else_reads_keep_their_quantizer():
    proto = build(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("DequantizeLinear", "q s z", "y"),
            node("Transpose", "q", "t", perm=[0, 2, 3, 1]),
        ],
        [info("y", (1, 3, 8, 8)), info("t", (1, 8, 8, 3), TensorProto.INT8)],
        {"s": np.float32(0.5), "z": np.int8(0)},
    )
    result, done = converted(proto, "float")
    assert sorted(ops(result)) == ["Identity", "QuantizeLinear", "Transpose"]
    assert "read by Transpose" in done.declined[0].what


def test_a_float_weight_behind_a_pair_is_rounded_and_stored():
    w = normal(3, 4)
    nodes = [
        node("ExtendedQuantizeLinear", "w s z", "q", domain="com.amd.quark"),
        node("ExtendedDequantizeLinear", "q s z", "d", domain="com.amd.quark"),
        node("Mul", "x d", "y"),
    ]
    tensors = {"w": w, "s": np.float32(1), "z": np.array(0, ml_dtypes.bfloat16)}
    proto = foreign(nodes, tensors, inputs=(("x", (3, 4)),))
    result, _ = converted(proto, "float")
    assert ops(result) == ["Mul"]
    (stored,) = constants(result).values()
    np.testing.assert_array_equal(stored, w.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert not result.functions
    same(proto, result, [{"x": normal(3, 4, seed=5)}])


def test_fix_neuron_goes_and_its_weights_are_rounded():
    w = normal(3, 4)
    nodes = [
        node("FixNeuron", "x s z", "a", domain="ai.onnx.contrib", bit_width="8"),
        node("FixNeuron", "w s z", "d", domain="ai.onnx.contrib", bit_width="8"),
        node("Mul", "a d", "y"),
    ]
    proto = foreign(nodes, {"w": w, "s": np.float32(0.125), "z": np.int8(0)}, inputs=(("x", (3, 4)),))
    result, _ = converted(proto, "float")
    assert ops(result) == ["Mul"]
    (stored,) = constants(result).values()
    np.testing.assert_array_equal(stored, np.clip(np.rint(w * 8), -128, 127) / 8)


def test_cast_pairs_through_bfloat16():
    w = normal(2, 3)
    nodes = [
        node("Cast", "x", "b", to=TensorProto.BFLOAT16),
        node("Cast", "b", "f", to=TensorProto.FLOAT),
        node("Cast", "w", "v", to=TensorProto.FLOAT),
        node("Mul", "f v", "y"),
    ]
    proto = foreign(nodes, {"w": w.astype(ml_dtypes.bfloat16)}, inputs=(("x", (2, 3)),))
    result, _ = converted(proto, "float")
    assert ops(result) == ["Mul"]
    x = normal(2, 3, seed=8)
    np.testing.assert_array_equal(run(result, {"x": x})["y"], x * w.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_inside_a_branch():
    body = lambda op: helper.make_graph(
        [
            node("QuantizeLinear", "x s z", f"{op}q"),
            node("DequantizeLinear", f"{op}q s z", f"{op}d"),
            node(op, f"{op}d", op),
        ],
        op,
        [],
        [info(op, None)],
    )
    proto = build(
        [node("If", "c", "y", then_branch=body("Relu"), else_branch=body("Neg"))],
        [info("y", (2, 2))],
        {"s": np.float32(0.5), "z": np.int8(0)},
        inputs=(info("x", (2, 2)), info("c", (), TensorProto.BOOL)),
    )
    result, _ = converted(proto, "float")
    x = normal(2, 2)
    np.testing.assert_array_equal(run(result, {"x": x, "c": np.array(False)})["y"], -x)


def test_operators_on_codes_are_pointed_out():
    proto, _ = converted(quantized(conv_relu_conv(), "A8W8"), "qoperator")
    with pytest.raises(ModelError, match="QLinearConv computes on codes"):
        converted(proto, "float")


def test_a_float_model_is_an_error():
    with pytest.raises(ModelError, match="it is not quantized"):
        converted(conv_relu_conv(), "float")


BLOCKS = {
    "BFPQuantizeDequantize": {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8, "rounding_mode": 2, "axis": 1},
    "MXQuantizeDequantize": {"element_dtype": "fp6_e3m2", "block_size": 32, "rounding_mode": 2, "axis": 1},
}


def block_model(op: str, domain: str = "com.amd.quark", **attributes) -> onnx.ModelProto:
    settings = BLOCKS.get(op, {}) | attributes
    nodes = [
        node(op, "x", "a", domain=domain, **settings),
        node(op, "w", "d", domain=domain, **settings),
        node("Mul", "a d", "y"),
    ]
    return foreign(nodes, {"w": normal(4, 48)}, inputs=(("x", (4, 48)),))


@pytest.mark.parametrize("op", BLOCKS)
def test_block_formats_go_and_their_weights_are_rounded(op):
    """On numbers that the format holds, its rounding does nothing: there both models agree."""
    proto = block_model(op)
    result, _ = converted(proto, "float")
    assert ops(result) == ["Mul"]
    assert not result.functions
    (stored,) = constants(result).values()
    assert 0 < np.abs(stored - normal(4, 48)).max() < 0.5
    ones = {"x": np.ones((4, 48), np.float32)}
    same(proto, result, [ones])
    np.testing.assert_array_equal(run(result, ones)["y"], stored)


@pytest.mark.parametrize(
    ("op", "older"), [("BFPQuantizeDequantize", "BFPFixNeuron"), ("MXQuantizeDequantize", "MXFixNeuron")]
)
def test_block_formats_change_their_generation(op, older):
    proto = block_model(op)
    result, _ = converted(proto, "vitis-qdq")
    assert ops(result) == [f"com.vai.quantize::{older}"] * 2 + ["Mul"]
    same(proto, result, [{"x": normal(4, 48, seed=4)}])
    back, _ = converted(result, "extended-qdq")
    assert ops(back) == ops(proto)
    same(proto, back, [{"x": normal(4, 48, seed=4)}])


@pytest.mark.parametrize(("dtype", "low"), [("uint8", 0), ("int8", -128)])
@pytest.mark.parametrize(("scale", "kept"), [(0.05, "Relu"), (6 / 255, "Clip")])
def test_an_activation_that_a_zero_point_stands_for_is_written_again(dtype, low, scale, kept):
    """onnxruntime's quantizer leaves the Relu behind a layer out where the lowest code is 0."""
    proto = pair(dtype, low, scale)
    proto.graph.node.insert(0, node("MatMul", "x w", "m"))
    proto.graph.node[1].input[0] = "m"
    proto.graph.initializer.append(numpy_helper.from_array(normal(6, 6), "w"))
    result, _ = converted(proto, "float")
    assert ops(result) == ["MatMul", kept]
    x = normal(4, 6) * 4
    product = run(result, {"x": x})["y"]
    assert product.min() == 0.0
    np.testing.assert_allclose(run(proto, {"x": x})["y"], np.minimum(product, 255 * scale), atol=scale)


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_dynamically_quantized_lstm_becomes_an_lstm(per_channel):
    """Its weights are codes of the transposed ones; of its data, only the rounding to 8 bits is gone."""
    rng, hidden = np.random.default_rng(5), 6
    shape = (2, 4 * hidden) if per_channel else (2,)
    arrays: dict = {"b": normal(2, 8 * hidden)}
    for name, rows in (("w", 5), ("r", hidden)):
        arrays[f"{name}_quantized"] = rng.integers(0, 255, (2, rows, 4 * hidden), np.uint8)
        arrays[f"{name}_scale"] = rng.uniform(0.002, 0.008, shape).astype(np.float32)
        arrays[f"{name}_zero"] = np.full(shape, 121, np.uint8)
    names = "x w_quantized r_quantized b  h c  w_scale w_zero r_scale r_zero"
    settings = {"domain": "com.microsoft", "hidden_size": hidden, "direction": "bidirectional"}
    dynamic = helper.make_node("DynamicQuantizeLSTM", names.split(" "), ["y"], "lstm", **settings)
    inputs = [info("x", (7, 1, 5)), info("h", (2, 1, hidden)), info("c", (2, 1, hidden))]
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([dynamic], "lstm", inputs, [info("y", (7, 2, 1, hidden))], held)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    result, done = converted(proto, "float")
    assert ops(result) == ["LSTM"]
    assert [change.by for change in done.changes] == ["float"]
    for name in "wr":
        codes, scale, zero = (arrays[f"{name}_{part}"] for part in ("quantized", "scale", "zero"))
        expected = (codes - zero.reshape(2, 1, -1).astype(np.float32)) * scale.reshape(2, 1, -1)
        np.testing.assert_array_equal(constants(result)[name], expected.transpose(0, 2, 1))
    feeds = {"x": normal(7, 1, 5), "h": normal(2, 1, hidden, seed=1), "c": normal(2, 1, hidden, seed=2)}
    np.testing.assert_allclose(run(result, feeds)["y"], run(proto, feeds)["y"], atol=0.02)
    with pytest.raises(ModelError, match=r"quantized already .*DynamicQuantizeLSTM.*--to float"):
        detent.quantize(proto)
    assert "Quantized as it runs: DynamicQuantizeLSTM" in str(inspect_model(proto))
