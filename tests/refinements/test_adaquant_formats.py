"""AdaQuant on formats other than integers with a scale for each channel."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from detent.numerics import BLOCK_FORMATS
from detent.numerics.blocks import BlockFloat, BlockParams
from detent.numerics.floats import FloatFormat, FloatParams
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.refinements import AdaQuant
from detent.refinements.adaquant import ChannelGrid, Moving
from detent.refinements.layer_problem import FormatRounder, LayerProblem, StepRounder
from tests.refinements.layer_problems import NOTHING, RELU6, errors, layer, learn

QUICK = AdaQuant(iterations=300, batch=64, learning_rate=2e-3)
BFLOAT16 = FloatParams(FloatFormat("bfloat16"))
BLOCKS = BlockFloat(bit_width=12, block_size=2)  # a sign and 3 bits for each of two neighbours
MX4 = BLOCK_FORMATS["MX4"]


def in_format(problem: LayerProblem, params: FloatParams | BlockParams, bias=None) -> LayerProblem:
    return replace(
        problem,
        weight_scale=np.ones(problem.bias.shape),
        low=-np.inf,
        high=np.inf,
        rounder=FormatRounder(params),
        bias_params=bias,
    )


def stored_errors(problem, solution):
    return errors(problem, solution.codes, problem.stored_bias(solution.bias))


def test_both_ways_to_make_a_step_agree():
    random = np.random.default_rng(1)
    shape = (2, 3, 5)
    scale = 2.0 ** random.integers(-4, 0, shape[:2])
    low, high = np.full(shape[:2], -3.0), np.full(shape[:2], 4.0)
    general = StepRounder(*(each[..., None] for each in (scale, low, high)))
    start = random.normal(size=shape)
    fast, slow = (
        Moving(start, rounding, np.zeros(shape, np.float32)) for rounding in (ChannelGrid(scale, low, high), general)
    )
    saturated = 0
    for step in range(1, 60):
        gradient = random.normal(size=shape).astype(np.float32)
        for moving in (fast, slow):
            moving.move(step, 0.02, gradient)
        np.testing.assert_array_equal(fast.values, slow.values)
        np.testing.assert_array_equal(fast.rounded, slow.rounded)
        saturated += int((~general.passes(fast.values)).sum())
    assert saturated > 10


@pytest.mark.parametrize("activation", [NOTHING, RELU6])
def test_integers_by_the_general_way_have_the_same_solution(activation):
    problem = layer(2, 3, 6, 200, activation)
    scale = problem.weight_scale[..., None]
    rounder = StepRounder(scale, np.full_like(scale, problem.low), np.full_like(scale, problem.high))
    general = replace(problem, weight_scale=np.ones(problem.bias.shape), low=-np.inf, high=np.inf, rounder=rounder)
    expected, found = learn(problem, QUICK), learn(general, QUICK)
    assert not np.array_equal(expected.codes, problem.nearest())
    np.testing.assert_array_equal(found.codes, expected.codes * scale)
    np.testing.assert_array_equal(found.bias, expected.bias)


def two_inputs(params, weight, noise):
    """A channel whose two inputs are nearly the same, so that one weight can make up for the other."""
    random = np.random.default_rng(3)
    common = 1 + random.random((1, 400, 1))
    rows = (common + noise * random.normal(size=(1, 400, 2))).astype(np.float32)
    weights = np.array([[weight]])
    problem = in_format(layer(1, 1, 2, 400, NOTHING), params)
    target = (rows @ weights.swapaxes(1, 2)).transpose(1, 0, 2).astype(np.float32)
    return replace(problem, weight=weights, bias=np.zeros((1, 1)), rows=rows, target=target, free_bias=False)


def best_of(problem, candidates):
    pairs = [np.array([[pair]]) for pair in product(candidates, repeat=2)]
    held = [pair for pair in pairs if np.array_equal(problem.rounder.round(pair), pair)]
    assert len(held) > 20
    return min((float(errors(problem, pair, problem.bias)[0, 0]), pair.reshape(-1).tolist()) for pair in held)


@pytest.mark.parametrize(
    ("params", "weight", "step", "rate"),
    [(BFLOAT16, [0.7513, 0.7557], 2.0**-8, 1e-4), (BlockParams(BLOCKS, 2), [0.52, 0.56], 1 / 8, 3e-3)],
)
def test_the_best_weights_are_found(params, weight, step, rate):
    problem = two_inputs(params, weight, 0.02)
    least, best = best_of(problem, step * np.arange(-16, 300 if step < 0.1 else 17))
    nearest = problem.nearest()
    assert errors(problem, nearest, problem.bias)[0, 0] > 1.5 * least
    solution = learn(problem, replace(QUICK, learning_rate=rate, iterations=1000))
    assert solution.codes.reshape(-1).tolist() == best


@pytest.mark.parametrize("params", [BFLOAT16, BlockParams(MX4, 2), BlockParams(BLOCK_FORMATS["MXFP4E2M1"], 2)])
@pytest.mark.parametrize("bias", [None, BFLOAT16, BlockParams(MX4, -1)])
def test_what_is_found_is_in_the_format_and_never_worse(params, bias):
    problem = in_format(layer(2, 37, 20, 100), params, bias)
    solution = learn(problem, replace(QUICK, iterations=60))
    np.testing.assert_array_equal(problem.rounder.round(solution.codes), solution.codes)
    before = errors(problem, problem.nearest(), problem.stored_bias(problem.bias))
    after = stored_errors(problem, solution)
    # A channel's bias may raise the exponent of its block, to the cost of the others: then only their sum is surer.
    assert after.sum() <= before.sum() if isinstance(bias, BlockParams) else np.all(after <= before * (1 + 1e-4) + 1e-9)
    assert after.sum() < 0.9 * before.sum() or params is BFLOAT16


def test_a_format_that_saturates_stays_inside():
    problem = in_format(layer(1, 3, 6, 200), FloatParams(FloatFormat("float8_e4m3"), 2.0**-10))
    solution = learn(problem, QUICK)
    assert np.abs(problem.weight).max() > 448 * 2.0**-10 >= np.abs(solution.codes).max()


def test_a_float_bias_moves_by_any_amount():
    problem = in_format(layer(1, 3, 6, 200, NOTHING), BFLOAT16)
    shifted = replace(problem, target=problem.target + np.float32(0.25))
    solution = learn(shifted, QUICK)
    assert np.all(solution.bias > problem.bias + 0.01)
    still = learn(shifted, replace(QUICK, update_bias=False))
    assert np.array_equal(still.bias, problem.bias)


@pytest.mark.parametrize("params", [BFLOAT16, BlockParams(MX4, 2)])
def test_channels_that_are_dead_stay_so(params):
    problem = in_format(layer(2, 3, 5, 40, NOTHING), params)
    weight, bias, target = problem.weight.copy(), problem.bias.copy(), problem.target.copy()
    weight[1, 2], bias[1, 2], target[:, 1, 2] = 0.0, 0.0, 0.0
    dead = replace(problem, weight=weight, bias=bias, target=target)
    solution = learn(dead, QUICK)
    assert not solution.codes[1, 2].any() and solution.bias[1, 2] == 0
    silent = replace(dead, rows=np.zeros_like(problem.rows), free_bias=False)
    np.testing.assert_array_equal(learn(silent, QUICK).codes, silent.nearest())


def test_integers_with_a_zero_point_for_each_channel():
    fmt = IntegerFormat("uint4", symmetric=False)
    params = QuantParams.stack([QuantParams.of(fmt, 0.25, zero) for zero in (0, 8, 15)], 0)
    problem = layer(1, 3, 6, 200)
    low, high = ((bound - params.zero_point.astype(float)).reshape(1, 3, 1) for bound in (fmt.low, fmt.high))
    rounder = StepRounder(np.full((1, 3, 1), 0.25), low, high)
    problem = replace(in_format(problem, BFLOAT16), rounder=rounder)
    solution = learn(problem, QUICK)
    np.testing.assert_array_equal(params.snap(solution.codes[0]), solution.codes[0])
    assert stored_errors(problem, solution).sum() < errors(problem, problem.nearest(), problem.bias).sum()
