from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import detent
from detent.graph.load import read
from detent.graph.values import constant
from detent.qdq.float_network import read_codes
from detent.recipe.file import find_recipe
from tests.models import IMAGE, SMALL_MODELS, build, find, info, node, normal, residual

DATA = normal(4, *IMAGE[1:], seed=5)


def quantized(proto, recipe="XINT8", **changes) -> onnx.ModelProto:
    chosen = find_recipe(recipe).replace(refinement=None, equalize=False, **changes)
    return detent.quantize(proto, calibration=DATA, recipe=chosen).model


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("XINT8", {}),
        ("XINT8", {"format": "fix-neuron", "activations": find_recipe("VINT8").activations}),
        ("XINT8", {"format": "vitis-qdq"}),
        ("XINT8", {"weight_pairs": True}),
        ("XINT8", {"dedicated_pairs": True}),
        ("A8W8", {}),
        ("A16W8", {}),
        ("BF16", {}),
        ("BF16", {"format": "extended-qdq"}),
        ("BFP16", {}),
    ],
)
def test_every_form_leaves_the_same_network(recipe, changes):
    reading = read_codes(read(quantized(residual(), recipe, **changes)))
    assert [each.op_type for each in reading.model.graph] == ["Conv", "Relu", "Conv", "Add", "Relu"]
    assert [value.name for value in reading.model.graph.outputs] == ["y"]
    rounded = {"x", "r1", "c2", "y"}
    assert rounded <= set(reading.codes)


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8"])
@pytest.mark.parametrize("name", ["conv_relu_conv", "residual", "concat", "pools"])
def test_operators_on_codes_have_the_scales_of_the_pairs_that_they_stand_for(recipe, name):
    pairs = read_codes(read(quantized(SMALL_MODELS[name](), recipe)))
    reading = read_codes(read(quantized(SMALL_MODELS[name](), recipe, format="qoperator")))
    assert reading.written
    assert not any(each.op_type.startswith("Q") for each in reading.model.graph)
    activations = {value.name for each in pairs.model.graph for value in (each.inputs[0], each.outputs[0])}
    for value in activations & set(pairs.codes):
        assert reading.codes[value].same_as(pairs.codes[value]), value
    for each in reading.model.graph:
        if each.op_type == "Conv":
            source, weight, bias = (reading.codes[value.name] for value in each.inputs)
            assert weight.same_as(pairs.codes[find(pairs.model, each.name).inputs[1].name])
            assert bias.dtype == "int32"
            np.testing.assert_array_equal(bias.linear.scale, source.linear.scale * weight.linear.scale)


def qlinear(op_type, inputs, domain="com.microsoft", **attributes):
    return helper.make_node(op_type, inputs.split(), ["q"], name="it", domain=domain, **attributes)


