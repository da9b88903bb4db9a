from __future__ import annotations

import pytest

from detent.prepare import SumToAdd
from tests.prepare.equivalence import check, f32, make, node


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_sum_is_a_chain_of_additions(count):
    """Of values that are broadcast: [2, 3], [3], [2, 1] and constants."""
    inputs = dict(zip("abc", ([2, 3], [3], [2, 1]), strict=True))
    names = ["a", "b", "c", "k", "l"][:count]
    proto = make(
        [node("Sum", " ".join(names), "y")],
        {name: shape for name, shape in inputs.items() if name in names},
        {"y": None},
        {name: f32(2, 3, seed=at) for at, name in enumerate("kl") if name in names},
    )
    done = check(SumToAdd(), proto)
    assert done.ops == ["Add"] * (count - 1)


def test_a_sum_of_one_value_stays():
    done = check(SumToAdd(), make([node("Sum", "x", "y")], {"x": [2, 3]}, {"y": None}))
    assert done.ops == ["Sum"]
    assert "one input" in done.why
