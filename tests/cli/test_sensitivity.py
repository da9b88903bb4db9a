from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper


@pytest.fixture
def open_model(tmp_path):
    """A layer whose input has a shape that is not known, and data for one that is."""
    shape = ["n", "c", "h", "w"]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", kernel_shape=[3, 3])],
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, (4, 3, 3, 3), np.linspace(-1, 1, 108))],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "open.onnx"
    )
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(8, 3, 6, 6)).astype(np.float32))
    return tmp_path / "open.onnx", tmp_path / "x.npy"


def test_a_dynamic_shape_can_be_fixed(detent, open_model):
    model, data = open_model
    command = ["sensitivity", model, "--calib", data, "--recipe", "A8W8", "--json"]
    outcome = detent(*command, "--fix-shape", "x=1,3,6,6")
    assert outcome.code == 0, outcome.err
    assert [layer["node"] for layer in json.loads(outcome.out)["layers"]] == ["conv"]
    wrong = detent(*command, "--fix-shape", "x=1,3,7,7")
    assert wrong.code != 0 and "6" in wrong.err and "7" in wrong.err
    assert "no such input" in detent(*command, "--fix-shape", "z=1,3,6,6").err
