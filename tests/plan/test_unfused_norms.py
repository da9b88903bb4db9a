from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import detent
from detent.plan.layout import REASON, find_unfused_norms
from tests.models import build, info, node, normal

CONSTANTS = {
    "two": np.float32(2),
    "eps": np.float32(1e-5),
    "one": np.float32(1),
    "minus": np.float32(-0.5),
    "axis": np.array([-1]),
    "ones": np.array([1, 1, 1]),
    "g": normal(16, seed=4),
}
SQUARES = [node("Pow", "x two", "s"), node("ReduceMean", "s", "m", axes=[-1]), node("Add", "m eps", "e")]
NORMS = {
    "div": [*SQUARES, node("Sqrt", "e", "r"), node("Div", "x r", "n")],
    "reciprocal": [*SQUARES, node("Sqrt", "e", "r"), node("Reciprocal", "r", "i"), node("Mul", "x i", "n")],
    "one over": [*SQUARES, node("Sqrt", "e", "r"), node("Div", "one r", "i"), node("Mul", "x i", "n")],
    "power": [*SQUARES, node("Pow", "e minus", "i"), node("Mul", "x i", "n")],
    "a variance as a difference": [
        *(node("Mul", "x x", "s"), node("ReduceMean", "s", "m2", axes=[-1]), node("ReduceMean", "x", "m", axes=[-1])),
        *(
            node("Mul", "m m", "mm"),
            node("Sub", "m2 mm", "v"),
            node("Expand", "v ones", "w"),
            node("Add", "w eps", "e"),
            node("Sqrt", "e", "r"),
        ),
        *(node("Reciprocal", "r", "i"), node("Mul", "i g", "ig"), node("Mul", "x ig", "n")),
    ],
    "products": [
        *(node("Mul", "x x", "s"), node("ReduceSum", "s axis", "m"), node("Sqrt", "m", "r")),
        *(node("Add", "r eps", "e"), node("Div", "x e", "n")),
    ],
}


def model(nodes):
    return build([*nodes, node("Mul", "n g", "y", name="scale")], "y", CONSTANTS, [info("x", [2, 4, 16])])


@pytest.mark.parametrize("form", NORMS)
def test_the_inside_of_a_norm_stays_float_and_its_ends_do_not(form):
    report = detent.quantize(model(NORMS[form]), None, [{"x": normal(2, 4, 16, seed=i)} for i in range(3)], "A8W8")
    left = {each.node for each in report.nodes if not each.quantized}
    assert left == {each.name for each in NORMS[form]}
    assert {each.reason for each in report.nodes if not each.quantized} == {REASON}
    quantized = {each.name for each in report.tensors}
    assert {"n", "y"} <= quantized
    assert not {"s", "m", "e", "r"} & quantized


def test_a_root_that_nothing_is_divided_by():
    nodes = [*SQUARES, node("Sqrt", "e", "n")]
    assert not find_unfused_norms(ir.from_proto(model(nodes)).graph)
