from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from detent.prepare import SeparateInitializers
from tests.prepare.equivalence import check, f32, flag_input, if_reading, info, make, node


def test_one_copy_per_use_and_the_first_keeps_the_name():
    nodes = [
        node("Conv", "x w", "a", name="one"),
        node("Conv", "a w", "b", name="two"),
        node("Mul", "w w", "z", name="sq"),
    ]
    done = check(
        SeparateInitializers(),
        make(nodes, {"x": [1, 3, 4, 4]}, {"b": None, "z": None}, {"w": f32(3, 3, 1, 1)}),
        exact=True,
    )
    assert [list(item.input[1:]) for item in done.proto.graph.node[:2]] == [["w"], ["two/w"]]
    assert list(done.proto.graph.node[2].input) == ["sq/w", "sq/w_1"]
    assert len(done.constants) == 4


def test_integers_are_left():
    nodes = [node("Reshape", "x s", "a"), node("Reshape", "x s", "b")]
    done = check(
        SeparateInitializers(), make(nodes, {"x": [4]}, {"a": None, "b": None}, {"s": np.array([2, 2])}), exact=True
    )
    assert list(done.constants) == ["s"]


def test_uses_in_a_body_keep_the_original():
    nodes = [if_reading("w", rank=1), node("Mul", "x w", "y", name="m")]
    inputs = [info("x", [3]), flag_input()]
    done = check(SeparateInitializers(), make(nodes, inputs, {"y": None, "picked": None}, {"w": f32(3)}), exact=True)
    assert done.named("Mul").input[1] == "m/w"
    assert set(done.constants) == {"w", "m/w"}


def test_declines_an_initializer_that_is_an_input():
    nodes = [node("Mul", "x w", "a"), node("Add", "a w", "y")]
    graph = helper.make_graph(
        nodes, "g", [info("x", [3]), info("w", [3])], [info("y", [3])], [numpy_helper.from_array(f32(3), "w")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    done = check(SeparateInitializers(), proto, exact=True)
    assert "graph input" in done.why
