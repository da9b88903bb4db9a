"""Pairs of QuantizeLinear and DequantizeLinear: which operator, which attributes, which types."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.graph.values import Names
from detent.numerics.floats import FloatFormat, FloatParams
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.qdq.builder import GraphWriter, PairWriter
from detent.qdq.families import EXTENDED, VITIS
from tests.models import as_ir, build, node


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
