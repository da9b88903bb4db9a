from __future__ import annotations

import onnx_ir as ir
from onnx import helper

from detent.graph.load import load
from detent.graph.values import Names
from tests.conftest import tiny_model


def test_fresh_names_collide_with_nothing():
    names = Names(ir.from_proto(tiny_model()))
    assert names.fresh("new") == "new"
    assert names.fresh("new") == "new_1"
    assert names.fresh("first") == "first_1"
    assert names.fresh("w1") == "w1_1"
    assert names.fresh("x") == "x_1"


def test_an_output_that_nobody_asked_for_stays_unnamed():
    model = tiny_model()
    model.graph.node.insert(2, helper.make_node("MaxPool", ["r1"], ["pooled", ""], kernel_shape=[1, 1], name="pool"))
    model.graph.node[3].input[0] = "pooled"
    pool = next(node for node in load(model).graph if node.name == "pool")
    assert [value.name for value in pool.outputs] == ["pooled", ""]
