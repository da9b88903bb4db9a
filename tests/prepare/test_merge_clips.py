from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import MergeClips
from tests.prepare.equivalence import check, make, node

CONSTANTS = {
    "zero": np.array(0.0, np.float32),
    "one": np.array([1.0], np.float32),
    "six": np.array(6.0, np.float32),
    "nine": np.array(9.0, np.float32),
    "row": np.array([1.0, 2.0, 3.0], np.float32),
}
X = {"x": 5 * np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}


def done(*nodes, outputs=("y",)):
    constants = {name: array for name, array in CONSTANTS.items() if any(name in each.input for each in nodes)}
    made = make(list(nodes), {"x": [2, 3]}, dict.fromkeys(outputs), constants)
    return check(MergeClips(), made, X, exact=True)


@pytest.mark.parametrize(
    ("nodes", "ops"),
    [
        ([("Relu", "x", "a"), ("Min", "a six", "b"), ("Max", "b zero", "y")], ["Clip"]),  # Keras' older ReLU6
        ([("Min", "six x", "a"), ("Max", "a zero", "y")], ["Clip"]),
        ([("Max", "x zero", "y")], ["Relu"]),
        ([("Max", "x one", "y")], ["Clip"]),
        ([("Relu", "x", "a"), ("Clip", "a zero six", "y")], ["Clip"]),
        ([("Clip", "x one", "a"), ("Relu", "a", "y")], ["Clip"]),
        ([("Relu", "x", "a"), ("Relu", "a", "y")], ["Relu"]),
        ([("Relu", "x", "y")], ["Relu"]),
        ([("Clip", "x zero six", "y")], ["Clip"]),
        ([("Min", "x row", "y")], ["Min"]),
        ([("Min", "x x", "y")], ["Min"]),
        ([("Min", "x one", "a"), ("Max", "a six", "y")], ["Clip", "Clip"]),  # they do not overlap
    ],
)
def test_neighbours_that_clip_become_one(nodes, ops):
    assert done(*(node(*each) for each in nodes)).ops == ops


def test_a_value_that_is_used_elsewhere_stays():
    nodes = [node("Relu", "x", "a"), node("Min", "a six", "y"), node("Neg", "a", "z")]
    assert done(*nodes, outputs=("y", "z")).ops == ["Relu", "Clip", "Neg"]
    assert done(*nodes[:2], outputs=("y", "a")).ops == ["Relu", "Clip"]
