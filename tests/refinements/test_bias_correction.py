"""Shifts of biases by hand, and that they never make the samples held out worse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.refinements.activations import Activation, Gate, TwoGates, activate_all, add_pulls
from detent.refinements.bias_correction import ChannelAnswers, find_shift

LINEAR, RELU = Activation(), Activation(0.0)


def answers(wanted, found, float_curve=LINEAR, curve=None):
    arrays = [
        [np.asarray(one, np.float32).reshape(len(one), np.asarray(one).size // max(len(one), 1) or 2) for one in each]
        for each in (wanted, found)
    ]
    return ChannelAnswers(*arrays, float_curve, curve or float_curve)


def test_a_constant_difference_is_taken_over_whole():
    rng = np.random.default_rng(0)
    wanted = [rng.normal(size=(16, 3)) for _ in range(12)]
    found = find_shift(answers(wanted, [one - [0.5, 0.0, -0.25] for one in wanted]))
    np.testing.assert_allclose(found.shift, [0.5, 0.0, -0.25], atol=1e-6)
    assert found.after < 1e-12 < found.before


def test_one_sample_of_equal_rows():
    np.testing.assert_allclose(find_shift(answers([[2.0, 2.0]], [[1.0, 1.0]])).shift, [1.0])


def test_a_few_values_that_were_cut_off_do_not_lift_what_relu_holds_at_zero():
    """Means differ by 0.4, all of it from one row in ten that is cut at 6: a shift of 0.4 would lift zeros to 0.4."""
    wanted = [np.array([-0.1] * 9 + [10.0])[:, None] for _ in range(12)]
    found = find_shift(answers(wanted, [np.minimum(one, 6.0) for one in wanted], RELU))
    assert found.after <= found.before
    before = answers(wanted, [np.minimum(one, 6.0) for one in wanted], RELU)
    assert before.stacked(range(12)).errors(0.4)[0] > found.after


def test_noise_is_not_a_correction():
    """The standard error of the mean of so few samples is as large as the mean."""
    rng = np.random.default_rng(1)
    wanted = [rng.normal(size=(4, 40)) for _ in range(12)]
    found = find_shift(answers(wanted, [one + rng.normal(size=(1, 40)) for one in wanted]))
    assert np.abs(found.shift).mean() < 0.25


def test_the_swapped_activation_is_corrected_for_the_original():
    """x * HardSigmoid(x) is lower than x * Sigmoid(x) between 0 and 2.6: the shift is positive."""
    rng = np.random.default_rng(2)
    wanted = [rng.uniform(0.5, 2.0, (32, 1)) for _ in range(12)]
    found = find_shift(answers(wanted, wanted, Gate(True), Gate(True, hard=True)))
    assert found.shift[0] > 0.03 and found.after < 0.3 * found.before


@pytest.mark.parametrize("curve", [RELU, Activation(0.0, 6.0), Activation(0.0, slope=0.1), Gate(True), Gate(False)])
@pytest.mark.parametrize("hard", [False, True])
def test_derivatives(curve, hard):
    curve = Gate(curve.gated, hard=hard) if isinstance(curve, Gate) else curve
    values = np.linspace(-7.03, 7.01, 401)
    slope = (curve(values + 1e-6) - curve(values - 1e-6)) / 2e-6
    np.testing.assert_allclose(curve.derivative(values), slope, atol=1e-5)


@given(st.integers(0, 10_000), st.sampled_from([LINEAR, RELU, Gate(True), Gate(True, hard=True)]), st.integers(1, 20))
def test_never_worse_where_it_is_judged(seed, curve, count):
    rng = np.random.default_rng(seed)
    wanted = [rng.normal(size=(int(rng.integers(1, 6)), 3)) * 3 for _ in range(count)]
    given_ = [np.clip(one + rng.normal(size=one.shape) * 0.3 + 0.1, -4, 4) for one in wanted]
    found = find_shift(answers(wanted, given_, Gate(True) if isinstance(curve, Gate) else curve, curve))
    assert found.after <= found.before and np.isfinite(found.shift).all()


def test_what_is_not_finite_or_has_no_rows_is_left_alone():
    found = find_shift(answers([[1.0, np.inf]], [[1.0, 1.0]]))
    assert not found.shift.any() and "not finite" in found.reason
    empty = np.zeros((0, 2))
    assert "no rows" in find_shift(answers([empty], [empty])).reason


@pytest.mark.parametrize(
    "curve", [LINEAR, RELU, Activation(0.0, 6.0), Activation(0.0, slope=0.1), Gate(True), Gate(False, hard=True)]
)
def test_compiled_curves_are_those_of_arrays(curve):
    """Two channels in parts of 3 and 4 rows, the second shifted by 0.5: sum(s^2), and sum(s r) of each part."""
    values = np.linspace(-7.0, 7.0, 14, dtype=np.float32).reshape(7, 2)
    activated, target, shift = np.empty((7, 2)), np.arange(14.0).reshape(7, 2), np.array([0.0, 0.5])
    activate_all(values, curve.numbers, activated)
    np.testing.assert_allclose(activated, curve(values.astype(np.float64)), rtol=1e-14)
    weight, pulls = np.zeros(2), np.zeros((2, 2))
    add_pulls(values, target, shift, curve.numbers, np.array([3, 7]), weight, pulls)
    moved = values + shift
    slope = curve.derivative(moved)
    np.testing.assert_allclose(weight, np.square(slope).sum(0), rtol=1e-12)
    left = slope * (target - curve(moved))
    np.testing.assert_allclose(pulls, [left[:3].sum(0), left[3:].sum(0)], rtol=1e-12)


def test_two_gates_are_the_same_curve_in_numpy_and_in_compiled_loops():
    curve, values = TwoGates(1.84375, 0.78125), np.linspace(-9, 9, 181)[:, None].astype(np.float32)
    activated = np.empty(values.shape)
    activate_all(values, curve.numbers, activated)
    hard = [np.clip(factor * values.astype(np.float64) / 6 + 0.5, 0, 1) for factor in (1.84375, 0.78125)]
    np.testing.assert_allclose(activated, values * (hard[0] + hard[1]) / 2, atol=1e-12)
    np.testing.assert_allclose(curve(values), activated, atol=1e-6)
    step = 1e-4
    inside = values[np.all([np.abs(np.abs(values) - 3 / factor) > 0.01 for factor in (1.84375, 0.78125)], axis=0)]
    slopes = (curve(inside.astype(np.float64) + step) - curve(inside.astype(np.float64) - step)) / (2 * step)
    np.testing.assert_allclose(curve.derivative(inside.astype(np.float64)), slopes, atol=1e-6)
    weight, pulls = np.zeros(1), np.zeros((1, 1))
    one = np.array([[1.0]], np.float32)
    add_pulls(one, np.zeros((1, 1)), np.zeros(1), curve.numbers, np.array([1]), weight, pulls)
    assert weight[0] == pytest.approx(float(curve.derivative(np.array([1.0]))[0]) ** 2)
