from __future__ import annotations

import numpy as np
import pytest

from tests.emit.qoperator.forms import FEEDS, RECIPES, S8, U8, assert_same, exact_run, forms
from tests.models import build, node, normal, run

MOVES = {
    "Reshape": (node("Reshape", "x shape", "y"), {"shape": np.array([1, 3, 64])}),
    "Flatten": (node("Flatten", "x", "y"), {}),
    "Transpose": (node("Transpose", "x", "y", perm=[0, 2, 3, 1]), {}),
    "Squeeze": (node("Squeeze", "x zero", "y"), {"zero": np.array([0])}),
    "Unsqueeze": (node("Unsqueeze", "x zero", "y"), {"zero": np.array([0])}),
    "Gather": (node("Gather", "x i", "y", axis=3), {"i": np.array([5, 2, 2])}),
    "MaxPool": (node("MaxPool", "x", "y", kernel_shape=[2, 2], pads=[1, 1, 0, 0]), {}),
    "Resize": (
        node("Resize", "x _ factors", "y", mode="nearest"),
        {"factors": np.array([1, 1, 2, 2], np.float32)},
    ),
}


@pytest.mark.parametrize("scheme", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize(("moved", "constants"), MOVES.values(), ids=MOVES)
def test_the_operator_moves_codes(moved, constants, scheme):
    both = forms(build([moved], "y", constants), scheme)
    assert both.operators == ["QuantizeLinear", moved.op_type, "DequantizeLinear"] and both.declined == []
    assert_same(both)


def test_max_pool_with_an_activation_function_behind_it_cuts_codes():
    x = normal(1, 3, 8, 8, seed=9)
    x[0, 0, 0, 0] = 5  # decides the scale of both sides
    nodes = [node("MaxPool", "x", "m", kernel_shape=[2, 2]), node("Relu", "m", "y")]
    both = forms(build(nodes, "y"), S8, {"x": x})
    assert both.declined == [] and both.between == ["MaxPool", "Clip"]
    assert_same(both, {"x": x})


def test_interpolation_stays_float():
    factors = {"factors": np.array([1, 1, 2, 2], np.float32)}
    both = forms(build([node("Resize", "x _ factors", "y", mode="linear")], "y", factors))
    assert both.between == ["Resize"] and "interpolates" in both.declined[0].what
    assert both.operators.count("QuantizeLinear") == 2


def test_a_result_on_another_grid_stays_float():
    """The slice leaves out what decides the range of x, and so has a finer scale."""
    x = normal(1, 3, 8, 8, seed=9)
    x[:, 0] *= 9
    constants = {"begin": np.array([1]), "end": np.array([3]), "axis": np.array([1])}
    both = forms(build([node("Slice", "x begin end axis", "y")], "y", constants), U8, {"x": x})
    assert both.between == ["Slice"] and "another scale" in both.declined[0].what


def test_slice_and_split_on_one_grid():
    x = normal(1, 3, 8, 8, seed=9)
    x[:, :, 0, :2] = [-4, 5]  # every part of the split has the whole range
    nodes = [node("Split", "x sizes", "a b", axis=1), node("Mul", "a b", "y")]
    both = forms(build(nodes, "y", {"sizes": np.array([1, 2])}), U8, {"x": x})
    assert both.between == ["Split", "QLinearMul"] and both.declined == []
    assert_same(both, {"x": x}, ties=0.02)


@pytest.mark.parametrize("scheme", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("number", [None, 0.0, 0.7], ids=str)
def test_pad(number, scheme):
    constants = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    if number is not None:
        constants["number"] = np.float32(number)
    both = forms(
        build([node("Pad", "x pads" + (" number" if number is not None else ""), "y")], "y", constants), scheme
    )
    assert both.operators == ["QuantizeLinear", "Pad", "DequantizeLinear"]
    assert_same(both)


def test_reflecting_pad():
    constants = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    both = forms(build([node("Pad", "x pads", "y", mode="reflect")], "y", constants))
    assert both.between == ["Pad"]
    assert_same(both, FEEDS)


@pytest.mark.parametrize("op", ["Shape", "Size", "ArgMax"])
def test_what_depends_on_shape_or_order_reads_codes(op):
    nodes = [node("Relu", "x", "r"), node(op, "r", "y")]
    both = forms(build(nodes, "y"), S8)
    assert both.operators[-1] == op and "DequantizeLinear" not in both.operators and both.declined == []
    assert np.array_equal(run(both.qdq, FEEDS)["y"], exact_run(both.integer, FEEDS)["y"])
