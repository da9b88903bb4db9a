"""Small floats as Casts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx_ir as ir
import pytest

from detent.numerics.floats import FloatFormat, FloatParams
from detent.qdq.builder import CastWriter
from detent.recipe.presets import PRESETS
from tests.emit.forms import emitted
from tests.models import IMAGE, build, node, values_of
from tests.qdq.test_pairs import graph_writer


@pytest.mark.parametrize(
    ("params", "names"),
    [
        (FloatParams(FloatFormat("bfloat16")), ["Cast", "Cast"]),
        (FloatParams(FloatFormat("float16", scaled=True), 0.5), ["Div", "Cast", "Cast", "Mul"]),
        (FloatParams(FloatFormat("float16", clip=True)), ["Clip", "Cast", "Cast"]),
        (FloatParams(FloatFormat("float16", scaled=True, clip=True), 3.0), ["Div", "Clip", "Cast", "Cast", "Mul"]),
        (FloatParams(FloatFormat("bfloat16", scaled=True), 1.0), ["Cast", "Cast"]),
    ],
)
def test_nodes(params, names):
    stage, x = graph_writer()
    nodes = CastWriter(stage).activation("x", x, params)
    assert [one.op_type for one in nodes] == names
    assert [one.attributes.get_int("to") for one in nodes if one.op_type == "Cast"] == [
        int(ir.DataType[params.format.dtype.upper()]),
        int(ir.DataType.FLOAT),
    ]
    for before, after in pairwise(nodes):
        assert after.inputs[0] is before.outputs[0]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_constants_are_stored_small(scale):
    stage, _ = graph_writer()
    fmt = FloatFormat("bfloat16", scaled=scale != 1.0)
    nodes = CastWriter(stage).constant("w", np.array([1.001, -2.0], np.float32), FloatParams(fmt, scale))
    assert [one.op_type for one in nodes] == ["Cast"] + ["Mul"] * (scale != 1.0)
    stored = nodes[0].inputs[0]
    assert stored.dtype == ir.DataType.BFLOAT16
    np.testing.assert_array_equal(stored.const_value.numpy().astype(np.float32), [1.0 / scale, -2.0 / scale])


def test_what_is_past_the_largest_number():
    x = np.zeros(IMAGE, np.float32)
    x[0, 0, 0, :4] = [70000.0, -70000.0, 1e30, 65519.0]
    proto = build([node("Sigmoid", "x", "y")], "y")
    for clip, expected in ((True, [65504.0, -65504.0, 65504.0, 65504.0]), (False, [np.inf, -np.inf, np.inf, 65504.0])):
        fmt = FloatFormat("float16", clip=clip)
        result, plan, rounded, _ = emitted(proto, PRESETS["FP16"].replace(activations=fmt), {"x": x})
        got = values_of(result, [rounded["x"]], {"x": x})[rounded["x"]]
        np.testing.assert_array_equal(got[0, 0, 0, :4], expected)
        np.testing.assert_array_equal(plan.of("x").snap(x), got)
    wide = FloatFormat("float16", scaled=True, clip=True)
    result, plan, rounded, _ = emitted(proto, PRESETS["FP16"].replace(activations=wide), {"x": x})
    got = values_of(result, [rounded["x"]], {"x": x})[rounded["x"]]
    np.testing.assert_array_equal(plan.of("x").snap(x), got)
    assert got[0, 0, 0, 2] == pytest.approx(1e30, rel=1e-3)
