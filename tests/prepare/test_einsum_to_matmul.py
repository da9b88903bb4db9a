from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import EinsumToMatMul
from tests.prepare.equivalence import check, f32, make, node

SIZES = {"b": 2, "h": 3, "q": 4, "k": 5, "d": 6}


def shape(letters):
    return [SIZES[letter] for letter in letters]


@pytest.mark.parametrize(
    ("equation", "ops"),
    [
        ("qd,dk->qk", ["MatMul"]),
        ("bhqd,bhdk->bhqk", ["MatMul"]),
        ("bhqd,bhkd->bhqk", ["Transpose", "MatMul"]),
        ("bqhd,bkhd->bhqk", ["Transpose", "Transpose", "MatMul"]),
        ("bhqk,bkhd->bqhd", ["Transpose", "MatMul", "Transpose"]),
        ("dq, dk -> kq", ["Transpose", "MatMul", "Transpose"]),
        ("bqd,dk->bqk", ["MatMul"]),
        ("bhqd,dk->bhqk", ["MatMul"]),
        ("bhqd,kd->bhqk", ["Transpose", "MatMul"]),
        ("bhqd,hdk->bhqk", ["MatMul"]),
        ("bhqd,qkd->bhqk", ["Transpose", "Transpose", "MatMul", "Transpose"]),
        ("qd,bhdk->bhqk", ["MatMul"]),
        ("dk,bqd->bqk", ["Transpose", "Transpose", "MatMul", "Transpose"]),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_a_sum_over_one_letter_is_a_product(equation, ops, constant):
    left, right = equation.replace(" ", "").split("->")[0].split(",")
    inputs = {"x": shape(left)} | ({} if constant else {"w": shape(right)})
    constants = {"w": f32(*shape(right), seed=4)} if constant else {}
    proto = make([node("Einsum", "x w", "y", equation=equation)], inputs, {"y": None}, constants)
    done = check(EinsumToMatMul(), proto, rtol=1e-5)
    if not constant:
        assert done.ops == ops
    assert "Einsum" not in done.ops


@pytest.mark.parametrize("equation", ["bq,bk->bqk", "qdh,dkh->qk", "qd,dk->qkd", "qq,qk->qk", "bqd,dk->qk", "qd->dq"])
def test_other_sums_stay(equation):
    names = ["x", "w"][: equation.count(",") + 1]
    inputs = dict(zip(names, map(shape, equation.split("->")[0].split(",")), strict=True))
    if equation == "qq,qk->qk":
        inputs["x"] = [4, 4]
    proto = make([node("Einsum", " ".join(names), "y", equation=equation)], inputs, {"y": None})
    done = check(EinsumToMatMul(), proto, {name: np.ones(dims, np.float32) for name, dims in inputs.items()})
    assert done.ops == ["Einsum"]
    assert equation in done.why
