"""Scores of detectors: which layers compute their logits, and the shift that brings them closest."""

from __future__ import annotations

import numpy as np
import pytest

from detent.refine.layers import MatrixLayer
from detent.refine.score_heads import LARGEST_SHIFT, common_shift, score_heads
from tests.models import as_ir, build, node, normal


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


@pytest.mark.parametrize("shift", [-2.0, -0.5, 0.0, 1.25])
def test_a_shift_is_found(shift):
    """Most positions hold nothing, and say nothing, whatever is found there."""
    wanted = np.full((1, 8, 40), -12.0, np.float32)
    wanted[0, :3, :4] = normal(3, 4, seed=1) * 2
    found = wanted - np.float32(shift)
    found[wanted == -12.0] -= 3
    assert common_shift([(found, wanted)]) == pytest.approx(shift)


def test_no_shift_leads_beyond_the_largest():
    wanted = np.zeros((1, 2, 3), np.float32)
    assert common_shift([(wanted - 30, wanted)]) == LARGEST_SHIFT
    assert common_shift([(wanted - 30, wanted - 30)]) == 0.0


def test_the_shift_is_the_best_of_a_fine_search():
    wanted = normal(1, 4, 50, seed=2) * 3
    found = wanted * 0.9 - 1 + normal(1, 4, 50, seed=3)
    errors = {d: np.square(sigmoid(found + d) - sigmoid(wanted)).sum() for d in np.arange(-4, 4, 0.01)}
    assert common_shift([(found, wanted)]) == pytest.approx(min(errors, key=errors.get), abs=1 / 16)


def heads_of(nodes, output="s", **constants):
    weights = {"w": normal(6, 3, 1, 1), "b": normal(6, seed=1), "v": normal(4, 3, 1, 1), "c": normal(4, seed=2)}
    model = as_ir(build(nodes, output, weights | constants))
    layers = {each: MatrixLayer(each, each.inputs[1], each.inputs[2]) for each in model.graph if each.op_type == "Conv"}
    return [(head.layer.output, head.start, head.stop) for head in score_heads(model, layers)]


CONVS = [node("Conv", "x w b", "p"), node("Conv", "x v c", "q")]


def test_a_head_of_its_own():
    assert heads_of([*CONVS[:1], node("Sigmoid", "p", "s")]) == [("p", 0, 6)]


def test_channels_are_followed_through_concat_reshape_and_split():
    """Boxes and scores are joined, flattened and split again: only the layer of the scores is a head."""
    nodes = [
        *CONVS,
        node("Concat", "p q", "j", axis=1),
        node("Reshape", "j shape", "r"),
        node("Split", "r sizes", "boxes scores", axis=1),
        node("Sigmoid", "scores", "s"),
    ]
    constants = {"shape": np.array([1, 10, 64]), "sizes": np.array([6, 4])}
    assert heads_of(nodes, **constants) == [("q", 0, 4)]
    assert heads_of(nodes, shape=np.array([1, 10, 64]), sizes=np.array([4, 6])) == [("p", 4, 6), ("q", 0, 4)]


def test_levels_of_several_resolutions_are_heads_each():
    nodes = [
        node("Conv", "x w b", "p"),
        node("Conv", "x w2 b2", "q", strides=[2, 2]),
        node("Reshape", "p flat", "f"),
        node("Reshape", "q flat2", "g"),
        node("Concat", "f g", "j", axis=2),
        node("Slice", "j two six one", "l"),
        node("Sigmoid", "l", "s"),
    ]
    constants = {
        "w2": normal(6, 3, 1, 1), "b2": normal(6), "flat": np.array([1, 6, 64]), "flat2": np.array([1, 6, 16]),
        "one": np.array([1]), "two": np.array([2]), "six": np.array([6]),
    }  # fmt: skip
    assert heads_of(nodes, **constants) == [("p", 2, 6), ("q", 2, 6)]


def test_a_gate_is_no_score():
    nodes = [node("Conv", "x w b", "p"), node("Sigmoid", "p", "g"), node("Mul", "p g", "a"), node("Conv", "a u d", "s")]
    assert heads_of(nodes, u=normal(2, 6, 1, 1), d=normal(2)) == []


def test_channels_that_are_mixed_are_not_followed():
    nodes = [node("Conv", "x w b", "p"), node("Transpose", "p", "t", perm=[0, 2, 3, 1]), node("Sigmoid", "t", "s")]
    assert heads_of(nodes) == []
