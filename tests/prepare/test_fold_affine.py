from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import FoldAffine
from tests.prepare.equivalence import check, f32, make, node

CONV = {"w": f32(6, 3, 3, 3)}


def conv(**attributes):
    return node("Conv", "x w", "a", name="conv", **attributes)


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("first", [False, True])
def test_after_conv(op, shape, first):
    proto = make(
        [conv(), node(op, "k a" if first else "a k", "y", name="op")],
        {"x": [2, 3, 5, 5]},
        {"y": None},
        {**CONV, "k": f32(*shape) + 2},
    )
    done = check(FoldAffine(), proto)
    if op == "Div" and first:
        assert done.ops == ["Conv", "Div"]
        assert "divides" in done.why
    else:
        assert done.ops == ["Conv"]
        assert set(done.constants) <= {"conv/folded_weight", "conv/folded_bias"}


@pytest.mark.parametrize("group", [1, 2])
def test_chain_after_conv_transpose(group):
    constants = {"w": f32(4, 3, 2, 2), "k": f32(3 * group, 1, 1) + 2, "l": f32(1, 3 * group, 1, 1)}
    nodes = [node("ConvTranspose", "x w", "a", group=group), node("Mul", "a k", "b"), node("Add", "l b", "y")]
    assert check(FoldAffine(), make(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, constants)).ops == ["ConvTranspose"]


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("shape", [(), (5,), (1, 5)])
def test_after_gemm(trans_b, shape):
    constants = {"w": f32(5, 4) if trans_b else f32(4, 5), "c": f32(5), "k": f32(*shape) + 2}
    nodes = [
        node("Gemm", "x w c", "a", alpha=2.0, beta=0.5, transB=trans_b),
        node("Mul", "a k", "b"),
        node("Sub", "k b", "y"),
    ]
    assert check(FoldAffine(), make(nodes, {"x": [3, 4]}, {"y": None}, constants)).ops == ["Gemm"]


@pytest.mark.parametrize("shape", [(5,), (1, 5, 1), (2, 1, 1, 1), (1, 6, 5, 5), (1, 1, 6, 1, 1)])
def test_declines_what_is_not_per_channel(shape):
    k = f32(*shape)
    nodes = [conv(pads=[1, 1, 1, 1]), node("Add", "a k", "y")]
    done = check(FoldAffine(), make(nodes, {"x": [2, 3, 5, 5]}, {"y": None}, {**CONV, "k": k}))
    assert done.ops == ["Conv", "Add"]
    assert "per channel" in done.why


def test_declines_when_one_channel_is_broadcast_to_many():
    nodes = [conv(), node("Mul", "a k", "y")]
    done = check(FoldAffine(), make(nodes, {"x": [2, 3, 5, 5]}, {"y": None}, {"w": f32(1, 3, 3, 3), "k": f32(4, 1, 1)}))
    assert done.ops == ["Conv", "Mul"]
    assert "do not fit" in done.why


def test_declines_division_by_zero_and_second_use():
    nodes = [conv(), node("Div", "a k", "y")]
    done = check(FoldAffine(), make(nodes, {"x": [1, 3, 5, 5]}, {"y": None}, {**CONV, "k": np.zeros(1, np.float32)}))
    assert "divides by zero" in done.why
    nodes = [conv(), node("Add", "a k", "b"), node("Clip", "b", "c"), node("Mul", "a c", "y")]
    done = check(FoldAffine(), make(nodes, {"x": [1, 3, 5, 5]}, {"y": None}, {**CONV, "k": f32(1)}))
    assert done.ops == ["Conv", "Add", "Clip", "Mul"]
    assert "'a' has 2 uses" in done.why


def test_leaves_arithmetic_of_two_computed_values_without_a_note():
    nodes = [conv(), node("Relu", "a", "b"), node("Mul", "b b", "y")]
    done = check(FoldAffine(), make(nodes, {"x": [1, 3, 5, 5]}, {"y": None}, CONV), exact=True)
    assert not done.step.changes
    assert not done.step.declined
