from __future__ import annotations

import pytest

from detent.plan.operators import channel_axis, summed_axis
from tests.models import as_ir, build, info, node, normal

CASES = {
    # node, input, weight, bias: channels of w; summed axis of x, w, y
    "Conv": (node("Conv", "x w b", "y"), (1, 3, 8, 8), (4, 3, 3, 3), (4,), 0, (1, 1, 1)),
    "depthwise Conv": (node("Conv", "x w b", "y", group=3), (1, 3, 8, 8), (3, 1, 3, 3), (3,), 0, (1, 1, 1)),
    "Conv of one dimension": (node("Conv", "x w", "y"), (1, 3, 8), (4, 3, 3), None, 0, (1, 1, 1)),
    "ConvTranspose": (node("ConvTranspose", "x w", "y"), (1, 3, 8, 8), (3, 4, 2, 2), None, 1, (1, 0, 1)),
    "ConvTranspose in groups": (
        node("ConvTranspose", "x w", "y", group=3),
        (1, 3, 8, 8),
        (3, 4, 2, 2),
        None,
        None,
        (1, 0, 1),
    ),
    "Gemm": (node("Gemm", "x w b", "y"), (5, 8), (8, 6), (6,), 1, (1, 0, 1)),
    "Gemm transB": (node("Gemm", "x w b", "y", transB=1), (5, 8), (6, 8), (6,), 0, (1, 1, 1)),
    "Gemm transA": (node("Gemm", "x w", "y", transA=1), (8, 5), (8, 6), None, 1, (0, 0, 1)),
    "Gemm and a number": (node("Gemm", "x w b", "y"), (5, 8), (8, 6), (), None, (1, 0, 1)),
    "Gemm and a column": (node("Gemm", "x w b", "y"), (5, 8), (8, 6), (5, 1), None, (1, 0, 1)),
    "MatMul": (node("MatMul", "x w", "y"), (2, 5, 8), (8, 6), None, 1, (2, 0, 2)),
    "MatMul of batches": (node("MatMul", "x w", "y"), (2, 5, 8), (2, 8, 6), None, 2, (2, 1, 2)),
    "MatMul by a vector": (node("MatMul", "x w", "y"), (5, 8), (8,), None, None, (1, 0, 0)),
    "Mul": (node("Mul", "x w", "y"), (1, 3, 8, 8), (3, 1, 1), None, None, (1, 1, 1)),
    "Mul of vectors": (node("Mul", "x w", "y"), (8,), (8,), None, None, (0, 0, 0)),
}


@pytest.mark.parametrize("kind", CASES)
def test_axes(kind):
    one, size, shape, bias, channels, summed = CASES[kind]
    constants = {"w": normal(*shape)} | ({} if bias is None else {"b": normal(*bias)})
    model = as_ir(build([one], "y", constants, inputs=[info("x", size)]))
    layer = next(iter(model.graph))
    x, w = layer.inputs[:2]
    assert channel_axis(layer, w, layer.inputs[2] if bias is not None else None) == channels
    assert channel_axis(layer, x, None) is None
    assert (summed_axis(x), summed_axis(w), summed_axis(layer.outputs[0])) == summed
    if bias is not None:
        assert summed_axis(layer.inputs[2]) == (1 if len(bias) == 2 else 0)


@pytest.mark.parametrize(("axis", "expected"), [(-1, 3), (1, 1), (2, 2), (None, 3)])
def test_a_softmax_sums_along_its_axis(axis, expected):
    attributes = {} if axis is None else {"axis": axis}
    model = as_ir(build([node("Relu", "x", "r"), node("Softmax", "r", "y", **attributes)], "y"))
    assert summed_axis(next(iter(model.graph)).outputs[0]) == expected


def test_the_first_reader_that_settles_it_decides():
    nodes = [node("Relu", "x", "r"), node("Sigmoid", "r", "s"), node("MatMul", "w r", "a"), node("MatMul", "r v", "b")]
    constants = {"w": normal(5, 4), "v": normal(6, 3)}
    model = as_ir(build(nodes, "s a b", constants, inputs=[info("x", (4, 6))]))
    assert summed_axis(next(iter(model.graph)).outputs[0]) == 0
