from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from detent.errors import ModelError, UsageError
from tests.convert.forms import constants, converted, foreign, ops, quantized, same
from tests.models import SMALL_MODELS, build, conv_relu_conv, info, needs_opset, node, normal, run, since_runtime

X = {"x": normal(1, 3, 8, 8, seed=2)}
HUGE = np.float32(3.4e38)
pure_runs = since_runtime(21, "opset 22")


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_cast_rounds_every_value_and_weight():
    proto = build([node("Mul", "x w", "m"), node("Add", "m w", "y")], "y", {"w": normal(8)})
    result, _ = converted(proto, "bf16")
    w, x = rounded(normal(8)), rounded(X["x"])
    np.testing.assert_array_equal(run(result, X)["y"], rounded(rounded(x * w) + w))
    assert [str(array.dtype) for array in constants(result).values()] == ["bfloat16"]
    assert ops(result).count("Cast") == 1 + 3 * 2


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_cast_stores_half_the_bytes_and_goes_back_to_float(name):
    proto = SMALL_MODELS[name]()
    result, done = converted(proto, "bfloat16:form=cast")
    assert done.after.constants["BFLOAT16"] * 2 == done.before.constants["FLOAT"]
    back, _ = converted(result, "float")
    assert ops(back) == ops(proto)
    simulated, _ = converted(proto, "bfloat16:form=simulated")
    same(simulated, back)


def test_simulated_rounds_weights_only():
    proto = build([node("Mul", "x w", "y")], "y", {"w": normal(8)})
    result, _ = converted(proto, "bfloat16:form=simulated")
    np.testing.assert_array_equal(constants(result)["w"], rounded(normal(8)))
    np.testing.assert_array_equal(run(result, X)["y"], X["x"] * rounded(normal(8)))
    with pytest.raises(ModelError, match="rounded to bfloat16 already"):
        converted(result, "bfloat16:form=simulated")


@pure_runs
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_pure_computes_what_cast_does(name):
    proto = SMALL_MODELS[name]()
    cast, _ = converted(proto, "bfloat16")
    pure, done = converted(proto, "bfloat16:form=pure")
    same(cast, pure)
    assert done.after.opset["ai.onnx"] == 22
    assert set(done.after.constants) <= {"BFLOAT16", "INT64"}
    assert [value.type.tensor_type.elem_type for value in (*pure.graph.input, *pure.graph.output)] == [1, 1]
    assert "Conv computes in float32, between Casts" in {note.what for note in done.declined}


MOVES = {
    "Concat": node("Concat", "x x", "y", axis=1),
    "Flatten": node("Flatten", "x", "y"),
    "Gather": node("Gather", "x one", "y"),
    "GatherElements": node("GatherElements", "x zeros", "y"),
    "GatherND": node("GatherND", "x one", "y"),
    "Identity": node("Identity", "x", "y"),
    "Reshape": node("Reshape", "x shape", "y"),
    "ScatterElements": node("ScatterElements", "x zeros x", "y"),
    "ScatterND": node("ScatterND", "x ones x", "y"),
    "Sign": node("Sign", "x", "y"),
    "Slice": node("Slice", "x one two", "y"),
    "Split": node("Split", "x", "y z", num_outputs=2),
    "Squeeze": node("Squeeze", "u", "y"),
    "Transpose": node("Transpose", "x", "y"),
    "Unsqueeze": node("Unsqueeze", "x one", "y"),
}


@pure_runs
@pytest.mark.parametrize("op", MOVES)
def test_operators_that_run_in_bfloat16_have_no_casts_of_their_own(op):
    held = {
        "one": np.array([1]),
        "two": np.array([2]),
        "shape": np.array([-1]),
        "zeros": np.zeros((2, 4), np.int64),
        "ones": np.array([[1], [0]]),
    }
    inner = [] if op != "Squeeze" else [node("Unsqueeze", "x one", "u")]
    used = {name for each in (*inner, MOVES[op]) for name in each.input}
    proto = build(
        [*inner, MOVES[op]],
        " ".join(MOVES[op].output),
        {name: array for name, array in held.items() if name in used},
        inputs=(info("x", (2, 4)),),
        opset=22,
    )
    result, done = converted(proto, "bfloat16:form=pure")
    assert ops(result).count("Cast") == 1 + len(MOVES[op].output)
    assert not done.declined
    x = rounded(normal(2, 4))
    same(proto, result, [{"x": x}])


