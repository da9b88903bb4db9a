from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from detent.prepare import FoldAffine
from detent.prepare.affine import Affine, Layer, fold_after, fold_before, read_layer
from tests.prepare.equivalence import f32, make, node


def layer_of(weight, **attributes):
    op = attributes.pop("op", "Conv")
    shape = [1, 4] if weight.ndim == 2 else [1, 4, *[5] * (weight.ndim - 2)]
    model = ir.from_proto(
        make([node(op, "x w", "y", name="n", **attributes)], {"x": shape}, {"y": None}, {"w": weight})
    )
    return model, next(iter(model.graph))


@pytest.mark.parametrize(
    ("op", "weight", "attributes", "channels"),
    [
        ("Conv", f32(6, 2, 3, 3), {"group": 2}, (4, 6)),
        ("ConvTranspose", f32(4, 3, 3, 3), {"group": 2}, (4, 6)),
        ("Gemm", f32(4, 6), {}, (4, 6)),
        ("Gemm", f32(6, 4), {"transB": 1}, (4, 6)),
        ("MatMul", f32(4, 6), {}, (4, 6)),
    ],
)
def test_channels_of_each_layout(op, weight, attributes, channels):
    layer = read_layer(layer_of(weight, op=op, **attributes)[1])
    assert isinstance(layer, Layer)
    assert (layer.inputs, layer.outputs) == channels


def test_wrong_number_of_factors_is_refused_and_nothing_is_written():
    model, item = layer_of(f32(6, 4, 3, 3))
    bad = Affine(np.ones(5), np.ones(5))
    assert "do not fit the 6 output" in str(fold_after(FoldAffine(), model, item, bad))
    assert "do not fit the 4 input" in str(fold_before(FoldAffine(), model, item, bad))
    assert list(model.graph.initializers) == ["w"]


def test_overflow_is_refused():
    model, item = layer_of(f32(6, 4, 3, 3))
    assert "finite" in str(fold_after(FoldAffine(), model, item, Affine(np.full(1, 1e300), np.zeros(1))))


def test_products_are_rounded_once():
    weight = f32(6, 4, 3, 3)
    model, item = layer_of(weight)
    scale = np.full(1, 1 / 3)
    assert fold_after(FoldAffine(), model, item, Affine(scale, np.zeros(1))) is None
    stored = model.graph.initializers["n/folded_weight"].const_value.numpy()
    np.testing.assert_array_equal(stored, (weight.astype(np.float64) / 3).astype(np.float32))
    assert len(item.inputs) == 2, "a shift of zero does not add a bias"