def unchecked(nodes, constants):
    """onnx does not know the operators of onnxruntime."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "codes", [info("x", (4, 4))], [info("y", (4, 4))], tensors)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


ON_CODES = {
    "QLinearMatMul": (qlinear("QLinearMatMul", "a s z c t z u z", ""), "MatMul", (1, 2), 3),
    "QGemm": (qlinear("QGemm", "a s z c t z b u z", transB=1), "Gemm", (1, 2), 3),
    "QLinearAdd": (qlinear("QLinearAdd", "a s z c t z u z"), "Add", (1, 2), 3),
    "QLinearMul": (qlinear("QLinearMul", "a s z c t z u z"), "Mul", (1, 2), 3),
    "QLinearConcat": (qlinear("QLinearConcat", "u z a s z c t z", axis=0), "Concat", (1, 2), 3),
    "QLinearWhere": (qlinear("QLinearWhere", "yes a s z c t z u z"), "Where", (None, 1, 2), 3),
    "QLinearSigmoid": (qlinear("QLinearSigmoid", "a s z u z"), "Sigmoid", (1,), 3),
    "QLinearLeakyRelu": (qlinear("QLinearLeakyRelu", "a s z u z", alpha=0.25), "LeakyRelu", (1,), 3),
    "QLinearSoftmax": (qlinear("QLinearSoftmax", "a s z u z", axis=1, opset=17), "Softmax", (1,), 3),
}


@pytest.mark.parametrize("name", ON_CODES)
def test_each_operator_on_codes(name):
    written, op_type, inputs, result = ON_CODES[name]
    constants = {
        "c": np.ones((4, 4), np.int8),
        "b": np.ones(4, np.int32),
        "z": np.int8(0),
        "yes": np.ones((4, 4), bool),
    }
    constants |= {scale: np.float32(2.0**-place) for scale, place in (("s", 1), ("t", 2), ("u", 3))}
    nodes = [node("QuantizeLinear", "x s z", "a"), written, node("DequantizeLinear", "q u z", "y")]
    reading = read_codes(read(unchecked(nodes, constants)))
    (found,) = reading.model.graph
    assert (found.op_type, found.domain, found.name) == (op_type, "", "it")
    codes = [reading.codes.get(value.name) for value in found.inputs]
    assert [None if each is None else each.position for each in codes[: len(inputs)]] == list(inputs)
    assert [each.position for each in codes[len(inputs) :]] == [3] * (name == "QGemm")
    assert reading.codes[found.outputs[0].name].position == result
    assert reading.written == {"it": (written.domain, name)}
    assert "opset" not in found.attributes


def test_what_moves_codes_is_read_with_the_scale_of_what_it_moves():
    constants = {"s": np.float32(0.5), "z": np.uint8(128), "low": np.uint8(128), "high": np.uint8(140)}
    constants |= {"shape": np.array([2, -1]), "pads": np.array([0, 1, 0, 1]), "fill": np.uint8(130)}
    moves = [
        node("QuantizeLinear", "x s z", "a"),
        node("Clip", "a low high", "b"),
        node("Reshape", "b shape", "c"),
        node("Pad", "c pads fill", "d"),
        node("Concat", "d d", "e", axis=0),
        node("DequantizeLinear", "e s z", "y"),
    ]
    reading = read_codes(read(build(moves, "y", constants, (info("x", (4, 4)),))))
    assert [each.op_type for each in reading.model.graph] == ["Clip", "Reshape", "Pad", "Concat"]
    clip, _, pad, _ = reading.model.graph
    assert [float(constant(value)) for value in clip.inputs[1:]] == [0.0, 6.0]
    assert float(constant(pad.inputs[2])) == 1.0
    assert all(reading.codes[each.outputs[0].name].position == 1 for each in reading.model.graph)
    assert reading.written == {}


def test_places_that_a_pool_gives_are_no_codes():
    constants = {"s": np.float32(0.5), "z": np.uint8(128)}
    nodes = [
        node("QuantizeLinear", "x s z", "a"),
        helper.make_node("MaxPool", ["a"], ["m", "places"], name="pool", kernel_shape=[2, 2]),
        node("DequantizeLinear", "m s z", "y"),
    ]
    reading = read_codes(read(build(nodes, "y places", constants)))
    (pool,) = reading.model.graph
    assert [value.name for value in pool.outputs] == ["y", "places"]
    assert reading.codes["x"].position == reading.codes["y"].position == 1
    assert "places" not in reading.codes


def test_scales_that_are_computed_are_left():
    constants = {"c": np.ones((4, 4), np.int8), "z": np.int8(0), "s": np.float32(0.5)}
    nodes = [node("QuantizeLinear", "x s z", "a"), node("ReduceMax", "x", "u", keepdims=0)]
    nodes += [qlinear("QLinearMatMul", "a s z c s z u z", ""), node("DequantizeLinear", "q s z", "y")]
    reading = read_codes(read(build(nodes, "y", constants, (info("x", (4, 4)),))))
    assert "QLinearMatMul" in [each.op_type for each in reading.model.graph]


@pytest.mark.parametrize(("recipe", "dtypes"), [("XINT8", "uint8 int8 int8"), ("A16W8", "int16 int8 int32")])
def test_codes_are_those_of_the_report(recipe, dtypes):
    chosen = find_recipe(recipe).replace(refinement=None, equalize=False)
    report = detent.quantize(residual(), calibration=DATA, recipe=chosen)
    reading = read_codes(read(report.model))
    conv = find(reading.model, "conv_c1")
    found = [reading.codes[value.name] for value in conv.inputs]
    planned = {tensor.name: tensor for tensor in report.tensors}
    assert " ".join(codes.dtype for codes in found) == dtypes
    for codes, name in zip(found, ("x", "w1", "b1"), strict=True):
        assert np.max(codes.linear.scale) == pytest.approx(planned[name].scale)  # a report has the largest
        assert codes.position == planned[name].position


def test_a_stored_weight_is_a_constant_with_the_numbers_of_its_codes():
    codes = np.arange(-4, 4, dtype=np.int8).reshape(2, 4)
    proto = build(
        [node("DequantizeLinear", "q s z", "w"), node("MatMul", "x w", "y")],
        "y",
        {"q": codes, "s": np.float32(0.25), "z": np.int8(1)},
        (info("x", (1, 2)),),
    )
    reading = read_codes(read(proto))
    product = find(reading.model, "matmul_y")
    assert np.array_equal(constant(product.inputs[1]), (codes - 1.0) * np.float32(0.25))
    assert reading.codes["w"].position == 2
    assert not reading.codes["w"].same_as(read_codes(read(quantized(residual()))).codes["x"])


def test_a_second_scale_is_a_conversion():
    constants = {"s": np.float32(0.5), "t": np.float32(0.25), "z": np.int8(0)}
    pair = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d")]
    again = [node("QuantizeLinear", "d t z", "p"), node("DequantizeLinear", "p t z", "e"), node("Relu", "e", "y")]
    reading = read_codes(read(build(pair + again, "y", constants)))
    assert [each.op_type for each in reading.model.graph] == ["Identity", "Relu"]
    assert (reading.codes["x"].position, reading.codes["e"].position) == (1, 2)


def test_an_output_keeps_its_name_and_a_rounded_input_may_be_one():
    constants = {"s": np.float32(0.5), "z": np.int8(0)}
    pair = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    reading = read_codes(read(build(pair, "y", constants)))
    assert [value.name for value in reading.model.graph.outputs] == ["y"]
    assert reading.codes["y"].position == 1


def test_codes_that_something_else_computes_stay():
    constants = {"s": np.float32(0.5), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("Abs", "q", "t"),
        node("DequantizeLinear", "t s z", "y"),
    ]
    reading = read_codes(read(build(nodes, "y", constants)))
    assert [each.op_type for each in reading.model.graph] == ["QuantizeLinear", "Abs", "DequantizeLinear"]


def test_the_model_is_left_alone():
    model = read(quantized(residual()))
    before = ir.to_proto(model).SerializeToString()
    read_codes(model)
    assert ir.to_proto(model).SerializeToString() == before