@pure_runs
def test_pure_interface_too():
    result, _ = converted(conv_relu_conv(), "bfloat16:form=pure,keep_io=false")
    kinds = [value.type.tensor_type.elem_type for value in (*result.graph.input, *result.graph.output)]
    assert kinds == [TensorProto.BFLOAT16] * 2


def test_a_weight_beyond_bfloat16():
    proto = build([node("Mul", "x w", "y")], "y", {"w": np.full(8, HUGE)})
    with pytest.raises(ModelError, match="'w' holds 3.4e\\+38"):
        converted(proto, "bfloat16")
    result, _ = converted(proto, "bfloat16:clip=true")
    (stored,) = constants(result).values()
    assert np.isfinite(stored.astype(np.float32)).all()


def test_constants_in_nodes_are_weights_too():
    weight = onnx.numpy_helper.from_array(normal(8))
    proto = build([node("Constant", "", "w", value=weight), node("Mul", "x w", "y")], "y")
    expected = X["x"] * rounded(normal(8))
    simulated, _ = converted(proto, "bfloat16:form=simulated")
    np.testing.assert_array_equal(run(simulated, X)["y"], expected)
    cast, done = converted(proto, "bfloat16:form=cast")
    assert done.after.constants == {"BFLOAT16": 16}
    np.testing.assert_array_equal(run(cast, X)["y"], rounded(rounded(X["x"]) * rounded(normal(8))))


def test_an_old_opset_is_raised_to_one_that_casts():
    proto = build([node("Mul", "x w", "y")], "y", {"w": normal(8)}, opset=11)
    result, done = converted(proto, "bfloat16")
    assert done.after.opset["ai.onnx"] == 13
    np.testing.assert_array_equal(run(result, X)["y"], rounded(rounded(X["x"]) * rounded(normal(8))))


def test_bad_settings():
    with pytest.raises(UsageError, match="'real'.*cast, simulated, pure"):
        converted(conv_relu_conv(), "bfloat16:form=real")
    with pytest.raises(UsageError, match="keep_io=false needs form=pure"):
        converted(conv_relu_conv(), "bfloat16:keep_io=false")
    with pytest.raises(ModelError, match="is quantized"):
        converted(quantized(conv_relu_conv()), "bfloat16")


def clipped_twice(proto: onnx.ModelProto, x: np.ndarray) -> None:
    assert np.isinf(run(proto, {"x": x})["y"]).any()
    result, done = converted(proto, "bfloat16-clip")
    assert ops(result).count("Clip") == 1
    y = run(result, {"x": x})["y"]
    assert np.isfinite(y).all()
    inside = np.abs(x) < 3.3e38
    np.testing.assert_array_equal(y[inside], rounded(x)[inside])
    assert [change.node for change in done.changes] == ["x"]
    with pytest.raises(ModelError, match="without a Clip before it"):
        converted(result, "bfloat16-clip")


EXTREMES = np.array([[HUGE, -HUGE, 1.003, 0.0, -7.77, 3.2e38]] * 4, np.float32)


def test_clip_before_casts():
    clipped_twice(
        build(
            [node("Cast", "x", "b", to=TensorProto.BFLOAT16), node("Cast", "b", "y", to=TensorProto.FLOAT)],
            "y",
            inputs=(info("x", (4, 6)),),
        ),
        EXTREMES,
    )


def test_clip_before_quantizers():
    nodes = [
        node("ExtendedQuantizeLinear", "x s z", "q", domain="com.amd.quark"),
        node("ExtendedDequantizeLinear", "q s z", "y", domain="com.amd.quark"),
    ]
    clipped_twice(foreign(nodes, {"s": np.float32(1), "z": np.array(0, ml_dtypes.bfloat16)}), EXTREMES)


@pytest.mark.parametrize("form", ["cast", "simulated", pytest.param("pure", marks=needs_opset(23))])
def test_an_operator_that_nobody_knows_is_named(form):
    proto = build([node("Mul", "x w", "m"), node("Add", "m w", "y")], "y", {"w": normal(8)})
    proto.graph.node[1].op_type = "Convv"
    with pytest.raises(ModelError, match="Convv"):
        converted(proto, f"bfloat16:form={form}")


def test_a_sequence_of_floats_is_not_cast():
    floats = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    output = helper.make_value_info("y", helper.make_sequence_type_proto(floats))
    proto = build([node("Mul", "x w", "m"), node("SequenceConstruct", "m m", "y")], [output], {"w": normal(8)})
    result, _ = converted(proto, "bfloat16")
    for each in run(result, X)["y"]:
        np.testing.assert_array_equal(each, rounded(rounded(X["x"]) * rounded(normal(8))))
