from __future__ import annotations

import numpy as np
import pytest

from detent.recipe import Override
from tests.emit.qoperator.forms import FEEDS, RECIPES, S8, U8, assert_same, forms
from tests.models import IMAGE, build, info, node, normal

SCHEMES = pytest.mark.parametrize("scheme", RECIPES.values(), ids=RECIPES)
TWO = {"x": normal(*IMAGE, seed=9), "z": 3 * normal(*IMAGE, seed=5) + 2}
TWO_INPUTS = [info("x", IMAGE), info("z", IMAGE)]


@SCHEMES
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_of_two_activations(op, scheme):
    both = forms(build([node(op, "x z", "y")], "y", None, TWO_INPUTS), scheme, TWO)
    assert both.between == [f"QLinear{op}"] and both.declined == []
    assert_same(both, TWO, ties=0.03)


@SCHEMES
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a_constant_takes_the_type_of_the_result(op, scheme):
    both = forms(build([node(op, "x c", "y")], "y", {"c": normal(3, 1, 1) + 1}), scheme)
    assert both.between == [f"QLinear{op}"]
    assert_same(both, ties=0.03)


@pytest.mark.parametrize("op", ["Sigmoid", "LeakyRelu"])
@SCHEMES
def test_tables(op, scheme):
    attributes = {"alpha": 0.3} if op == "LeakyRelu" else {}
    both = forms(build([node(op, "x", "y", **attributes)], "y"), scheme)
    assert both.between == [f"QLinear{op}"]
    assert_same(both, ties=0.02)


