"""The noise of rounding: known answers by hand, the p-norm against the maximum, the gradient against differences."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.equalizations.global_equalization import LayerNoise, NoiseModel

UNIT = 1 / (12 * 127**2)  # the noise of rounding a tensor whose largest magnitude is 1


def single(**changes) -> LayerNoise:
    """One weight of 3 that reads one channel: up to 2, with a mean square of 1.5."""
    layer = LayerNoise(
        inputs=np.array([[0]]),
        outputs=np.array([[1]]),
        weight=np.array([[[3.0]]], np.float32),
        taps=1,
        energy=np.array([[9.0]]),
        largest=np.array([[2.0]]),
        power=np.array([[1.5]]),
        bias=np.array([[0.5]]),
        signal=4.0,
    )
    return replace(layer, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"largest": None, "bias": None}, 9 * 1.5),
        ({"largest": None, "bias": None, "taps": 5}, 9 * 1.5 * 5),
        ({"weight": None, "bias": None}, 4 * 9),
        ({"weight": None, "largest": None}, 0.25),
        ({}, 9 * 1.5 + 4 * 9 + 0.25),
        ({"weight": None, "largest": None, "bias": None}, 0.0),
    ],
)
@pytest.mark.parametrize("variables", [(0.0, 0.0), (1.3, -0.4)])
def test_one_weight(changes, expected, variables):
    """With one number in each tensor, a factor moves value and step alike: the noise is the same at every point."""
    value, gradient = NoiseModel([single(**changes)], 2)(np.array(variables))
    assert value == pytest.approx(expected * UNIT / 4)
    assert gradient == pytest.approx([0, 0], abs=1e-12)


def test_two_inputs_by_hand():
    """Inputs up to 4 and 1 at factors 1/2 and 2: both reach 2, and the p-norm of two equal is 2^(1/p) times that.

    The noise of a step of 2/127 reaches the output through weights 1 * 2 and 3 / 2.
    """
    layer = LayerNoise(
        inputs=np.array([[0, 1]]),
        outputs=np.array([[-1]]),
        weight=None,
        taps=1,
        energy=np.array([[1.0, 9.0]]),
        largest=np.array([[4.0, 1.0]]),
        power=np.array([[1.0, 1.0]]),
        bias=None,
        signal=1.0,
    )
    value, _ = NoiseModel([layer], 2)(np.log([0.5, 2.0]))
    assert value == pytest.approx(4 * 2 ** (2 / 24) * (4 + 9 / 4) * UNIT)


def random_layer(seed: int, groups: int, outputs: int, inputs: int, count: int) -> LayerNoise:
    """Variables are drawn from -1 (fixed) to count - 1: some are shared, between both sides as well."""
    random = np.random.default_rng(seed)

    def positive(*shape: int) -> np.ndarray:
        return np.exp(random.normal(size=shape))

    return LayerNoise(
        inputs=random.integers(-1, count, (groups, inputs)),
        outputs=random.integers(-1, count, (groups, outputs)),
        weight=(positive(groups, outputs, inputs) * (random.random((groups, outputs, inputs)) > 0.2)).astype(
            np.float32
        ),
        taps=int(random.integers(1, 10)),
        energy=positive(groups, inputs),
        largest=positive(groups, inputs),
        power=positive(groups, inputs),
        bias=positive(groups, outputs),
        signal=float(positive()),
    )


def plain(layer: LayerNoise, variables: np.ndarray) -> float:
    """The formulas of the module's docstring, written out with maxima."""
    padded = np.append(variables, 0.0)
    g, h = np.exp(padded[layer.inputs]), np.exp(padded[layer.outputs])
    total = 0.0
    if layer.weight is not None:
        step = (layer.weight * h[:, :, None] / g[:, None, :]).max() / 127
        total += step**2 / 12 * ((h**-2).sum(1) * (g**2 * layer.power * layer.taps).sum(1)).sum()
    if layer.largest is not None:
        step = (layer.largest * g).max() / 127
        total += step**2 / 12 * (g**-2 * layer.energy).sum()
    if layer.bias is not None:
        step = (layer.bias * h).max() / 127
        total += step**2 / 12 * (h**-2).sum()
    return total / layer.signal


