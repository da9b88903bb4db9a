from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import SplitToSlice
from tests.prepare.equivalence import check, f32, make, node

ABC = {"a": None, "b": None, "c": None}


@pytest.mark.parametrize(
    ("opset", "axis"),
    [(opset, axis) for opset in (17, 18, 21) for axis in (None, 0, 1, -1)],
)
def test_given_sizes(opset, axis):
    attributes = {} if axis is None else {"axis": axis}
    constants = {"s": np.array([1, 3, 2])}
    split = node("Split", "x s", "a b c", name="sp", **attributes)
    done = check(SplitToSlice(), make([split], {"x": [6, 6]}, ABC, constants, opset), exact=True)
    assert done.ops == ["Slice"] * 3
    assert done.proto.graph.node[0].name == "sp/slice0"


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_equal_parts(opset):
    attributes = {"num_outputs": 3} if opset >= 18 else {}
    done = check(
        SplitToSlice(),
        make([node("Split", "x", "a b c", axis=1, **attributes)], {"x": [2, 6]}, ABC, {}, opset),
        exact=True,
    )
    assert done.ops == ["Slice"] * 3


@pytest.mark.parametrize("size", [7, 8, 9])
def test_num_outputs_leaves_a_smaller_last_part(size):
    proto = make([node("Split", "x", "a b c", num_outputs=3)], {"x": [size, 2]}, ABC, {}, 18)
    assert check(SplitToSlice(), proto, exact=True).ops == ["Slice"] * 3


def test_unread_outputs_get_no_slice():
    nodes = [node("Split", "x", "a b c", name="sp"), node("Relu", "b", "y")]
    done = check(SplitToSlice(), make(nodes, {"x": [6]}, {"y": None}), exact=True)
    assert done.ops == ["Slice", "Relu"]
    assert done.named("Slice").output == ["b"]


def test_unknown_dimension_with_given_sizes_is_fine_and_with_equal_parts_is_not():
    given = make(
        [node("Split", "x s", "a b", axis=1)], {"x": [2, "W"]}, {"a": None, "b": None}, {"s": np.array([1, 3])}
    )
    assert check(SplitToSlice(), given, {"x": f32(2, 4)}, exact=True).ops == ["Slice", "Slice"]
    equal = make([node("Split", "x", "a b", axis=1)], {"x": [2, "W"]}, {"a": None, "b": None})
    assert "dimension 1 of its input is not known" in check(SplitToSlice(), equal, {"x": f32(2, 4)}, exact=True).why


def test_declines_computed_sizes():
    nodes = [node("Identity", "s", "t"), node("Split", "x t", "a b")]
    proto = make(nodes, {"x": [4]}, {"a": ["A"], "b": ["B"]}, {"s": np.array([1, 3])})
    done = check(SplitToSlice(), proto, exact=True)
    assert "'t' are not constant" in done.why
