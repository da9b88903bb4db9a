from __future__ import annotations

import pytest

from detent.prepare import SplitGlobalPool
from tests.prepare.equivalence import check, f32, make, node

POOL = node("GlobalAveragePool", "x", "y", name="gap")


@pytest.mark.parametrize(
    ("size", "kernel"), [((24, 40), [4, 5]), ((32, 32), [4, 4]), ((64, 64), [8, 8]), ((23, 100), [1, 10])]
)
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_splits(size, kernel, opset):
    done = check(SplitGlobalPool(), make([POOL], {"x": ["N", 3, *size]}, {"y": None}, {}, opset), rtol=1e-5)
    assert done.ops == ["AveragePool", "GlobalAveragePool"]
    assert done.attributes("AveragePool")["kernel_shape"] == kernel
    assert done.attributes("AveragePool")["strides"] == kernel
    assert done.named("AveragePool").name == "gap/tiles"


@pytest.mark.parametrize("size", [(7, 7), (16, 32)])
def test_small_ones_are_left_without_a_note(size):
    done = check(SplitGlobalPool(), make([POOL], {"x": [1, 2, *size]}, {"y": None}), exact=True)
    assert done.ops == ["GlobalAveragePool"]
    assert not done.step.declined


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((1, 2, 29, 31), "cannot be divided"),
        ((1, 1, 1024, 1024), "512 is the limit"),
        ((1, 2, 521, 4), "512 is the limit"),
        ((1, 2, "H", 40), "not known"),
    ],
)
def test_declines(shape, reason):
    feeds = {"x": f32(*[4 if isinstance(dim, str) else dim for dim in shape])}
    done = check(SplitGlobalPool(), make([POOL], {"x": list(shape)}, {"y": None}), feeds, exact=True)
    assert done.ops == ["GlobalAveragePool"]
    assert reason in done.why
