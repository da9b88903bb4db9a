"""What channels hold, against numpy on all values at once."""

from __future__ import annotations

import numpy as np
import pytest

from detent.equalizations.channel_problem import ChannelMoments
from detent.equalize.moments import observe_channels
from tests.equalize.networks import pending
from tests.models import as_ir, build, conv_relu_conv, info, node, normal, run, values_of

NAMES = ["c1", "r1", "x", "y"]


def all_values(proto, name, arrays):
    parts = [values_of(proto, [name], {"x": array})[name] for array in arrays]
    return np.concatenate([np.moveaxis(part, 1, 0).reshape(part.shape[1], -1) for part in parts], 1).astype(np.float64)


def batched(size):
    proto = conv_relu_conv()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    return proto


@pytest.mark.parametrize("batch", [1, 3])
def test_against_numpy(batch):
    proto = batched(batch)
    arrays = [normal(batch, 3, 8, 8, seed=seed) * (seed + 1) for seed in range(4)]
    found = observe_channels(as_ir(proto), NAMES, pending(*arrays))
    assert sorted(found) == NAMES
    for name, moments in found.items():
        values = all_values(proto, name, arrays)
        np.testing.assert_allclose(moments.minimum, values.min(1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(moments.maximum, values.max(1), rtol=1e-5)
        np.testing.assert_allclose(moments.mean, values.mean(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(moments.power, (values**2).mean(1), rtol=1e-5)
        np.testing.assert_allclose(moments.largest, np.abs(values).max(1), rtol=1e-5)
        assert moments.signal == pytest.approx(values.var(1).sum(), rel=1e-4)


def test_threads_do_not_matter():
    arrays = [normal(1, 3, 8, 8, seed=seed) for seed in range(9)]
    one, four = (observe_channels(as_ir(conv_relu_conv()), NAMES, pending(*arrays), threads) for threads in (1, 4))
    for name in NAMES:
        for part in ("minimum", "maximum", "mean", "power"):
            assert getattr(one[name], part).tobytes() == getattr(four[name], part).tobytes()


def test_inputs_alone_need_no_run():
    found = observe_channels(as_ir(conv_relu_conv()), ["x"], pending(np.full((1, 3, 8, 8), -2, np.float32)))
    assert found["x"].minimum.tolist() == found["x"].mean.tolist() == [-2, -2, -2]
    assert found["x"].maximum.tolist() == [-2, -2, -2]
    assert found["x"].largest.tolist() == [2, 2, 2]
    assert found["x"].signal == 12  # it does not vary: the squares


def test_rows_and_vectors():
    """Axis 1 of a matrix is that of channels; a vector has none and is left out."""
    nodes = [node("Relu", "x", "r"), node("ReduceSum", "r axes", "y", keepdims=0)]
    model = as_ir(build(nodes, "y", {"axes": np.array([1])}, [info("x", (2, 3))]))
    found = observe_channels(model, ["r", "y"], pending(np.array([[1, -2, 3], [5, 0, -1]], np.float32)))
    assert list(found) == ["r"]
    assert found["r"].maximum.tolist() == [5, 0, 3]
    assert found["r"].mean.tolist() == [3, 0, 1.5]
    assert found["r"].power.tolist() == [13, 0, 4.5]


def test_the_signal_is_the_variance_of_what_varies():
    mean = np.array([0.1, 2.0])
    assert ChannelMoments(mean, mean, mean, mean**2 + [0.5, 0.25]).signal == pytest.approx(0.75)
    assert ChannelMoments(mean, mean, mean, mean**2 + [0.5, -1e-16]).signal == pytest.approx(0.5)
    for rounding in (1e-18, -1e-18):
        assert ChannelMoments(mean, mean, mean, mean**2 + rounding).signal == pytest.approx(4.01)
    assert ChannelMoments(0 * mean, 0 * mean, 0 * mean, 0 * mean).signal == 0


def test_the_outputs_of_the_first_samples_are_kept():
    arrays = [np.full((1, 3, 8, 8), value, np.float32) for value in (1, 2)]
    answers = {}
    proto = conv_relu_conv()
    observe_channels(as_ir(proto), ["x"], pending(*arrays), answers=answers)
    assert sorted(answers) == [0, 1]
    for index, array in enumerate(arrays):
        expected = run(proto, {"x": array})
        assert set(answers[index]) == set(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(answers[index][name], values, rtol=1e-5, atol=1e-5)


def test_channels_along_the_last_axis():
    nodes = [node("Relu", "x", "r"), node("Identity", "r", "y")]
    arrays = [normal(2, 7, 5, seed=seed) * 10**seed for seed in range(3)]
    model = as_ir(build(nodes, "y", {}, [info("x", (2, 7, 5))]))
    found = observe_channels(model, ["r"], pending(*arrays), last=True)["r"]
    values = np.concatenate([np.maximum(array, 0).reshape(-1, 5) for array in arrays]).astype(np.float64)
    np.testing.assert_array_equal([found.minimum, found.maximum], [values.min(0), values.max(0)])
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.power, (values**2).mean(0), rtol=1e-6)
