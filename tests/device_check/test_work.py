from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from detent.device_check.partition import macs_of
from tests.models import as_ir, build, info, node, normal


def macs(made, **constants):
    inputs = constants.pop("inputs", (info("x", (1, 3, 8, 8)),))
    model = as_ir(build([made], "y", constants, inputs))
    return macs_of(next(iter(model.graph)))


@pytest.mark.parametrize(
    ("made", "weight", "expected"),
    [
        (node("Conv", "x w", "y"), normal(4, 3, 3, 3), 4 * 6 * 6 * 3 * 9),
        (node("Conv", "x w", "y", group=3), normal(3, 1, 3, 3), 3 * 6 * 6 * 9),
        (node("ConvTranspose", "x w", "y", strides=[2, 2]), normal(3, 5, 2, 2), 3 * 8 * 8 * 5 * 4),
    ],
)
def test_convolutions(made, weight, expected):
    assert macs(made, w=weight) == expected


def test_products():
    two = (info("x", (2, 7)),)
    assert macs(node("MatMul", "x w", "y"), w=normal(7, 5), inputs=two) == 2 * 5 * 7
    assert macs(node("Gemm", "x w", "y", transA=1), w=normal(2, 5), inputs=two) == 7 * 5 * 2


def test_others_multiply_nothing():
    assert macs(node("Relu", "x", "y")) == 0
    assert macs(node("Mul", "x w", "y"), w=np.float32(2)) == 0


def test_an_open_batch_counts_as_one_and_an_open_width_as_unknown():
    weight = normal(4, 3, 1, 1)
    assert macs(node("Conv", "x w", "y"), w=weight, inputs=(info("x", ("N", 3, 8, 8)),)) == 4 * 64 * 3
    assert macs(node("Conv", "x w", "y"), w=weight, inputs=(info("x", (1, 3, 8, "W")),)) is None


def test_the_branch_with_more_work_counts_and_a_loop_is_unknown():
    def body(op, made):
        inputs = [] if op == "If" else [info("i", (), TensorProto.INT64), info("on", (), TensorProto.BOOL)]
        kept = [] if op == "If" else [node("Identity", "on", "more")]
        outputs = [] if op == "If" else [info("more", (), TensorProto.BOOL)]
        return helper.make_graph([*kept, made], "body", inputs, [*outputs, info("r", (1, 4, 8, 8))])

    conv, relu = node("Conv", "x w", "r"), node("Relu", "z", "r")
    constants = {"w": normal(4, 3, 1, 1), "z": normal(1, 4, 8, 8), "c": np.array(True), "n": np.int64(2)}
    chosen = node("If", "c", "y", then_branch=body("If", conv), else_branch=body("If", relu))
    assert macs(chosen, **constants) == 4 * 64 * 3
    assert macs(node("Loop", "n _", "y", body=body("Loop", conv)), **constants) is None


def test_recurrent_layers_and_einsum_are_work():
    steps = (info("x", (5, 2, 3)),)
    assert macs(node("LSTM", "x w r", "y", hidden_size=4), w=normal(1, 16, 3), r=normal(1, 16, 4), inputs=steps) == 1120
    assert macs(node("Einsum", "x w", "y", equation="abc,cd->abd"), w=normal(3, 7), inputs=steps) == 5 * 2 * 3 * 7
