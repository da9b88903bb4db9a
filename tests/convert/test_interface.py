"""Steps that change shapes, layouts, initializers and opsets, not numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from detent.errors import ModelError, UsageError
from tests.conftest import tiny_model
from tests.convert.forms import constants, converted, ops, pair, quantized, same
from tests.models import IMAGE, build, conv_relu_conv, info, node, normal, run, with_maps


def dims(value: onnx.ValueInfoProto) -> list:
    return [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]


def test_channels_last_inputs():
    proto = conv_relu_conv()
    result, _ = converted(proto, "nhwc")
    assert dims(result.graph.input[0]) == [1, 8, 8, 3]
    assert result.graph.input[0].name == "x"
    x = normal(*IMAGE, seed=5)
    want = run(proto, {"x": x})["y"]
    np.testing.assert_array_equal(run(result, {"x": x.transpose(0, 2, 3, 1)})["y"], want)
    both, _ = converted(proto, "nhwc:outputs=true")
    np.testing.assert_array_equal(run(both, {"x": x.transpose(0, 2, 3, 1)})["y"], want.transpose(0, 2, 3, 1))


def test_channels_last_leaves_other_ranks():
    proto = build([node("Add", "x v", "y")], "y", inputs=(info("x", IMAGE), info("v", (8,))))
    result, done = converted(proto, "nhwc")
    assert [note.node for note in done.declined] == ["v"]
    assert dims(result.graph.input[1]) == [8]
    with pytest.raises(ModelError, match="no graph input has four dimensions"):
        converted(build([node("Neg", "x", "y")], "y", inputs=(info("x", (2, 3)),)), "nhwc")


def test_an_input_that_is_an_output_too():
    proto = build([node("Neg", "x", "y")], [info("y", IMAGE), info("x", IMAGE)])
    result, _ = converted(proto, "nhwc")
    x = normal(*IMAGE)
    answers = run(result, {"x": x.transpose(0, 2, 3, 1)})
    np.testing.assert_array_equal(answers["y"], -x)
    assert len(answers) == 2


def test_fixed_shapes():
    proto = tiny_model()
    batch, _ = converted(proto, "fixed-shapes:batch=4")
    assert dims(batch.graph.input[0]) == [4, 3, 8, 8]
    assert dims(batch.graph.output[0]) == [4, 2, 8, 8]
    whole, _ = converted(proto, "fixed-shapes:shapes=x=2/3/8/8")
    assert dims(whole.graph.input[0]) == [2, 3, 8, 8]
    same(proto, batch, [{"x": normal(4, 3, 8, 8)}])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("fixed-shapes", "needs to know which"),
        ("fixed-shapes:batch=-1", "at least 1"),
        ("fixed-shapes:shapes=x", "shape"),
        ("fixed-shapes:shapes=x=1/three", "shape"),
        ("fixed-shapes:shapes=z=1/3/8/8", "no such input"),
        ("fixed-shapes:shapes=x=1/4/8/8", "x"),
    ],
)
def test_bad_shapes(step, message):
    with pytest.raises(UsageError, match=message):
        converted(tiny_model(), step)


def test_a_batch_is_not_enough_where_more_is_free():
    proto = build([node("Neg", "x", "y")], [info("y", ("N", 3, "H", "W"))], inputs=(info("x", ("N", 3, "H", "W")),))
    with pytest.raises(UsageError, match="fixed-shapes:shapes=x=1/3/1/1"):
        converted(proto, "fixed-shapes:batch=1")


def test_unique_initializers():
    proto = build([node("Add", "x w", "a"), node("Mul", "a w", "y")], "y", {"w": normal(8)})
    result, _ = converted(proto, "unique-initializers")
    assert len(constants(result)) == 2
    same(proto, result)
    with pytest.raises(ModelError, match="more than one use"):
        converted(result, "unique-initializers")


def with_initializers_among_inputs() -> onnx.ModelProto:
    proto = tiny_model()
    proto.graph.input.extend(info(tensor.name, tensor.dims) for tensor in proto.graph.initializer)
    return proto


def test_inputs_without_initializers():
    proto = with_initializers_among_inputs()
    result, done = converted(proto, "inputs-without-initializers")
    assert [value.name for value in result.graph.input] == ["x"]
    assert [change.node for change in done.changes] == ["w1", "b1", "w2"]
    same(proto, result, [{"x": normal(2, 3, 8, 8)}])
    with pytest.raises(ModelError, match="no initializer is a graph input"):
        converted(result, "inputs-without-initializers")


def test_other_steps_free_initializers_and_say_so():
    _, done = converted(with_initializers_among_inputs(), "float16")
    assert [change.node for change in done.changes if change.by == "reading"] == ["w1", "b1", "w2"]


def test_an_output_that_was_a_map_is_among_the_changes():
    _, done = converted(with_maps(["cat", "dog"]), "float16")
    told = [change.what for change in done.changes if (change.by, change.node) == ("reading", "y")]
    assert len(told) == 1
    assert told[0].endswith("cat, dog")


def test_finite_weights():
    array = np.array([np.inf, -np.inf, 3, -4, 0, 1, 2, 5], np.float32)
    proto = build(
        [node("Constant", "", "k", value_floats=[1.0]), node("Min", "x w", "m"), node("Max", "m h", "y")],
        "y",
        {"w": array, "h": np.full(8, -np.inf, np.float32)},
    )
    result, done = converted(proto, "finite-weights:value=500")
    assert constants(result)["w"].tolist() == [500, -500, 3, -4, 0, 1, 2, 5]
    assert constants(result)["h"].tolist() == [-500] * 8
    assert len(done.changes) == 2
    with pytest.raises(ModelError, match="no weight is infinite"):
        converted(result, "finite-weights")
    with pytest.raises(UsageError, match="positive"):
        converted(proto, "finite-weights:value=-1")


def test_finite_weights_leave_nan_and_fit_the_type():
    proto = build(
        [node("Mul", "x w", "y")],
        "y",
        {"w": np.array([np.inf, np.nan], np.float16)},
        inputs=(info("x", (2,), TensorProto.FLOAT16),),
    )
    result, done = converted(proto, "finite-weights")
    assert constants(result)["w"][0] == 10000
    assert "NaN" in done.declined[0].what
    with pytest.raises(UsageError, match="65504"):
        converted(proto, "finite-weights:value=1e9")


@pytest.mark.parametrize("form", ["float", "XINT8", "A8W8", "A16W8"])
def test_opset_up(form):
    proto = conv_relu_conv() if form == "float" else quantized(conv_relu_conv(), form)
    result, done = converted(proto, "opset:version=21")
    assert (done.before.opset["ai.onnx"], done.after.opset["ai.onnx"]) == (17, 21)
    same(proto, result)


def test_opset_down_moves_16_bits_to_microsoft():
    proto = pair("int16", 0, opset=21)
    assert ops(proto) == ["QuantizeLinear", "DequantizeLinear"]
    result, _ = converted(proto, "opset:version=19")
    assert ops(result) == ["com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear"]
    same(proto, result, [{"x": normal(4, 6)}])


def test_opset_keeps_operators_of_other_domains():
    proto, _ = converted(quantized(conv_relu_conv()), "extended-qdq")
    result, _ = converted(proto, "opset:version=20")
    assert ops(result) == ops(proto)
    assert {entry.version for function in result.functions for entry in function.opset_import} == {20}
    same(proto, result)


def test_opset_errors():
    with pytest.raises(UsageError, match="Give a version from 7"):
        converted(conv_relu_conv(), "opset")
    with pytest.raises(ModelError, match="it has that opset already"):
        converted(conv_relu_conv(), "opset:version=17")
    grid = build([node("GridSample", "x g", "y")], "y", inputs=(info("x", IMAGE), info("g", (1, 8, 8, 2))), opset=16)
    with pytest.raises(ModelError, match="cannot convert it to 11"):
        converted(grid, "opset:version=11")
