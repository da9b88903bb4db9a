from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import detent
from detent.emulator import Emulator
from detent.recipe.file import change
from tests.emulator.qdq import Qdq, assert_same_codes, code_names, feeds_of
from tests.models import SMALL_MODELS, XINT8, values_of


@pytest.mark.parametrize("name", list(SMALL_MODELS))
@pytest.mark.parametrize("activations", ["int8", "uint8"])
def test_what_the_recipe_writes(name, activations):
    proto = SMALL_MODELS[name]()
    shape = [dim.dim_value or 2 for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(0).standard_normal((6, *shape[1:])).astype(np.float32)
    recipe = change(XINT8, {"activations": activations})
    model = detent.quantize(proto, calibration=data, recipe=recipe).model
    codes = Emulator(model).codes({model.graph.input[0].name: data[: shape[0]]})
    assert {str(array.dtype) for array in codes.values()} == {activations}
    report = assert_same_codes(model, {model.graph.input[0].name: data[: shape[0]]}).report()
    assert report.float_steps == []
    assert report.overflows == {}


def test_the_weights_may_be_pairs():
    model = Qdq()
    weight = model.pair(model.constant(np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)), 6)
    result = model.op("Gemm", [model.input(2, 6, position=4), weight], transB=1)
    emulator = assert_same_codes(model.build(model.pair(result, 3)))
    assert not emulator.report().float_steps
    assert [array.shape for array in emulator.constants.values()] == [(4, 6)]


def test_what_is_not_quantized_is_float_and_is_listed():
    model = Qdq()
    soft = model.op("Softmax", [model.input(2, 6, position=4)])
    emulator = assert_same_codes(model.build(model.op("Relu", [soft])))
    assert [(step.op_type, step.reason) for step in emulator.report().float_steps] == [
        ("Softmax", "Softmax is not computed in integers"),
        ("Relu", "an input of it has no position"),
    ]


def test_shapes_are_no_float_steps():
    model = Qdq()
    source = model.input("n", 6, position=4)
    shape = model.op("Shape", [source])
    emulator = assert_same_codes(model.build(model.pair(model.op("Expand", [source, shape]), 4)))
    assert emulator.report().float_steps == []


def test_a_tensor_with_several_readers_and_outputs():
    model = Qdq("uint8")
    source = model.input(2, 6, position=4)
    total = model.op("Add", [source, source])
    again = model.pair(total, 3)
    emulator = assert_same_codes(model.build(total, again, source, model.op("Relu", [again])))
    assert emulator.report().integer_steps == 2


def test_codes_as_an_output_of_the_model():
    model = Qdq("uint8")
    model.input(2, 6, position=4)
    proto = model.build(model.nodes[1].output[0])
    codes = proto.graph.node[0].output[0]
    proto.graph.output.append(helper.make_tensor_value_info(codes, TensorProto.UINT8, None))
    feeds = feeds_of(proto)
    found = dict(zip(Emulator(proto).outputs, Emulator(proto)(feeds), strict=True))
    np.testing.assert_array_equal(found[codes], values_of(proto, [codes], feeds)[codes])
    assert found[codes].dtype == np.uint8


def test_codes_as_an_input_of_the_model():
    model = Qdq("uint8")
    model.inputs.append(helper.make_tensor_value_info("codes", TensorProto.UINT8, [2, 5]))
    source = model.op("DequantizeLinear", ["codes", *model._grid(4, "uint8")])
    proto = model.build(model.pair(model.op("Mul", [source, source]), 3))
    feeds = {"codes": np.random.default_rng(0).integers(0, 256, (2, 5), np.uint8)}
    assert not assert_same_codes(proto, feeds).report().float_steps


def test_bodies_of_an_if_read_numbers():
    model = Qdq()
    source = model.input(4, position=3)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("then", "else")]
    branches = [
        helper.make_graph([helper.make_node(op_type, [source], [output.name])], "branch", [], [output])
        for op_type, output in zip(("Relu", "Neg"), outputs, strict=True)
    ]
    condition = model.constant(np.array(False))
    chosen = model.op("If", [condition], then_branch=branches[0], else_branch=branches[1])
    assert_same_codes(model.build(model.pair(chosen, 3)))


def test_an_older_operator_set():
    model = Qdq(opset=13)
    result = model.op(
        "Clip", [model.input(2, 6, position=4), model.constant(np.float32(0)), model.constant(np.float32(6))]
    )
    assert_same_codes(model.build(model.pair(result, 4)))


def test_the_file_is_not_changed():
    model = Qdq()
    proto = model.build(model.pair(model.op("Relu", [model.input(4, position=3)]), 2))
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    Emulator(proto)(feeds_of(proto))
    assert before == proto
    assert code_names(proto) == Emulator(proto).tensors
