from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import GatherToSlice
from tests.models import as_ir
from tests.prepare.equivalence import check, f32, info, make, node


@pytest.mark.parametrize("index", [0, 2, -1, -2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_index(index, axis):
    proto = make(
        [node("Gather", "x i", "y", name="pick", axis=axis)], {"x": [3, 4, 5]}, {"y": None}, {"i": np.array(index)}
    )
    done = check(GatherToSlice(), proto, exact=True)
    assert done.ops == ["Slice", "Squeeze"]
    assert done.named("Squeeze").name == "pick"


def test_an_open_dimension():
    proto = make([node("Gather", "x i", "y", axis=1)], {"x": [2, "n"]}, {"y": [2]}, {"i": np.array(-1)})
    assert check(GatherToSlice(), proto, exact=True).ops == ["Slice", "Squeeze"]


@pytest.mark.parametrize("index", [np.array([1]), np.array([0, 2])])
def test_a_list_of_indices_is_left_alone(index):
    proto = make([node("Gather", "x i", "y")], {"x": [3, 4]}, {"y": None}, {"i": index})
    assert check(GatherToSlice(), proto, exact=True).ops == ["Gather"]


def test_an_axis_that_the_input_does_not_have_is_left_to_the_runtime():
    model = as_ir(make([node("Gather", "x i", "y", axis=2)], {"x": [3, 4]}, {"y": None}, {"i": np.array(0)}))
    step = GatherToSlice()
    step(model)
    assert [each.op_type for each in model.graph] == ["Gather"] and "axis is 2" in str(step.declined[0])


def test_a_table_is_left_alone():
    proto = make([node("Gather", "w i", "y")], [info("i", [], 7)], {"y": None}, {"w": f32(3, 4)})
    assert check(GatherToSlice(), proto, {"i": np.array(1)}, exact=True).ops == ["Gather"]
