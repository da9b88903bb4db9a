from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import detent
from detent.execute.segments import Program
from detent.graph.load import load
from detent.graph.values import constant
from tests.models import build, info, node, normal, run


def looping():
    """A Conv, and a Loop that starts from a constant which its body reads by name as well."""
    body = helper.make_graph(
        [node("Add", "sum start", "more"), node("Identity", "again", "going")],
        "body",
        [info("i", [], TensorProto.INT64), info("again", [], TensorProto.BOOL), info("sum", [1])],
        [info("going", [], TensorProto.BOOL), info("more", [1])],
    )
    return build(
        [
            node("Conv", "x w", "c"),
            node("Loop", "times true start", "total", name="loop", body=body),
            node("Mul", "c total", "y"),
        ],
        [info("y", [1, 4, 8, 8])],
        {
            "w": normal(4, 3, 1, 1),
            "times": np.array(3, np.int64),
            "true": np.array(True),
            "start": np.array([0.5], np.float32),
        },
    )


def test_a_constant_that_a_loop_captures_and_has_as_an_input():
    model = load(looping())
    (loop,) = [each for each in model.graph if each.op_type == "Loop"]
    program = Program(model, [loop], loop.outputs, {}, lambda node, index: constant(node.inputs[index]))
    np.testing.assert_array_equal(program({}, "a sample")[0], [2.0])


def test_a_model_with_such_a_loop_is_quantized():
    data = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(4)]
    report = detent.quantize(looping(), None, data)
    found, expected = (run(proto, data[0])["y"] for proto in (report.model, looping()))
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
