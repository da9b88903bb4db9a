from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.numerics.formats import IntegerFormat, QuantParams
from detent.refinements import AdaQuant
from detent.refinements.adaquant import bias_rounding
from detent.refinements.gradient_loops import straight_through_step
from tests.refinements.layer_problems import NOTHING, RELU6, code_errors, layer, learn

QUICK = AdaQuant(iterations=300, batch=64, learning_rate=2e-3)


def test_step_by_hand():
    values = np.array([[[0.3, 0.3, 5.0, -5.0]]])
    gradient = np.array([[[2.0, 0.0, 1.0, -1.0]]], np.float32)
    mean, square, rounded = np.zeros_like(values), np.zeros_like(values), np.zeros_like(gradient)
    ones = np.ones((1, 1))
    straight_through_step(gradient, 0.25 * ones, -7 * ones, 7 * ones, values, mean, square, 1, 0.2, rounded)
    # The first step of Adam is the rate, down the slope; 20 and -20 saturate and have no slope.
    np.testing.assert_allclose(values, [[[0.1, 0.3, 5.0, -5.0]]], atol=1e-6)
    np.testing.assert_allclose(mean, [[[0.2, 0.0, 0.0, 0.0]]], atol=1e-7)
    np.testing.assert_allclose(square, [[[0.004, 0.0, 0.0, 0.0]]], atol=1e-7)
    assert rounded.tolist() == [[[0.0, 0.25, 1.75, -1.75]]]


@pytest.mark.parametrize("activation", [NOTHING, RELU6])
def test_weights_move_by_many_steps_where_it_pays(activation):
    problem = layer(1, 3, 6, 200, activation)
    halved = replace(problem, rows=problem.rows / 2)
    solution = learn(halved, replace(QUICK, learning_rate=1e-2, iterations=500))
    moved = np.abs(solution.codes - halved.nearest())
    assert moved.max() > 1.5
    before = code_errors(halved, halved.nearest(), halved.bias).sum()
    assert code_errors(halved, solution.codes, solution.bias).sum() < 0.1 * before


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 20), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_never_worse_than_nearest(groups, channels, inputs, samples, seed):
    problem = layer(groups, channels, inputs, samples, seed=seed)
    solution = learn(problem, replace(QUICK, iterations=30))
    before = code_errors(problem, problem.nearest(), problem.bias)
    after = code_errors(problem, solution.codes, solution.bias)
    assert np.all(after <= before * (1 + 1e-4) + 1e-9)
    assert np.array_equal(solution.codes, np.rint(solution.codes))
    assert np.abs(solution.codes).max() <= 127


def test_bias_moves_where_it_may():
    problem = layer(1, 3, 6, 200, NOTHING, step=2.0**-6)
    shifted = replace(problem, target=problem.target + np.float32(0.25))
    moving = learn(shifted, QUICK)
    assert np.all(moving.bias > problem.bias + 0.01)
    for still in (
        learn(shifted, replace(QUICK, update_bias=False)),
        learn(replace(shifted, free_bias=False), QUICK),
    ):
        assert np.array_equal(still.bias, problem.bias)


def test_bias_rounding_of_each_channel():
    fmt = IntegerFormat("int8", scale="power_of_two")
    per_channel = QuantParams.stack([QuantParams.at(fmt, position) for position in (1, 2, 3, 4)], 0)
    problem = replace(layer(2, 2, 3), bias_params=per_channel)
    scale, low, high = bias_rounding(problem, (slice(1, 2), slice(0, 2)))
    assert scale.tolist() == [[0.125, 0.0625]]
    assert low.tolist() == [[-127, -127]]
    assert high.tolist() == [[127, 127]]


@pytest.mark.parametrize("activation", [NOTHING, RELU6])
def test_same_seed_same_solution_on_any_number_of_threads(activation):
    problem = layer(1, 70, 18, 300, activation)
    found = [learn(problem, QUICK, threads) for threads in (1, 3)]
    assert np.array_equal(found[0].codes, found[1].codes)
    assert np.array_equal(found[0].bias, found[1].bias)


@pytest.mark.parametrize("rows", [np.zeros, np.ones])
def test_inputs_that_say_nothing(rows):
    problem = layer(2, 3, 5, 20)
    silent = replace(problem, rows=rows(problem.rows.shape, np.float32))
    solution = learn(silent, replace(QUICK, iterations=30))
    assert np.isfinite(solution.codes).all()
    assert np.isfinite(solution.bias).all()
    one = replace(problem, rows=problem.rows[:, :1], target=problem.target[:1])
    assert np.isfinite(learn(one, replace(QUICK, iterations=30, selective_update=True)).bias).all()
