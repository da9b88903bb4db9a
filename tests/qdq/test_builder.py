"""Pairs of QuantizeLinear and DequantizeLinear: which operator, which attributes, which types."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx_ir as ir
import pytest

from detent.graph.values import Names
from detent.numerics.blocks import BlockFloat, BlockParams, Microscaling
from detent.numerics.floats import FloatFormat, FloatParams
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.qdq.builder import BlockWriter, CastWriter, FixNeuronWriter, GraphWriter, PairWriter
from detent.qdq.families import EXTENDED, FIX_NEURON, VITIS
from detent.recipe.recipe import PRESETS
from tests.emit.forms import emitted
from tests.models import IMAGE, as_ir, build, node, values_of


def graph_writer(opset=17):
    model = as_ir(build([node("Relu", "x", "y")], "y", opset=opset))
    return GraphWriter(model.graph, Names(model)), model.graph.inputs[0]


def written(params, family=None, opset=17):
    stage, x = graph_writer(opset)
    return PairWriter(stage, family).activation("x", x, params)


@pytest.mark.parametrize(
    ("dtype", "opset", "domain"),
    [
        ("int8", 17, ""),
        ("uint8", 21, ""),
        ("int16", 17, "com.microsoft"),
        ("uint16", 20, "com.microsoft"),
        ("int16", 21, ""),
        ("int4", 17, "com.microsoft"),
        ("uint4", 21, ""),
    ],
)
def test_the_domain_that_holds_the_type(dtype, opset, domain):
    nodes = written(IntegerFormat(dtype).fit(-1.0, 1.0), opset=opset)
    assert [(one.domain, one.op_type) for one in nodes] == [(domain, "QuantizeLinear"), (domain, "DequantizeLinear")]
    assert nodes[0].outputs[0].dtype.name.lower() == dtype
    assert nodes[1].inputs[0] is nodes[0].outputs[0]
    assert nodes[0].inputs[1:] == nodes[1].inputs[1:]


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (EXTENDED, ["ExtendedQuantizeLinear", "ExtendedDequantizeLinear"]),
        (VITIS, ["VitisQuantizeLinear", "VitisDequantizeLinear"]),
    ],
)
@pytest.mark.parametrize("params", [IntegerFormat("int16").fit(-1, 1), FloatParams(FloatFormat("bfloat16"))])
def test_operators_of_an_npu(family, names, params):
    nodes = written(params, family)
    assert [one.op_type for one in nodes] == names and {one.domain for one in nodes} == {family.domain}


def test_a_scale_for_each_channel_has_an_axis():
    stage, _ = graph_writer()
    fmt = IntegerFormat("int8", granularity="per_channel")
    array = np.array([[1.0, -2.0], [0.5, 4.0], [0.0, 0.0]], np.float32)
    for axis in (0, -2):
        params = QuantParams(fmt, np.array([0.5, 1.0, 2.0]), np.zeros(3, np.int64), axis)
        (one,) = PairWriter(stage).constant("w", array, params)
        assert one.attributes.get_int("axis") == 0 and "block_size" not in one.attributes
        np.testing.assert_array_equal(one.inputs[0].const_value.numpy(), [[2, -4], [0, 4], [0, 0]])
        assert one.inputs[1].const_value.numpy().dtype == np.float32


def test_a_scale_for_each_group_has_a_block_size():
    stage, _ = graph_writer(opset=21)
    fmt = IntegerFormat("int4", granularity="per_group:2")
    params = QuantParams(fmt, np.array([[1.0, 2.0]]), np.zeros((1, 2), np.int64), axis=1, block=2)
    (one,) = PairWriter(stage).constant("w", np.array([[1, 2, 4]], np.float32), params)
    assert (one.attributes.get_int("axis"), one.attributes.get_int("block_size")) == (1, 2)
    assert one.inputs[0].dtype == ir.DataType.INT4
    np.testing.assert_array_equal(one.inputs[0].const_value.numpy().astype(int), [[1, 2, 2]])


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


def attributes(one):
    return {name: attribute.value for name, attribute in one.attributes.items()}


@pytest.mark.parametrize(
    ("fmt", "name", "expected"),
    [
        (
            BlockFloat(),
            "BFPQuantizeDequantize",
            {"bfp_method": "to_bfp", "bit_width": 16, "axis": 1, "block_size": 8, "rounding_mode": 2},
        ),
        (
            BlockFloat(13, 16, 2, rounding="half_away"),
            "BFPQuantizeDequantize",
            {
                **{"bfp_method": "to_bfp_prime", "bit_width": 13, "axis": 1, "block_size": 16, "rounding_mode": 0},
                **{"sub_block_size": 2, "sub_block_shift_bits": 1},
            },
        ),
        (
            Microscaling("fp6_e3m2"),
            "MXQuantizeDequantize",
            {"element_dtype": "fp6_e3m2", "axis": 1, "block_size": 32, "rounding_mode": 2},
        ),
    ],
)
def test_block_formats(fmt, name, expected):
    stage, x = graph_writer()
    (one,) = BlockWriter(stage, EXTENDED).activation("x", x, BlockParams(fmt, 1))
    assert (one.domain, one.op_type, attributes(one)) == (EXTENDED.domain, name, expected)
    (older,) = BlockWriter(stage, VITIS).activation("x", x, BlockParams(fmt, 1))
    twin = {"BFPQuantizeDequantize": "BFPFixNeuron", "MXQuantizeDequantize": "MXFixNeuron"}[name]
    assert (older.domain, older.op_type, attributes(older)) == (VITIS.domain, twin, expected)


def test_a_constant_in_a_block_format_is_rounded_once():
    # -127.7/64 becomes -128/64 = -2, and with -2 in it the block would have a step of 1/32.
    array = np.array([[-127.7 / 64, 1 / 64]], np.float32)
    params = BlockParams(Microscaling("int8"), 1)
    assert params.snap(array)[0, 0] == -2.0 and params.snap(params.snap(array))[0, 1] != params.snap(array)[0, 1]
    stage, _ = graph_writer()
    (one,) = BlockWriter(stage, EXTENDED).constant("w", array, params)
    np.testing.assert_array_equal(one.inputs[0].const_value.numpy(), array)


@pytest.mark.parametrize(("dtype", "bits"), [("int8", "8"), ("int16", "16")])
def test_fix_neurons(dtype, bits):
    stage, x = graph_writer()
    params = QuantParams.at(IntegerFormat(dtype, scale="power_of_two"), 5)
    (one,) = FixNeuronWriter(stage).activation("x", x, params)
    assert (one.domain, one.op_type) == (FIX_NEURON.domain, FIX_NEURON.fix_neuron)
    assert attributes(one) == {"bit_width": bits, "pos": "5"}
    assert one.inputs[1].const_value.numpy() == 1 / 32
    assert one.inputs[2].const_value.numpy().dtype == np.dtype(dtype)
    (stored,) = FixNeuronWriter(stage).constant("w", np.array([0.3, -0.01], np.float32), params)
    np.testing.assert_array_equal(stored.inputs[0].const_value.numpy(), [10 / 32, 0])
