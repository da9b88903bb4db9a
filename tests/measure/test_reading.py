from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import detent
from detent.graph.load import read
from detent.graph.values import constant
from detent.measure.reading import read_codes
from detent.recipe_file import find_recipe
from tests.models import IMAGE, build, find, info, node, normal, residual

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
        assert codes.linear.scale == pytest.approx(planned[name].scale)
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
        node("Transpose", "q", "t", perm=[0, 2, 3, 1]),
        node("DequantizeLinear", "t s z", "y"),
    ]
    reading = read_codes(read(build(nodes, "y", constants)))
    assert [each.op_type for each in reading.model.graph] == ["QuantizeLinear", "Transpose", "DequantizeLinear"]


def test_the_model_is_left_alone():
    model = read(quantized(residual()))
    before = ir.to_proto(model).SerializeToString()
    read_codes(model)
    assert ir.to_proto(model).SerializeToString() == before
