from __future__ import annotations

import numpy as np
import pytest

from detent.prepare import FuseLayerNorm
from tests.prepare.equivalence import check, f32, make, node
from tests.prepare.normal_forms import SPELLINGS, normalization


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_one_node(opset, spelling):
    proto = normalization(("N", 5, 8), [-1], f32(8), f32(8, seed=1), opset, spelling)
    done = check(FuseLayerNorm(), proto)
    assert done.ops == ["LayerNormalization"]
    assert done.named("LayerNormalization").name == "last"
    assert done.attributes("LayerNormalization") == {"axis": -1, "epsilon": pytest.approx(1e-3)}
    np.testing.assert_array_equal(done.constants["last/scale"], f32(8))


@pytest.mark.parametrize(
    ("shape", "axes", "scale", "shift"),
    [
        ((2, 5, 8), [2], f32(1, 1, 8), f32(8)),
        ((2, 5, 8), [-1], None, None),
        ((2, 5, 8), [-1], f32(8), None),
        ((2, 5, 8), [-1], None, f32(8)),
        ((2, 5, 8), [-1], f32(), f32(1)),
        ((2, 3, 4, 5), [-2, -1], f32(4, 5), f32(5)),
        ((2, 3, 4, 5), [3, 2], f32(1, 1, 4, 5), f32(4, 1)),
    ],
)
def test_shapes_of_scale_and_shift(shape, axes, scale, shift):
    done = check(FuseLayerNorm(), normalization(shape, axes, scale, shift))
    assert done.ops == ["LayerNormalization"]
    sizes = shape[-len(axes) :]
    assert {array.shape for array in done.constants.values()} == {sizes}
    assert len(done.constants) == 1 + (shift is not None)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (normalization((2, 3, 4, 5), [1], f32(3, 1, 1)), "not the last ones"),
        (normalization((2, 3, 4, 5), [1, 3]), "not the last ones"),
        (normalization((2, 5, 8), [-1], f32(5, 1)), "does not lie along"),
        (normalization((2, 5, 8), [-1], f32(8), f32(2, 1, 8)), "does not lie along"),
        (normalization((2, 5, "H"), [-1]), "sizes of the last 1 axes"),
        (normalization((2, 5, 8), [-1], f32(8), f32(8), tap="d"), "'d', a value inside"),
        (normalization((2, 5, 8), [-1], f32(8), f32(8), tap="s"), "'s', a value inside"),
    ],
)
def test_declines(proto, reason):
    done = check(FuseLayerNorm(), proto, exact=True)
    assert "LayerNormalization" not in done.ops
    assert reason in done.why


def test_the_size_may_be_known_from_the_scale():
    assert check(FuseLayerNorm(), normalization((2, 5, "H"), [-1], f32(8)), {"x": f32(2, 5, 8)}).ops == [
        "LayerNormalization"
    ]


def test_a_scaled_value_that_is_read_twice_keeps_its_shift():
    nodes = [*normalization((2, 8), [-1], f32(8)).graph.node, node("Add", "y c", "z"), node("Relu", "y", "w")]
    constants = {"eps": np.float32(1e-3), "two": np.float32(2), "scale": f32(8), "c": f32(8)}
    done = check(FuseLayerNorm(), make(nodes, {"x": [2, 8]}, {"z": None, "w": None}, constants))
    assert done.ops == ["LayerNormalization", "Add", "Relu"]


def test_what_is_no_normalization():
    # The mean of another value is subtracted, and the variance is over another axis.
    nodes = list(normalization((4, 4), [-1], f32(4)).graph.node)
    nodes[1].input[0] = "other"
    constants = {"eps": np.float32(1e-3), "two": np.float32(2), "scale": f32(4)}
    proto = make(nodes, {"x": [4, 4], "other": [4, 4]}, {"y": None}, constants)
    assert "LayerNormalization" not in check(FuseLayerNorm(), proto, exact=True).ops
    nodes = list(normalization((4, 4), [-1], f32(4)).graph.node)
    nodes[3].attribute[0].ints[:] = [0]
    proto = make(nodes, {"x": [4, 4]}, {"y": None}, constants)
    assert "LayerNormalization" not in check(FuseLayerNorm(), proto, exact=True).ops


def test_the_deviation_of_another_value_is_no_normalization():
    nodes = [
        node("ReduceMean", "x", "m", axes=[-1]),
        node("Sub", "x m", "d"),
        node("ReduceMean", "other", "o", axes=[-1]),
        node("Sub", "other o", "e"),
        node("Mul", "e e", "q"),
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v eps", "ve"),
        node("Sqrt", "ve", "s"),
        node("Div", "d s", "y"),
    ]
    proto = make(nodes, {"x": [4, 4], "other": [4, 4]}, {"y": None}, {"eps": np.float32(1e-3)})
    assert "LayerNormalization" not in check(FuseLayerNorm(), proto, exact=True).ops
