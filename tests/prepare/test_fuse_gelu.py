from __future__ import annotations

import math

import numpy as np
import pytest

from detent.prepare import FuseGelu
from tests.prepare.equivalence import check, info, make, node

CONSTANTS = {
    "root": np.float32(math.sqrt(2)),
    "inverse": np.float32(math.sqrt(0.5)),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "two": np.array([2], np.float32),
    "three": np.float32(3),
    "c": np.float32(0.044715),
    "k": np.float32(math.sqrt(2 / math.pi)),
}
ERF = [node("Div", "x root", "d"), node("Erf", "d", "e"), node("Add", "e one", "g")]
CUBE = [node("Pow", "x three", "p"), node("Mul", "p c", "pc"), node("Add", "x pc", "a"), node("Mul", "a k", "b")]
TANH = [node("Tanh", "b", "e"), node("Add", "one e", "g")]
ENDS = {
    "x first": [node("Mul", "x g", "m"), node("Mul", "m half", "y")],
    "half first": [node("Mul", "half g", "m"), node("Mul", "x m", "y")],
    "half of x": [node("Mul", "x half", "m"), node("Mul", "m g", "y")],
    "divided": [node("Mul", "g x", "m"), node("Div", "m two", "y")],
}
STARTS = {
    "div": ERF,
    "mul": [node("Mul", "inverse x", "d"), *ERF[1:]],
}
TANH_STARTS = {
    "pow": CUBE,
    "products": [node("Mul", "x x", "s"), node("Mul", "s x", "p"), *CUBE[1:]],
    "factored": [
        node("Mul", "x k", "xk"),
        node("Mul", "x c", "xc"),
        node("Mul", "xc x", "xcx"),
        node("Add", "xcx one", "i"),
        node("Mul", "xk i", "b"),
    ],
}


def model(nodes, opset=20, outputs=("y",)):
    return make(nodes, {"x": [3, 50]}, dict.fromkeys(outputs), CONSTANTS, opset)


def wide():
    return {"x": np.linspace(-7, 7, 150, dtype=np.float32).reshape(3, 50)}


@pytest.mark.parametrize("opset", [20, 21])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STARTS)
def test_the_exact_form(start, end, opset):
    done = check(FuseGelu(), model([*STARTS[start], *ENDS[end]], opset), wide(), rtol=1e-6)
    assert done.ops == ["Gelu"]
    assert done.attributes("Gelu") == {"approximate": b"none"}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", TANH_STARTS)
def test_the_approximated_form(start, end):
    done = check(FuseGelu(), model([*TANH_STARTS[start], *TANH, *ENDS[end]]), wide(), rtol=1e-6)
    assert done.ops == ["Gelu"]
    assert done.attributes("Gelu") == {"approximate": b"tanh"}


def test_between_other_nodes():
    nodes = [node("Add", "v one", "x"), *ERF, *ENDS["x first"], node("Add", "y one", "z")]
    done = check(FuseGelu(), make(nodes, {"v": [4, 5]}, {"z": None}, CONSTANTS, 20, value_info=[info("x", [4, 5])]))
    assert done.ops == ["Add", "Gelu", "Add"]


@pytest.mark.parametrize("opset", [17, 19])
def test_an_older_opset_has_no_gelu(opset):
    done = check(FuseGelu(), model([*ERF, *ENDS["x first"]], opset), exact=True)
    assert "Gelu" not in done.ops
    assert f"opset 20 on, and the model has {opset}" in done.why


def test_a_value_inside_that_is_used_elsewhere():
    done = check(FuseGelu(), model([*ERF, *ENDS["x first"]], outputs=("y", "g")), exact=True)
    assert "Gelu" not in done.ops
    assert "'g', a value inside" in done.why


@pytest.mark.parametrize("changed", [{"half": 0.51}, {"root": 1.5}, {"one": 0.9}])
def test_what_is_almost_gelu_is_left_alone(changed):
    constants = CONSTANTS | {name: np.float32(value) for name, value in changed.items()}
    proto = make([*ERF, *ENDS["x first"]], {"x": [3, 5]}, {"y": None}, constants, 20)
    done = check(FuseGelu(), proto, exact=True)
    assert "Gelu" not in done.ops
    assert not done.why


def test_a_gate_on_another_value_is_left_alone():
    nodes = [*ERF, node("Mul", "z g", "m"), node("Mul", "m half", "y")]
    proto = make(nodes, {"x": [3, 5], "z": [3, 5]}, {"y": None}, CONSTANTS, 20)
    assert "Gelu" not in check(FuseGelu(), proto, exact=True).ops
