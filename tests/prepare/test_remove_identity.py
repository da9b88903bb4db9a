from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import RemoveIdentity
from tests.prepare.equivalence import check, f32, flag_input, if_reading, info, make, node


def test_inner_identity_goes():
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "b"), node("Identity", "b", "c"), node("Neg", "c", "y")]
    assert check(RemoveIdentity(), make(nodes, {"x": [3]}, {"y": None}), exact=True).ops == ["Relu", "Neg"]


def test_producer_takes_the_name_of_the_graph_output():
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "y"), node("Neg", "a", "z")]
    done = check(RemoveIdentity(), make(nodes, {"x": [3]}, {"y": None, "z": None}), exact=True)
    assert done.ops == ["Relu", "Neg"]
    assert done.named("Relu").output == ["y"]


def test_identity_of_a_graph_input():
    inner = [node("Identity", "x", "a"), node("Neg", "a", "y")]
    assert check(RemoveIdentity(), make(inner, {"x": [3]}, {"y": None}), exact=True).ops == ["Neg"]
    done = check(RemoveIdentity(), make([node("Identity", "x", "y")], {"x": [3]}, {"y": None}), exact=True)
    assert done.ops == ["Identity"]
    assert "both names are fixed" in done.why


def test_two_graph_outputs_with_the_same_content_stay_two():
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "y")]
    done = check(RemoveIdentity(), make(nodes, {"x": [3]}, {"a": None, "y": None}), exact=True)
    assert done.ops == ["Relu", "Identity"]


def test_two_identities_to_two_outputs():
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "y"), node("Identity", "a", "z")]
    done = check(RemoveIdentity(), make(nodes, {"x": [3]}, {"y": None, "z": None}), exact=True)
    assert done.ops == ["Relu", "Identity"]


def test_initializer_as_output_and_captured_value():
    done = check(
        RemoveIdentity(), make([node("Identity", "w", "y")], {"x": [3]}, {"y": None}, {"w": f32(3)}), exact=True
    )
    assert done.ops == ["Identity"]
    nodes = [node("Abs", "x", "a"), node("Identity", "a", "b"), if_reading("b")]
    proto = make(nodes, [info("x", [1, 2, 2, 2]), flag_input()], {"picked": None})
    assert check(RemoveIdentity(), proto, exact=True).ops == ["Abs", "If"]


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_dropout(opset):
    nodes = [node("Relu", "x", "a"), node("Dropout", "a", "b mask"), node("Neg", "b", "y")]
    proto = make(nodes, {"x": [3]}, {"y": None}, {}, opset)
    assert check(RemoveIdentity(), proto, exact=True).ops == ["Relu", "Neg"]


@pytest.mark.parametrize("training", [False, True])
def test_dropout_with_a_constant_mode(training):
    nodes = [node("Relu", "x", "a"), node("Dropout", "a ratio mode", "y", seed=1)]
    constants = {"ratio": np.array(0.0, np.float32), "mode": np.array(training)}
    done = check(RemoveIdentity(), make(nodes, {"x": [3]}, {"y": None}, constants), exact=True)
    assert ("Dropout" in done.ops) == training
    assert set(done.constants) == ({"ratio", "mode"} if training else set())


def test_dropout_stays_with_a_mask_or_a_computed_mode():
    nodes = [node("Dropout", "x", "b mask"), node("Neg", "b", "y")]
    done = check(RemoveIdentity(), make(nodes, {"x": [3]}, [info("y", [3]), info("mask", [3], 9)]), exact=True)
    assert "mask" in done.why
    nodes = [node("Dropout", "x ratio flag", "b"), node("Neg", "b", "y")]
    proto = make(nodes, [info("x", [3]), flag_input()], {"y": None}, {"ratio": np.array(0.0, np.float32)})
    assert "not constant" in check(RemoveIdentity(), proto, {"x": f32(3), "flag": np.array(False)}, exact=True).why


A = [info("a", [3, 4])]


@pytest.mark.parametrize(("op", "number"), [("Mul", 1), ("Div", 1), ("Add", 0), ("Sub", 0)])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_arithmetic_with_a_neutral_number(op, number, shape):
    nodes = [node("Relu", "x", "a"), node(op, "a c", "b"), node("Abs", "b", "y")]
    proto = make(nodes, {"x": [3, 4]}, {"y": None}, {"c": np.full(shape, number, np.float32)}, 17, A)
    done = check(RemoveIdentity(), proto, exact=True)
    assert done.ops == ["Relu", "Abs"]
    assert done.constants == {}


@pytest.mark.parametrize(
    ("inputs", "value"),
    [
        ("a c", np.float32(2)),
        ("c a", np.float32(1)),
        ("a c", np.ones((1, 1, 1), np.float32)),
        ("a c", np.ones((3, 4), np.float32)),
    ],
)
def test_arithmetic_that_does_something_stays(inputs, value):
    nodes = [node("Relu", "x", "a"), node("Div", inputs, "b"), node("Abs", "b", "y")]
    proto = make(nodes, {"x": [3, 4]}, {"y": None}, {"c": np.asarray(value)}, 17, A)
    assert check(RemoveIdentity(), proto, feeds={"x": 1 + np.abs(f32(3, 4))}, exact=True).ops == ["Relu", "Div", "Abs"]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [((2, 3), False), ((-1, 3), False), ((2, -1), False), ((3, 2), True), ((2, 3, 1), True), ((6,), True)],
)
def test_a_reshape_to_the_same_shape_goes(wanted, kept):
    nodes = [node("Reshape", "x shape", "a"), node("Neg", "a", "y")]
    proto = make(nodes, {"x": [2, 3]}, {"y": None}, {"shape": np.array(wanted, np.int64)})
    assert ("Reshape" in check(RemoveIdentity(), proto, exact=True).ops) == kept