LAYERS = st.builds(
    lambda seed, groups, outputs, inputs, missing: replace(
        random_layer(seed, groups, outputs, inputs, 3), **dict.fromkeys(missing)
    ),
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sets(st.sampled_from(["weight", "largest", "bias"])),
)
POINTS = st.lists(st.floats(-2, 2), min_size=3, max_size=3).map(np.array)


@settings(max_examples=100, deadline=None)
@given(LAYERS, POINTS)
def test_the_formulas(layer, point):
    """The p-norm of n numbers is at least their maximum, and at most n^(1/p) times it."""
    most = max(layer.energy.size * layer.outputs.shape[1], layer.outputs.size)
    value, exact = NoiseModel([layer], 3)(point)[0], plain(layer, point)
    assert exact * (1 - 1e-9) <= value <= exact * most ** (2 / 24) * (1 + 1e-9) + 1e-40  # of a weight of zeros


@settings(max_examples=100, deadline=None)
@given(st.lists(LAYERS, max_size=3), POINTS)
def test_the_gradient_is_that_of_the_value(layers, point):
    noise = NoiseModel(layers, 3)
    value, gradient = noise(point)
    assert gradient.shape == (3,)
    step = 1e-5
    for index, slope in enumerate(gradient):
        aside = step * np.eye(3)[index]
        measured = (noise(point + aside)[0] - noise(point - aside)[0]) / (2 * step)
        assert measured == pytest.approx(slope, rel=1e-4, abs=1e-5 * value)


@settings(max_examples=50, deadline=None)
@given(st.lists(LAYERS, min_size=1, max_size=3), POINTS, POINTS)
def test_it_is_convex(layers, one, other):
    noise = NoiseModel(layers, 3)
    assert noise((one + other) / 2)[0] <= (noise(one)[0] + noise(other)[0]) / 2 * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3))
def test_one_factor_for_a_whole_value_changes_nothing(seed, factor):
    """All channels between two layers by the same factor: every step grows with what it rounds."""
    first = replace(random_layer(seed, 1, 4, 3, 1), inputs=np.full((1, 3), -1), outputs=np.arange(4)[None])
    second = replace(random_layer(seed + 1, 2, 2, 2, 1), inputs=np.arange(4).reshape(2, 2), outputs=np.full((2, 2), -1))
    noise = NoiseModel([first, second], 4)
    start = np.random.default_rng(seed).uniform(-1, 1, 4)
    assert noise(start + factor)[0] == pytest.approx(noise(start)[0], rel=1e-9)
    assert noise(start)[1].sum() == pytest.approx(0, abs=1e-9 * noise(start)[0])


def test_nothing_overflows_at_the_bounds():
    layers = [random_layer(seed, 2, 3, 3, 3) for seed in range(20)]
    tiny = [replace(each, weight=each.weight * np.float32(1e-30), largest=each.largest * 1e-30) for each in layers]
    zero = [replace(each, weight=each.weight * np.float32(0.0)) for each in layers]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for point in (np.array([5.0, -5.0, 5.0]), np.array([-5.0, -5.0, 5.0])):
            for each in (layers, tiny, zero):
                value, gradient = NoiseModel(each, 3)(point)
                assert np.isfinite(value)
                assert np.isfinite(gradient).all()
                assert value >= sum(plain(layer, point) for layer in each) * (1 - 1e-9)


def test_no_variables():
    fixed = single(inputs=np.array([[-1]]), outputs=np.array([[-1]]))
    value, gradient = NoiseModel([fixed], 0)(np.zeros(0))
    assert value == pytest.approx((9 * 1.5 + 4 * 9 + 0.25) * UNIT / 4)
    assert gradient.shape == (0,)
