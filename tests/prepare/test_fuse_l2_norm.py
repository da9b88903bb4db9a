from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import FuseL2Norm
from tests.prepare.equivalence import check, f32, make, node

CONSTANTS = {"axis": np.array([1]), "two": np.float32(2), "eps": np.float32(1e-12), "shape": np.array([3, 6, 4])}
NORM = node("ReduceL2", "x", "n", axes=[1])
SUM = [node("Pow", "x two", "q"), node("ReduceSum", "q axis", "n")]
PRODUCT = [node("Mul", "x x", "q"), node("ReduceSum", "q axis", "n")]
DIVIDE = node("Div", "x l", "y")
ROOT = node("Sqrt", "n", "l")
FORMS = {
    "plain": [node("ReduceL2", "x", "l", axes=[1]), DIVIDE],
    "as torch": [NORM, node("Clip", "n eps", "c"), node("Expand", "c shape", "l"), DIVIDE],
    "max": [NORM, node("Max", "eps n", "l"), DIVIDE],
    "root of sum": [*SUM, ROOT, DIVIDE],
    "root of product": [*PRODUCT, ROOT, DIVIDE],
    "root of squares": [node("ReduceSumSquare", "x", "n", axes=[1]), ROOT, DIVIDE],
    "guard below the root": [*SUM, node("Add", "n eps", "g"), node("Sqrt", "g", "l"), DIVIDE],
    "reciprocal": [
        *PRODUCT,
        node("Max", "n eps", "g"),
        node("Sqrt", "g", "s"),
        node("Reciprocal", "s", "l"),
        node("Mul", "l x", "y"),
    ],
}


def model(nodes, outputs=("y",), constants=None):
    return make(nodes, {"x": [3, 6, 4]}, dict.fromkeys(outputs), CONSTANTS | (constants or {}))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_one_node(form):
    done = check(FuseL2Norm(), model(FORMS[form]))
    assert done.ops == ["LpNormalization"]
    assert done.attributes("LpNormalization") == {"axis": -2, "p": 2}


@pytest.mark.parametrize("form", ["as torch", "max", "reciprocal", "guard below the root"])
def test_zero_stays_zero(form):
    x = f32(3, 6, 4)
    x[1] = 0
    check(FuseL2Norm(), model(FORMS[form]), {"x": x})


@pytest.mark.parametrize(
    ("nodes", "outputs", "constants", "reason"),
    [
        (FORMS["max"], ("y",), {"eps": np.float32(0.01)}, "0.01"),
        (FORMS["guard below the root"], ("y",), {"eps": np.float32(1e-4)}, "0.01"),
        (FORMS["root of sum"], ("y",), {"axis": np.array([1, 2])}, "LpNormalization has one"),
        (FORMS["root of sum"], ("y", "l"), {}, "'l', a value inside"),
    ],
)
def test_declines(nodes, outputs, constants, reason):
    done = check(FuseL2Norm(), model(nodes, outputs, constants), exact=True)
    assert "LpNormalization" not in done.ops
    assert reason in done.why


def test_the_length_of_another_value_is_left_alone():
    nodes = [node("Relu", "x", "r"), node("ReduceL2", "r", "l", axes=[1]), DIVIDE]
    done = check(FuseL2Norm(), model(nodes), exact=True)
    assert done.ops == ["Relu", "ReduceL2", "Div"]
    assert not done.why
