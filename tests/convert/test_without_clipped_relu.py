from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.convert.quantizing_nodes import WithoutClippedRelu
from detent.convert.step import ConversionNotes
from detent.graph.load import load
from tests.models import build, info, node, normal, run


@pytest.mark.parametrize(
    ("zero", "more", "left"),
    [(np.uint8(0), [], 0), (np.int8(-128), [], 0), (np.uint8(3), [], 1), (np.uint8(0), [node("Neg", "r", "z")], 1)],
)
def test_a_relu_goes_where_rounding_clips_as_it_did(zero, more, left):
    nodes = [
        *(node("Relu", "x", "r"), node("QuantizeLinear", "r s zero", "q"), node("DequantizeLinear", "q s zero", "y")),
        *more,
    ]
    proto = build(nodes, "y z" if more else "y", {"s": np.float32(0.05), "zero": zero}, [info("x", (4, 8))])
    made = ir.to_proto(WithoutClippedRelu().apply(load(proto), ConversionNotes("")))
    assert [each.op_type for each in made.graph.node].count("Relu") == left
    feeds = {"x": 3 * normal(4, 8)}
    np.testing.assert_array_equal(run(made, feeds)["y"], run(proto, feeds)["y"])
