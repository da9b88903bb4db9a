"""Rounding a layer as a matrix, whole or in parts, is rounding its weight as a tensor."""

from __future__ import annotations

import numpy as np
import pytest

from detent.numerics import BLOCK_FORMATS
from detent.numerics.blocks import BlockFloat, BlockParams
from detent.numerics.floats import FloatFormat, FloatParams
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.recipe.file import find_recipe
from detent.refine.layers import find_layers
from detent.refine.problems import weight_rounder
from detent.refinements.layer_problem import BiasRounder, StepRounder, stored_bias
from tests.models import build, info, node, normal, planned

KINDS = {
    "conv": ("Conv", (5, 20, 3, 2), (1, 20, 4, 4), {}),
    "grouped": ("Conv", (6, 10, 2, 2), (1, 20, 4, 4), {"group": 2}),
    "depthwise": ("Conv", (20, 1, 3, 3), (1, 20, 4, 4), {"group": 20}),
    "transposed": ("ConvTranspose", (20, 3, 2, 2), (1, 20, 4, 4), {}),
    "gemm": ("Gemm", (20, 5), (4, 20), {}),
    "gemm_b": ("Gemm", (5, 20), (4, 20), {"transB": 1}),
    "matmul": ("MatMul", (20, 5), (4, 20), {}),
}
FORMATS = {
    "bfloat16": FloatFormat("bfloat16"),
    "float8": FloatFormat("float8_e4m3", scaled=True),
    "groups": IntegerFormat("int4", granularity="per_group:8"),
    "zero points": IntegerFormat("uint4", symmetric=False, granularity="per_channel"),
    **{name: BLOCK_FORMATS[name] for name in ("BFP16", "MX6", "MXINT8", "MXFP4E2M1")},
}


def layer_of(kind, weights, recipe="BF16"):
    op_type, shape, source, attributes = KINDS[kind]
    proto = build(
        [node(op_type, "x w", "y", **attributes)], "y", {"w": normal(*shape, seed=4)}, inputs=[info("x", source)]
    )
    model, plan = planned(proto, {"x": normal(*source)}, recipe=find_recipe(recipe).replace(weights=weights))
    return find_layers(model, plan.layout)[0].popitem()[1], plan.of("w")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_the_matrix_is_rounded_as_the_tensor_is(kind, name):
    layer, params = layer_of(kind, FORMATS[name])
    rounder, matrix = weight_rounder(layer, params), layer.matrix()
    rounded = rounder.round(matrix)
    np.testing.assert_array_equal(layer.tensor(rounded), params.stored(layer.tensor(matrix)))
    assert not np.array_equal(rounded, matrix)
    for where in ((slice(0, 1), slice(None)), (slice(None), slice(-2, None)), (slice(-1, None), slice(0, 2))):
        np.testing.assert_array_equal(rounder.part(where).round(matrix[where]), rounded[where])
        np.testing.assert_array_equal(rounder.part(where).passes(matrix[where]), rounder.passes(matrix)[where])
    clipped = params.clipped(layer.tensor(3 * matrix))
    np.testing.assert_array_equal(layer.tensor(rounder.passes(3 * matrix)) == 0, clipped)


def test_steps_by_hand():
    rounder = StepRounder(np.array([[[0.5, 2.0]]]), np.array([[[-2.0, 0.0]]]), np.array([[[1.0, 3.0]]]))
    assert rounder.round(np.array([[[-3.0, 3.5]]])).tolist() == [[[-1.0, 4.0]]]
    assert rounder.passes(np.array([[[-3.0, 3.5]]])).tolist() == [[[False, True]]]
    assert rounder.passes(np.array([[[0.7, -1.5]]])).tolist() == [[[True, False]]]


def test_biases_of_a_part_keep_the_blocks_of_the_whole():
    """Four codes for a block: 4 makes the step 2, so that the 0.6 beside it is lost; alone it is 0.5."""
    params = BlockParams(BlockFloat(bit_width=11, block_size=4), -1)
    whole = np.array([[4.0, 0.6, 0.6, 0.6, 0.6, 0.6]])
    assert stored_bias(whole, params).tolist() == [[4, 0, 0, 0, 0.5, 0.5]]
    rounder = BiasRounder(params, whole)
    where = (slice(None), slice(2, 5))
    own = whole[where][..., None]
    assert rounder.part(where).round(own).tolist() == [[[0], [0], [0.5]]]
    assert rounder.part(where).round(4 * own).tolist() == [[[2], [2], [2]]]
    assert rounder.part(where).passes(own).all()


def test_a_float_bias_is_kept_as_float32():
    rounder = BiasRounder(None, np.array([[0.1, 1e9]]))
    np.testing.assert_array_equal(rounder.round(np.array([[[0.1], [1e9]]])), [[[np.float32(0.1)], [1e9]]])
    assert rounder.passes(np.array([[[0.1], [1e9]]])).all()


def test_a_bias_that_saturates_does_not_pass():
    rounder = BiasRounder(FloatParams(FloatFormat("float8_e4m3")), np.array([[1.0, 2.0]]))
    assert rounder.passes(np.array([[[447.0], [-500.0]]])).tolist() == [[[True], [False]]]
    integers = BiasRounder(QuantParams.at(IntegerFormat("int8", scale="power_of_two"), 4), np.array([[1.0, 2.0]]))
    assert integers.round(np.array([[[0.1], [9.0]]])).tolist() == [[[0.125], [127 / 16]]]
