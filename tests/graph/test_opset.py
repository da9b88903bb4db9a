from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.graph.load import light_proto, lower_ir_version
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
