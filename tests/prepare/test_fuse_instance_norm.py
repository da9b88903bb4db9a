from __future__ import annotations

import pytest

from detent.prepare import FuseInstanceNorm
from tests.prepare.equivalence import check, f32
from tests.prepare.normal_forms import SPELLINGS, normalization


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_one_node(opset, spelling):
    proto = normalization(("N", 3, 5, 4), [2, 3], f32(3, 1, 1), f32(1, 3, 1, 1, seed=1), opset, spelling)
    done = check(FuseInstanceNorm(), proto)
    assert done.ops == ["InstanceNormalization"]
    assert done.attributes("InstanceNormalization") == {"epsilon": pytest.approx(1e-3)}


@pytest.mark.parametrize(
    ("shape", "axes", "scale", "shift"),
    [
        ((2, 3, 4, 5), [-1, -2], None, None),
        ((2, 3, 4, 5), [2, 3], f32(), f32(1)),
        ((2, 3, 4, 5), [2, 3], None, f32(3, 1, 1)),
        ((2, 3, 7), [2], f32(3, 1), None),
        ((2, 3, 4, 2, 3), [2, 3, 4], f32(3, 1, 1, 1), f32(3, 1, 1, 1)),
    ],
)
def test_shapes_of_scale_and_shift(shape, axes, scale, shift):
    done = check(FuseInstanceNorm(), normalization(shape, axes, scale, shift))
    assert done.ops == ["InstanceNormalization"]
    assert [array.shape for array in done.constants.values()] == [(3,), (3,)]


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (normalization((2, "C", 4, 5), [2, 3]), "channels"),
        (normalization((2, 3, 4, 5), [2, 3], tap="v"), "'v', a value inside"),
    ],
)
def test_declines(proto, reason):
    done = check(FuseInstanceNorm(), proto, {"x": f32(2, 3, 4, 5)}, exact=True)
    assert "InstanceNormalization" not in done.ops
    assert reason in done.why


@pytest.mark.parametrize(
    "proto",
    [
        normalization((2, 3, 7), [2]),
        normalization((2, 3, 7), [2], f32(7)),
        normalization((2, 3, 4, 5), [3], f32(5)),
        normalization((2, 3, 4, 5), [1]),
        normalization((2, 3, 4, 5), [2, 3], f32(4, 5)),
    ],
)
def test_layer_normalizations_are_left_alone(proto):
    done = check(FuseInstanceNorm(), proto, exact=True)
    assert "InstanceNormalization" not in done.ops
    assert not done.why
