"""Rows times the weight matrix are the layer, for every geometry."""

from __future__ import annotations

import numpy as np
import pytest

from detent.graph.values import constant
from detent.refine.layers import (
    MatrixLayer,
    gather,
    input_indices,
    positions_inside,
    sample_positions,
    take_rows,
    why_no_rows,
)
from tests.models import as_ir, build, info, node, normal, run

CONVS = {
    "plain": ((5, 3, 3, 3), {}),
    "strides, pads and dilations": ((5, 3, 3, 2), {"strides": [2, 1], "pads": [1, 0, 2, 3], "dilations": [1, 2]}),
    "depthwise": ((3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "depthwise with two channels a group": ((6, 1, 3, 3), {"group": 3, "strides": [2, 2]}),
    "pointwise": ((7, 3, 1, 1), {}),
    "same, odd padding at the end": ((2, 3, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    "same, odd padding at the start": ((2, 3, 4, 3), {"auto_pad": "SAME_LOWER"}),
    "valid": ((2, 3, 2, 2), {"auto_pad": "VALID", "strides": [3, 2]}),
}
TRANSPOSED = {
    "plain": ((3, 4, 3, 3), {}),
    "strides and pads": ((3, 4, 4, 3), {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}),
    "dilations": ((3, 4, 2, 2), {"dilations": [2, 3], "strides": [2, 2]}),
    "groups": ((6, 2, 3, 3), {"group": 3, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
}


def layer_of(op, weight, inputs=None, attributes=None, bias=None):
    proto = build(
        [node(op, "x w b" if bias is not None else "x w", "y", **(attributes or {}))],
        "y",
        {"w": weight} | ({} if bias is None else {"b": bias}),
        inputs=[info("x", inputs)],
    )
    model = as_ir(proto)
    one = next(iter(model.graph))
    return proto, MatrixLayer(one, one.inputs[1], one.inputs[2] if bias is not None else None)


def assert_rows_give_the_output(op, weight, shape, attributes, wanted=1000):
    proto, layer = layer_of(op, weight, shape, attributes)
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    values = (x.astype(np.float32) - 100) * 0.25
    output = run(proto, {"x": values})["y"]
    maps = layer.maps(output)
    positions = sample_positions(maps.shape[0] * maps.shape[2], wanted, [1])
    image, indices = input_indices(layer, x.shape, output.shape, positions)
    matrix = layer.matrix()
    assert layer.shape == matrix.shape
    rows = np.empty((layer.groups, len(positions), matrix.shape[2]), np.float32)
    gather(layer.maps(x), np.float32(0.25), np.float32(100), image, indices, rows, 0)
    found = np.matmul(rows, matrix.transpose(0, 2, 1)).transpose(1, 0, 2).reshape(len(positions), -1)
    np.testing.assert_allclose(found, take_rows(maps, positions), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(layer.tensor(matrix), constant(layer.weight))
    return len(positions)


@pytest.mark.parametrize("case", CONVS)
def test_conv(case):
    shape, attributes = CONVS[case]
    assert_rows_give_the_output("Conv", normal(*shape), (2, 3, 9, 8), attributes)


@pytest.mark.parametrize("case", TRANSPOSED)
def test_conv_transpose(case):
    shape, attributes = TRANSPOSED[case]
    assert_rows_give_the_output("ConvTranspose", normal(*shape), (2, shape[0], 4, 5), attributes)


def test_one_and_three_dimensions():
    assert_rows_give_the_output("Conv", normal(4, 3, 3), (2, 3, 9), {"pads": [1, 2], "strides": [2]})
    assert_rows_give_the_output("Conv", normal(4, 3, 2, 3, 1), (1, 3, 4, 5, 3), {"strides": [1, 2, 1]})


def test_products():
    assert_rows_give_the_output("Gemm", normal(6, 4), (3, 6), {})
    assert_rows_give_the_output("Gemm", normal(4, 6), (3, 6), {"transB": 1})
    assert_rows_give_the_output("MatMul", normal(6, 4), (2, 5, 6), {})


def test_some_of_the_positions():
    assert assert_rows_give_the_output("Conv", normal(5, 3, 3, 3), (2, 3, 9, 8), {"pads": [1] * 4}, wanted=20) == 20


def test_positions_are_seeded_and_differ_between_layers_and_samples():
    first = sample_positions(100, 10, [1, 0, 0])
    np.testing.assert_array_equal(first, sample_positions(100, 10, [1, 0, 0]))
    assert len(set(first.tolist())) == 10
    assert not np.array_equal(first, sample_positions(100, 10, [1, 0, 1]))
    assert not np.array_equal(first, sample_positions(100, 10, [1, 1, 0]))
    np.testing.assert_array_equal(sample_positions(5, 10, [1]), np.arange(5))


def test_automatic_padding_of_a_transposed_convolution_is_declined():
    _, layer = layer_of("ConvTranspose", normal(3, 4, 3, 3), (1, 3, 4, 4), {"auto_pad": "SAME_UPPER"})
    assert "automatic padding" in why_no_rows(layer)


def test_half_of_the_positions_are_where_objects_are():
    """Two images of 4 x 8 positions: the first has an object in its left upper quarter, the second none."""
    boxes = [np.array([[0.0, 0.0, 0.5, 0.5]]), np.zeros((0, 4))]
    hot = positions_inside(boxes, (2, 3, 4, 8))
    np.testing.assert_array_equal(hot, [0, 1, 2, 3, 8, 9, 10, 11])
    drawn = sample_positions(64, 12, [1], hot)
    assert len(set(drawn.tolist())) == 12 and np.isin(drawn, hot).sum() >= 6
    np.testing.assert_array_equal(drawn, sample_positions(64, 12, [1], hot))
    assert set(hot.tolist()) <= set(sample_positions(64, 40, [1], hot).tolist())
    np.testing.assert_array_equal(sample_positions(64, 12, [1], hot[:0]), sample_positions(64, 12, [1]))
    assert positions_inside(boxes, (2, 3, 4)) is None and positions_inside([], (2, 3, 4, 8)) is None
    np.testing.assert_array_equal(positions_inside([np.array([[-1.0, 0.9, 2.0, 3.0]])], (1, 1, 4, 2)), [6, 7])
