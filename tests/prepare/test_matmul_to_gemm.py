from __future__ import annotations

import pytest

from detent.prepare import MatMulToGemm
from tests.prepare.equivalence import check, f32, make, node

NODES = [node("MatMul", "x w", "a", name="mm"), node("Add", "a c", "y", name="add")]


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1,), ()])
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_merges(shape, opset):
    done = check(MatMulToGemm(), make(NODES, {"x": ["N", 4]}, {"y": None}, {"w": f32(4, 5), "c": f32(*shape)}, opset))
    assert done.ops == ["Gemm"]
    assert done.named("Gemm").name == "mm"
    assert done.constants["mm/bias"].shape == (5,)


def test_bias_first():
    nodes = [NODES[0], node("Add", "c a", "y")]
    done = check(MatMulToGemm(), make(nodes, {"x": [3, 4]}, {"y": None}, {"w": f32(4, 5), "c": f32(5)}))
    assert done.ops == ["Gemm"]


@pytest.mark.parametrize(
    ("x", "c", "extra", "reason"),
    [
        ([2, 3, 4], (5,), [], "rank 2"),
        ([3, 4], (3, 5), [], "per column"),
        ([3, 4], (2, 1, 5), [], "per column"),
        ([3, 4], (5,), [node("Relu", "a", "z")], "2 uses"),
    ],
)
def test_declines(x, c, extra, reason):
    outputs = {"y": None} | ({"z": None} if extra else {})
    done = check(MatMulToGemm(), make([*NODES, *extra], {"x": x}, outputs, {"w": f32(4, 5), "c": f32(*c)}))
    assert "MatMul" in done.ops
    assert reason in done.why


def test_one_column_is_not_broadcast():
    done = check(MatMulToGemm(), make(NODES, {"x": [3, 4]}, {"y": None}, {"w": f32(4, 1), "c": f32(5)}))
    assert done.ops == ["MatMul", "Add"]
