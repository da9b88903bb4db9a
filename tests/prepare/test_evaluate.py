from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.prepare.constants import run_constants
from tests.prepare.equivalence import f32, make, node


def test_large_and_small_constants_and_several_results():
    nodes = [node("MatMul", "a b", "m"), node("Add", "m c", "n"), node("Sub", "x n", "y")]
    model = ir.from_proto(make(nodes, {"x": [1]}, {"y": None}, {"a": f32(64, 64), "b": f32(64, 2), "c": f32(2)}))
    product, total, _ = model.graph
    first, second = run_constants(model, [product, total], [product.outputs[0], total.outputs[0]])
    np.testing.assert_allclose(first, f32(64, 64) @ f32(64, 2), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, first + f32(2), rtol=1e-6)


def test_failure_is_one_line():
    model = ir.from_proto(make([node("Gather", "w i", "y")], {}, {"y": [None]}, {"w": f32(3), "i": np.array([9])}))
    (gather,) = model.graph
    reason = run_constants(model, [gather], list(gather.outputs))
    assert isinstance(reason, str)
    assert "\n" not in reason
