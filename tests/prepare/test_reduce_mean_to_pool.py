from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from detent.prepare import ReduceMeanToPool
from tests.prepare.equivalence import check, info, make, node


def mean(axes, opset, shape=("N", 3, 5, 4), **attributes):
    if opset < 18:
        return make([node("ReduceMean", "x", "y", axes=axes, **attributes)], {"x": list(shape)}, {"y": None}, {}, opset)
    return make(
        [node("ReduceMean", "x axes", "y", **attributes)],
        {"x": list(shape)},
        {"y": None},
        {"axes": np.array(axes)},
        opset,
    )


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-2, -1], [2, -1]])
def test_becomes_a_pool(opset, axes):
    done = check(ReduceMeanToPool(), mean(axes, opset))
    assert done.ops == ["GlobalAveragePool"]
    assert not done.constants


@pytest.mark.parametrize(
    ("axes", "shape", "attributes", "reason"),
    [
        ([2], (1, 3, 5, 4), {}, "not over height and width"),
        ([1, 2], (1, 3, 5, 4), {}, "not over height and width"),
        ([1, 2, 3], (1, 3, 5, 4), {}, "not over height and width"),
        ([-2, -1], (3, 5, 4), {}, "rank 4"),
        ([2, 3], (1, 3, 5, 4, 2), {}, "rank 4"),
    ],
)
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_declines(axes, shape, attributes, reason, opset):
    done = check(ReduceMeanToPool(), mean(axes, opset, shape, **attributes), exact=True)
    assert done.ops == ["ReduceMean"]
    assert reason in done.why


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("shape", [("N", 3, 5, 4), ("N", 3, "H", "W")])
def test_becomes_a_pool_and_a_flatten_without_the_dimensions(opset, shape):
    done = check(ReduceMeanToPool(), mean([-1, 2], opset, shape, keepdims=0))
    assert done.ops == ["GlobalAveragePool", "Flatten"]


def test_stays_where_others_read_its_input():
    """Squeeze-and-excite: the mean of x decides what x is multiplied by."""
    squeeze = [node("ReduceMean", "x", "m", axes=[2, 3], keepdims=0), node("Reshape", "m s", "r")]
    excite = make([*squeeze, node("Mul", "x r", "y")], {"x": [1, 3, 5, 4]}, {"y": None}, {"s": np.array([1, 3, 1, 1])})
    assert "within the network" in check(ReduceMeanToPool(), excite, exact=True).why


def test_declines_all_axes_and_integers():
    done = check(ReduceMeanToPool(), make([node("ReduceMean", "x", "y")], {"x": [1, 2, 3, 4]}, {"y": None}), exact=True)
    assert "all axes" in done.why
    whole = make(
        [node("ReduceMean", "x", "y", axes=[2, 3])],
        [info("x", [1, 2, 3, 4], TensorProto.INT32)],
        [info("y", None, TensorProto.INT32)],
    )
    assert "float32" in check(ReduceMeanToPool(), whole, exact=True).why
