from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from detent.prepare import KeepMeanDims, ReduceMeanToPool
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


def classifier(shape=("N", 3, 5, 4), opset=17, **attributes):
    """A mean over height and width before the last layer."""
    means = {"axes": np.array([-1, 2])} if opset >= 18 else {}
    mean = node("ReduceMean", "x axes" if means else "x", "m", **({} if means else {"axes": [-1, 2]}), **attributes)
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    return make([mean, node("Gemm", "m w", "y")], {"x": list(shape)}, {"y": None}, {"w": weight, **means}, opset)


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("shape", [("N", 3, 5, 4), ("N", 3, "H", "W")])
def test_a_mean_without_the_dimensions_gets_them_and_a_flatten(opset, shape):
    done = check(KeepMeanDims(), classifier(shape, opset, keepdims=0))
    assert done.ops == ["ReduceMean", "Flatten", "Gemm"]
    assert check(ReduceMeanToPool(), done.proto).ops == ["GlobalAveragePool", "Flatten", "Gemm"]


def test_a_mean_without_the_dimensions_is_no_pool_by_itself():
    assert "keepdims is 0" in check(ReduceMeanToPool(), classifier(keepdims=0), exact=True).why


@pytest.mark.parametrize("last", [(), ("Softmax",), ("Relu", "Softmax")])
def test_a_mean_that_is_the_answer_stays(last):
    """SqueezeNet: no layer follows, and the answer deserves a scale of its own."""
    names = ["y", *"abc"[: len(last)]][::-1]
    nodes = [node("ReduceMean", "x", names[0], axes=[2, 3], keepdims=0)]
    nodes += [node(op_type, names[at], names[at + 1]) for at, op_type in enumerate(last)]
    done = check(KeepMeanDims(), make(nodes, {"x": [1, 3, 5, 4]}, {"y": None}), exact=True)
    assert "at the output" in done.why
    assert done.ops == ["ReduceMean", *last]


def test_stays_where_others_read_its_input():
    """Squeeze-and-excite: the mean of x decides what x is multiplied by."""
    squeeze = [node("ReduceMean", "x", "m", axes=[2, 3], keepdims=0), node("Reshape", "m s", "r")]
    excite = make([*squeeze, node("Mul", "x r", "y")], {"x": [1, 3, 5, 4]}, {"y": None}, {"s": np.array([1, 3, 1, 1])})
    assert "within the network" in check(KeepMeanDims(), excite, exact=True).why


def test_declines_all_axes_and_integers():
    done = check(ReduceMeanToPool(), make([node("ReduceMean", "x", "y")], {"x": [1, 2, 3, 4]}, {"y": None}), exact=True)
    assert "all axes" in done.why
    whole = make(
        [node("ReduceMean", "x", "y", axes=[2, 3])],
        [info("x", [1, 2, 3, 4], TensorProto.INT32)],
        [info("y", None, TensorProto.INT32)],
    )
    assert "float32" in check(ReduceMeanToPool(), whole, exact=True).why
