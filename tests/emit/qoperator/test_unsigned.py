from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from detent.emit.qoperator import UnsignedCodes
from tests.emit.qoperator.forms import FEEDS, RECIPES, S8, U8, assert_same, forms, forms_of
from tests.models import SMALL_MODELS, build, node, run


def unsigned(proto):
    model = ir.from_proto(proto)
    rewrite = UnsignedCodes()
    rewrite(model)
    result = ir.to_proto(model)
    onnx.checker.check_model(result, full_check=True)
    return result, rewrite


@pytest.mark.parametrize("scheme", [S8, RECIPES["s8-asymmetric-channels"]])
@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_the_model_computes_the_same(maker, scheme):
    before = forms(maker(), scheme).qdq
    after, rewrite = unsigned(before)
    assert len(rewrite.changes) == sum(one.op_type == "QuantizeLinear" for one in before.graph.node)
    assert np.array_equal(run(before, FEEDS)["y"], run(after, FEEDS)["y"])
    both = forms_of(after)
    assert {held.data_type for held in both.integer.graph.initializer if "zero_point" in held.name} >= {
        TensorProto.UINT8
    }
    assert_same(both, ties=0.02)


def test_a_zero_point_moves_by_128():
    after, _ = unsigned(forms(build([node("Sigmoid", "x", "y")], "y"), S8).qdq)
    held = {one.name: onnx.numpy_helper.to_array(one) for one in after.graph.initializer}
    points = {name: array for name, array in held.items() if "zero_point" in name}
    assert [(int(array), array.dtype) for array in points.values()] == [(128, np.uint8)] * 2


def test_unsigned_codes_stay():
    before = forms(SMALL_MODELS["residual"](), U8).qdq
    after, rewrite = unsigned(before)
    assert rewrite.changes == rewrite.declined == [] and after == ir.to_proto(ir.from_proto(before))


def test_codes_that_somebody_else_reads_are_declined():
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    after, rewrite = unsigned(build(nodes, "y q", {"s": np.float32(0.1), "z": np.int8(3)}))
    assert "not only dequantized" in rewrite.declined[0].what and rewrite.changes == []
    assert run(after, FEEDS)["q"].dtype == np.int8