POOLS = {
    "plain": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "pads": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "pads-counted": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    "ceil": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    "same": {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
}


@SCHEMES
@pytest.mark.parametrize("attributes", POOLS.values(), ids=POOLS)
def test_average_pool(attributes, scheme):
    both = forms(build([node("AveragePool", "x", "y", **attributes)], "y"), scheme)
    assert both.between == ["QLinearAveragePool"]
    assert_same(both, ties=0.03)


def test_average_pool_with_dilations_is_declined():
    pool = node("AveragePool", "x", "y", kernel_shape=[2, 2], dilations=[2, 2])
    both = forms(build([pool, node("Relu", "y", "z")], "z", opset=19))
    assert "AveragePool" in both.operators and "QLinearAveragePool" not in both.operators


@SCHEMES
def test_global_average_pool(scheme):
    feeds = {"x": normal(4, 32, 4, 4, seed=9) + 0.4}
    both = forms(build([node("GlobalAveragePool", "x", "y")], "y", None, [info("x", (4, 32, 4, 4))]), scheme, feeds)
    assert both.between == ["QLinearGlobalAveragePool"]
    assert_same(both, feeds, ties=0.05)


@SCHEMES
@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("kept", [0, 1])
def test_mean_over_height_and_width(kept, opset, scheme):
    feeds = {"x": normal(4, 32, 4, 4, seed=9) + 0.4}
    axes = {} if opset == 18 else {"axes": [-1, 2]}
    mean = node("ReduceMean", "x axes" if opset == 18 else "x", "y", keepdims=kept, **axes)
    constants = {"axes": np.array([-1, 2])} if opset == 18 else {}
    both = forms(build([mean], "y", constants, [info("x", (4, 32, 4, 4))], opset=opset), scheme, feeds)
    assert both.between == ["QLinearGlobalAveragePool", *([] if kept else ["Flatten"])]
    assert_same(both, feeds, ties=0.05)


@pytest.mark.parametrize("axes", [[1], [3], [1, 2, 3], None])
def test_other_means_are_declined(axes):
    both = forms(build([node("ReduceMean", "x", "y", **({"axes": axes} if axes else {}))], "y"))
    assert both.between == ["ReduceMean"] and "height and width" in both.declined[0].what


@pytest.mark.parametrize("scheme", [U8, S8, RECIPES["s8-asymmetric-channels"]])
@pytest.mark.parametrize("axis", [1, -1])
def test_softmax(axis, scheme):
    feeds = {"x": 3 * normal(*IMAGE, seed=9)}
    both = forms(build([node("Softmax", "x", "y", axis=axis)], "y"), scheme, feeds)
    assert both.between == ["QLinearSoftmax"]
    assert_same(both, feeds, ties=0.02)


def test_softmax_whose_scale_is_no_whole_part_of_one_is_declined():
    """A range of 0.9, which the user gave, has the scale 1.8/255."""
    given = RECIPES["u8-symmetric"].replace(overrides=(Override(tensors=("y",), range=(0.0, 0.9)),))
    both = forms(build([node("Softmax", "x", "y")], "y"), given)
    assert "Softmax" in both.operators and "whole number" in both.declined[0].what


@SCHEMES
def test_where(scheme):
    feeds = {**TWO, "c": normal(*IMAGE, seed=3) > 0}
    from onnx import TensorProto

    inputs = [*TWO_INPUTS, info("c", IMAGE, TensorProto.BOOL)]
    both = forms(build([node("Where", "c x z", "y")], "y", None, inputs), scheme, feeds)
    assert both.between == ["QLinearWhere"]
    assert_same(both, feeds, ties=0.01)


@SCHEMES
def test_concat_of_different_scales(scheme):
    proto = build([node("Concat", "x z k", "y", axis=1)], "y", {"k": normal(1, 2, 8, 8)}, TWO_INPUTS)
    both = forms(proto, scheme, TWO)
    assert both.between == ["QLinearConcat"]
    assert_same(both, TWO, ties=0.01)


def test_concat_of_one_scale_is_concat():
    both = forms(build([node("Concat", "x x", "y", axis=1)], "y"))
    assert both.between == ["Concat"]
    assert_same(both)


@pytest.mark.parametrize("op", ["Relu", "Clip"])
@SCHEMES
def test_an_activation_function_of_its_own(op, scheme):
    """Asymmetric grids differ (the result has no negative numbers); symmetric ones as well where the largest does."""
    constants = {"low": np.float32(0), "high": np.float32(1.5)} if op == "Clip" else {}
    cut = node(op, "x low high" if constants else "x", "y")
    both = forms(build([cut], "y", constants), scheme)
    assert both.between[0] in ("QLinearLeakyRelu", "Clip") and both.declined == []
    assert_same(both)


def test_a_clip_on_its_own_grid_is_a_clip_of_codes():
    """The largest number of x decides the symmetric scale of both sides, so the codes are cut at 0 only."""
    x = np.linspace(-1, 1.27, 3 * 64, dtype=np.float32).reshape(IMAGE)
    both = forms(build([node("Relu", "x", "y")], "y"), S8, {"x": x})
    assert both.between == ["Clip"]
    assert_same(both, {"x": x})


def test_a_clip_to_another_grid_cuts_off_anywhere():
    constants = {"low": np.float32(-0.5), "high": np.float32(1.5)}
    both = forms(build([node("Clip", "x low high", "y")], "y", constants))
    assert both.between == ["QLinearLeakyRelu"] and both.declined == []
    assert_same(both)


CUTS = {"relu": ("Relu", None), "relu6": ("Clip", (0.0, 6.0)), "hard": ("Clip", (0.0, 1.0))}


@SCHEMES
@pytest.mark.parametrize(("op", "bounds"), CUTS.values(), ids=CUTS)
def test_an_activation_function_behind_a_layer(op, bounds, scheme):
    """Asymmetric grids start at 0 and end at the largest number or the bound, so that nothing is left to cut off."""
    constants = {"w": normal(8, 3, 3, 3), "b": normal(8, seed=1)}
    cut = node("Relu", "c", "y")
    if bounds:
        constants |= {"low": np.float32(bounds[0]), "high": np.float32(bounds[1])}
        cut = node(op, "c low high", "y")
    both = forms(build([node("Conv", "x w b", "c"), cut], "y", constants), scheme)
    asymmetric = not scheme.activations.symmetric
    assert both.between == (["QLinearConv"] if asymmetric else ["QLinearConv", "Clip"]) and both.declined == []
    assert_same(both, ties=0.004)


def test_two_cuts_behind_each_other():
    constants = {"w": normal(8, 3, 3, 3), "low": np.float32(-9), "high": np.float32(2)}
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Clip", "r low high", "y")]
    both = forms(build(nodes, "y", constants), U8)
    # Clip is no part of a fused layer with such bounds, and so has a grid of its own.
    assert both.declined == [] and both.between[0] == "QLinearConv"
    assert_same(both, FEEDS, ties=0.01)
