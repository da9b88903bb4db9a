from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from detent.graph.load import change_opset, light_proto, lower_ir_version
from detent.graph.message import SMALL
from tests.conftest import tiny_model


def test_large_weights_become_inputs_and_the_model_is_unchanged():
    large = np.ones((4, 3, 3, 3), np.float32).repeat(100, axis=0)
    proto = tiny_model(w1=large, b1=np.ones(400, np.float32), w2=np.ones((2, 400, 1, 1), np.float32))
    model = ir.from_proto(proto)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    light = light_proto(model)
    assert large.nbytes > SMALL
    assert [value.name for value in light.graph.input] == ["x", "w1"]
    assert [tensor.name for tensor in light.graph.initializer] == ["b1", "w2"]
    assert [dim.dim_value for dim in light.graph.input[1].type.tensor_type.shape.dim] == [400, 3, 3, 3]
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_file_gets_no_newer_ir_version_than_its_operators_need():
    model = ir.from_proto(tiny_model())
    for opset, written, expected in ((17, 12, 8), (17, 8, 8), (21, 12, 10)):
        model.graph.opset_imports[""] = opset
        model.ir_version = written
        lower_ir_version(model)
        assert model.ir_version == expected


def test_an_operator_that_onnxruntime_had_before_onnx_survives_the_conversion():
    """LayerNormalization came with opset 17; onnxruntime runs it in files of any opset, and Squeeze changed between."""
    x = np.random.default_rng(0).standard_normal((2, 1, 8)).astype(np.float32)
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s", "b"], ["n"], axis=-1, epsilon=1e-5),
        helper.make_node("Squeeze", ["n"], ["y"], axes=[1]),
    ]
    weights = [numpy_helper.from_array(np.arange(8, dtype=np.float32) + at, name) for at, name in enumerate("sb")]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 1, 8]), ("y", [2, 8]))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    converted = ir.to_proto(change_opset(ir.from_proto(proto), 17, "the model"))
    assert [(each.domain, each.version) for each in converted.opset_import] == [("", 17)]
    before, after = (
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for each in (proto, converted)
    )
    np.testing.assert_array_equal(before[0], after[0])
