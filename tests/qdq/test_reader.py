"""Encoding and decoding agree with onnxruntime's kernels to the bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.comparison.inspection import inspect_model
from detent.device_check import check
from detent.errors import ModelError
from detent.qdq.reader import LinearParams, params_of
from tests.convert.forms import pair
from tests.models import info, run

KINDS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16, "int32": TensorProto.INT32}


def quantize(linear: LinearParams, values: np.ndarray) -> dict[str, np.ndarray]:
    """Codes and numbers as onnxruntime makes them."""
    attributes = {} if linear.per_tensor else {"axis": linear.axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]
    tensors = [
        helper.make_tensor("s", TensorProto.FLOAT, linear.scale.shape, linear.scale.reshape(-1).tolist()),
        helper.make_tensor("z", KINDS[str(linear.dtype)], linear.scale.shape, linear.zero_point.reshape(-1).tolist()),
    ]
    outputs = [info("q", values.shape, KINDS[str(linear.dtype)]), info("y", values.shape)]
    graph = helper.make_graph(nodes, "g", [info("x", values.shape)], outputs, tensors)
    return run(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), {"x": values})


@pytest.mark.parametrize(
    ("dtype", "zero_point"), [("int8", 0), ("int8", -7), ("uint8", 128), ("uint8", 3), ("int16", 9)]
)
@pytest.mark.parametrize("scale", [0.05, 0.25, 1 / 3])
def test_one_scale(dtype, zero_point, scale):
    linear = LinearParams(np.array(scale, np.float32), np.array(zero_point, dtype))
    values = np.concatenate(
        [np.arange(-400, 400, dtype=np.float32) * np.float32(scale / 2), np.random.default_rng(1).normal(0, 9, 500)]
    ).astype(np.float32)
    expected = quantize(linear, values)
    np.testing.assert_array_equal(linear.encode(values), expected["q"])
    np.testing.assert_array_equal(linear.decode(linear.encode(values)), expected["y"])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_channel(axis):
    rng = np.random.default_rng(2)
    values = rng.normal(0, 5, (3, 5, 4)).astype(np.float32)
    count = values.shape[axis]
    linear = LinearParams(
        rng.uniform(0.01, 0.2, count).astype(np.float32), rng.integers(-9, 9, count).astype(np.int8), axis
    )
    expected = quantize(linear, values)
    np.testing.assert_array_equal(linear.encode(values), expected["q"])
    np.testing.assert_array_equal(linear.decode(linear.encode(values)), expected["y"])


def test_a_scale_for_each_block():
    scale = np.array([[1.0, 10.0], [2.0, 20.0]], np.float32)
    linear = LinearParams(scale, np.zeros((2, 2), np.int8), axis=1, block_size=2)
    np.testing.assert_array_equal(linear.decode(np.array([[1, 2, 3], [4, 5, 6]], np.int8)), [[1, 2, 30], [8, 10, 120]])


def test_large_int32_codes_round_once_to_float32():
    codes = np.array([2**24 + 1, -(2**31) + 1, 12345], np.int32)
    linear = LinearParams(np.array(0.125, np.float32), np.array(0, np.int32))
    np.testing.assert_array_equal(linear.decode(codes), codes.astype(np.float32) * np.float32(0.125))


def test_float_codes_are_cast():
    values = np.array([1.0, 1.00390625, 3.4e38, -0.3], np.float32)
    linear = LinearParams(np.array(1, np.float32), np.array(0, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(linear.encode(values), values.astype(ml_dtypes.bfloat16))
    float8 = LinearParams(np.array(1, np.float32), np.array(0, ml_dtypes.float8_e4m3fn))
    assert float(float8.encode(np.array([1e6], np.float32))[0]) == 448  # saturates


def test_parameters_of_a_node():
    model = ir.from_proto(pair("int8", 5, scale=0.5))
    linear = params_of(model.graph[0])
    assert linear is not None
    assert (float(linear.scale), int(linear.zero_point), str(linear.dtype)) == (0.5, 5, "int8")
    assert linear.same_as(params_of(model.graph[1]))
    assert not linear.same_as(LinearParams(np.array(0.5, np.float32), np.array(4, np.int8)))
    assert not linear.same_as(LinearParams(np.array(0.5, np.float32), np.array(5, np.uint8)))


@pytest.mark.parametrize(
    ("scale", "zero_point", "axis"),
    [
        ((), (8,), 0),
        ((1,), (2,), 0),
        ((4,), (8,), 0),
        ((4,), (4,), 0),
        ((8,), (8,), 1),
        ((8,), (8,), 2),
        ((0,), (0,), 0),
    ],
)
def test_parameters_that_do_not_fit_the_codes_are_a_model_error(scale, zero_point, axis):
    held = {
        "codes": np.zeros((8, 3), np.int8),
        "scale": np.ones(scale, np.float32),
        "zero": np.zeros(zero_point, np.int8),
    }
    nodes = [helper.make_node("DequantizeLinear", list(held), ["w"], name="bad", axis=axis)]
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [info("x", [1, 8])],
            [info("y", [1, 3])],
            [numpy_helper.from_array(array, name) for name, array in held.items()],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run(proto, {"x": np.ones((1, 8), np.float32)})
    for work in (lambda: check(proto, "npu-xint8"), lambda: inspect_model(proto)):
        with pytest.raises(ModelError, match="'bad'"):
            work()
