from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.errors import ModelError
from tests.convert.forms import constants, converted, ops, quantized
from tests.models import SMALL_MODELS, build, conv_relu_conv, info, node, normal, run

FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
X = {"x": normal(1, 3, 8, 8, seed=2)}


def kinds(values) -> list[int]:
    return [value.type.tensor_type.elem_type for value in values]


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_float16_of_small_models(name):
    proto = SMALL_MODELS[name]()
    result, done = converted(proto, "fp16")
    assert {str(array.dtype) for array in constants(result).values()} == {"float16"}
    assert kinds((*result.graph.input, *result.graph.output)) == [FLOAT, FLOAT]
    assert ops(result).count("Cast") == 2
    want, got = run(proto, X)["y"], run(result, X)["y"]
    np.testing.assert_allclose(got, want, atol=2e-2 * np.abs(want).max())
    assert done.after.constants["FLOAT16"] * 2 == done.before.constants["FLOAT"]


def test_float16_interface_too():
    result, _ = converted(conv_relu_conv(), "float16:keep_io=false")
    assert kinds((*result.graph.input, *result.graph.output)) == [FLOAT16, FLOAT16]
    assert "Cast" not in ops(result)


def test_a_weight_that_does_not_fit_is_an_error_that_names_it():
    proto = build([node("Mul", "x w", "y")], "y", {"w": np.array([1, -1e6], np.float32).repeat(4)})
    with pytest.raises(ModelError, match="'w'.*-1e\\+06.*65504"):
        converted(proto, "float16")
    clipped, _ = converted(proto, "float16:clip=true")
    assert constants(clipped)["w"].tolist() == [1] * 4 + [-65504] * 4


def test_infinity_is_not_an_overflow():
    proto = build([node("Min", "x w", "y")], "y", {"w": np.full(8, np.inf, np.float32)})
    result, _ = converted(proto, "float16")
    assert np.isinf(constants(result)["w"]).all()


def test_inputs_that_have_to_be_float32_stay():
    proto = build(
        [node("Resize", "x _ scales", "r"), node("Mul", "r scales", "y")],
        "y",
        {"scales": np.array([1, 1, 2, 2], np.float32)},
        inputs=(info("x", (1, 1, 2, 2)),),
    )
    result, _ = converted(proto, "float16")
    assert {str(array.dtype) for array in constants(result).values()} == {"float16", "float32"}
    x = {"x": normal(1, 1, 2, 2).astype(np.float16).astype(np.float32)}
    np.testing.assert_allclose(run(result, x)["y"], run(proto, x)["y"], rtol=1e-3)


def test_operators_without_the_type_compute_in_float32():
    proto = build(
        [node("Range", "start limit delta", "r"), node("Mul", "x r", "y")],
        [info("y", (1, 3, 8, 8))],
        {"start": np.float32(0), "limit": np.float32(8), "delta": np.float32(1)},
    )
    result, done = converted(proto, "float16")
    assert [note.node for note in done.declined] == ["range_r"]
    np.testing.assert_allclose(run(result, X)["y"], run(proto, X)["y"], rtol=2e-3, atol=1e-5)


def test_constants_in_nodes_and_attributes_that_name_the_type():
    proto = build(
        [
            node("Constant", "", "c", value=helper.make_tensor("c", FLOAT, [8], list(range(8)))),
            node("Constant", "", "two", value_float=2.0),
            node("ConstantOfShape", "shape", "zeros"),
            node("Cast", "k", "kf", to=FLOAT),
            node("Sum", "x c two zeros kf", "y"),
        ],
        "y",
        {"shape": np.array([8]), "k": np.array([5])},
    )
    result, _ = converted(proto, "float16")
    np.testing.assert_allclose(run(result, X)["y"], run(proto, X)["y"], rtol=2e-3)


def test_branches_are_converted_with_the_rest():
    body = lambda op: helper.make_graph([node(op, "m", op)], op, [], [info(op, (1, 3, 8, 8))])
    proto = build(
        [node("Mul", "x w", "m"), node("If", "c", "y", then_branch=body("Relu"), else_branch=body("Neg"))],
        [info("y", (1, 3, 8, 8))],
        {"w": normal(8)},
        inputs=(info("x", (1, 3, 8, 8)), info("c", (), TensorProto.BOOL)),
    )
    result, _ = converted(proto, "float16")
    feeds = {**X, "c": np.array(False)}
    np.testing.assert_allclose(run(result, feeds)["y"], run(proto, feeds)["y"], rtol=2e-3)


def test_a_loop_carries_the_new_type():
    body = helper.make_graph(
        [node("Add", "v v", "w"), node("Identity", "go", "still")],
        "body",
        [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), info("v", (2,))],
        [info("still", (), TensorProto.BOOL), info("w", (2,))],
    )
    proto = build(
        [node("Loop", "n true x", "y", body=body)],
        [info("y", (2,))],
        {"n": np.int64(3), "true": np.array(True)},
        inputs=(info("x", (2,)),),
    )
    result, _ = converted(proto, "float16")
    assert run(result, {"x": np.array([1, 2.5], np.float32)})["y"].tolist() == [8, 20]


def test_back_to_float32_leaves_no_casts():
    proto = conv_relu_conv()
    half, _ = converted(proto, "float16")
    back, _ = converted(half, "float32")
    assert ops(back) == ops(proto)
    for name, array in constants(back).items():
        np.testing.assert_array_equal(array, constants(proto)[name].astype(np.float16).astype(np.float32))


def test_a_quantized_model_is_an_error_that_says_what_to_do():
    with pytest.raises(ModelError, match="--to float"):
        converted(quantized(conv_relu_conv()), "float16")


def test_float32_of_a_float32_model():
    with pytest.raises(ModelError, match="no float16 or bfloat16 values"):
        converted(conv_relu_conv(), "float32")


def test_float16_of_a_file_of_ir_version_3(tmp_path):
    """Then an initializer had to be an input as well, and the one that a Constant becomes is none."""
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32(2)))
    weights = {"w": normal(4, 3, 3, 3)}
    proto = build([constant, node("Conv", "x w", "c"), node("Mul", "c k", "y")], "y", weights, opset=8)
    proto.ir_version = 3
    proto.graph.input.append(info("w", [4, 3, 3, 3]))
    result, _ = converted(proto, "float16")
    onnx.checker.check_model(result)
