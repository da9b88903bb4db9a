from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import CancelTransposes
from tests.prepare.equivalence import check, f32, info, make, node

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def done(nodes, outputs=("y",), constants=None, value_info=()):
    made = make(nodes, {"x": [1, 3, 4, 5]}, dict.fromkeys(outputs), constants, value_info=value_info)
    return check(CancelTransposes(), made, exact=True)


def turn(source, result, perm):
    return node("Transpose", source, result, perm=perm)


def test_there_and_back_is_nothing():
    nodes = [node("Relu", "x", "a"), turn("a", "b", LAST), turn("b", "c", FIRST), node("Neg", "c", "y")]
    assert done(nodes).ops == ["Relu", "Neg"]
    others = [*nodes, node("Exp", "b", "z")]  # the first is read elsewhere, and stays
    assert sorted(done(others, ("y", "z")).ops) == ["Exp", "Neg", "Relu", "Transpose"]


@pytest.mark.parametrize("perm", [LAST, [0, 1, 3, 2]])
def test_what_is_not_the_inverse_stays(perm):
    nodes = [turn("x", "b", LAST), turn("b", "y", perm)]
    assert done(nodes).ops == ["Transpose", "Transpose"]


@pytest.mark.parametrize("operand", [(5, 3), (3,), (1, 1, 1, 3), ()])
def test_elements_are_treated_alike_wherever_they_lie(operand):
    nodes = [node("Abs", "x", "a"), turn("a", "b", LAST), node("Mul", "b k", "c"), node("Relu", "c", "d")]
    nodes += [turn("d", "e", FIRST), node("Neg", "e", "y")]
    assert done(nodes, constants={"k": f32(*operand)}).ops == ["Abs", "Mul", "Relu", "Neg"]


def test_a_value_of_one_axis_is_reshaped():
    """A gate of squeeze and excite: [1, 1, 1, 3] beside [1, 4, 5, 3]."""
    nodes = [node("GlobalAveragePool", "x", "p"), node("Reshape", "p shape", "g"), turn("x", "b", LAST)]
    nodes += [node("Mul", "b g", "c"), turn("c", "d", FIRST), node("Neg", "d", "y")]
    shapes = {"shape": np.array([1, 1, 1, 3])}
    found = done(nodes, constants=shapes, value_info=[info("g", [1, 1, 1, 3])])
    assert found.ops == ["GlobalAveragePool", "Reshape", "Reshape", "Mul", "Neg"]


def test_both_operands_have_to_be_turned():
    nodes = [turn("x", "b", LAST), node("Softmax", "b", "s", axis=-1), node("Add", "b s", "c"), turn("c", "y", FIRST)]
    assert done(nodes).ops == ["Transpose", "Softmax", "Add", "Transpose"]
    both = [node("Abs", "x", "a"), turn("x", "b", LAST), turn("a", "c", LAST), node("Add", "b c", "d")]
    assert done([*both, turn("d", "e", FIRST), node("Neg", "e", "y")]).ops == ["Abs", "Add", "Neg"]


def test_a_result_keeps_its_name():
    nodes = [turn("x", "b", LAST), node("Relu", "b", "c"), turn("c", "y", FIRST)]
    assert done(nodes).ops == ["Relu"]
    assert done([turn("x", "b", LAST), turn("b", "y", FIRST)]).ops == ["Transpose", "Transpose"]


def test_a_value_that_is_read_elsewhere_stays():
    nodes = [turn("x", "b", LAST), node("Relu", "b", "c"), turn("c", "d", FIRST), node("Neg", "d", "y")]
    assert "Transpose" in done([*nodes, node("Exp", "c", "z")], ("y", "z")).ops
