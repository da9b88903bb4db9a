from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import helper, numpy_helper

from detent.graph import values
from detent.graph.load import load
from detent.graph.values import Names
from tests.conftest import tiny_model
from tests.prepare.equivalence import f32, flag_input, if_reading, info, make, node


def test_constants_are_initializers_and_constant_nodes_but_not_defaults_of_inputs():
    tensor = numpy_helper.from_array(f32(3))
    nodes = [node("Constant", "", "k", value=tensor), node("Add", "x w", "a"), node("Add", "a k", "y")]
    graph = ir.from_proto(make(nodes, {"x": [3], "w": [3]}, {"y": None}, {"w": f32(3)})).graph
    constant, add, last = graph
    assert values.constant(add.inputs[1]) is None
    assert values.constant(add.inputs[0]) is None
    np.testing.assert_array_equal(values.constant(constant.outputs[0]), f32(3))
    assert values.constant(last.inputs[0]) is None
    assert values.constant(None) is None


def test_sole_use_sees_bodies_and_outputs():
    nodes = [node("Relu", "x", "a"), if_reading("a"), node("Neg", "x", "b"), node("Abs", "b", "y")]
    graph = ir.from_proto(make(nodes, [info("x", [1, 1, 1, 1]), flag_input()], {"picked": None, "y": None})).graph
    relu, branch, neg, last = graph
    assert values.sole_use(relu.outputs[0], graph) is None
    assert "2 uses" in values.why_not_sole(relu.outputs[0])
    assert values.sole_use(neg.outputs[0], graph) == (last, 0)
    assert values.sole_use(last.outputs[0], graph) is None
    assert "graph output" in values.why_not_sole(last.outputs[0])
    assert not values.is_unused(branch.outputs[0])


def test_set_input_drops_what_is_unused_and_keeps_what_is_shared():
    nodes = [node("Add", "x w", "a"), node("Add", "a v", "b"), node("Mul", "b v", "y")]
    graph = ir.from_proto(make(nodes, {"x": [3]}, {"y": None}, {"w": f32(3), "v": f32(3)})).graph
    first, second, _ = graph
    for item in (first, second):
        values.set_input(item, 1, values.add_initializer(graph, f"new_{item.outputs[0].name}", f32(3)))
    assert set(graph.initializers) == {"v", "new_a", "new_b"}


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
