from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from detent.numerics.formats import IntegerFormat, QuantParams
from detent.refinements.gradient import Batches, BatchGradient, InputMoments, MomentGradient, batches_of
from detent.refinements.gradient_loops import dots, mixtures
from tests.refinements.layer_problems import CAPPED, LEAKY, NOTHING, UINT4, activated, errors, layer

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 20), st.integers(1, 9))


def all_in_one(problem, **options) -> Batches:
    return batches_of(
        problem, np.arange(problem.samples), problem.samples, problem.rows, **{"round_output": False} | options
    )


def arguments(problem, seed):
    random = np.random.default_rng(seed)
    weights = (problem.weight + 0.1 * random.normal(size=problem.weight.shape)).astype(np.float32)
    return weights, problem.bias + 0.1 * random.normal(size=problem.bias.shape)


@given(st.integers(1, 9), st.integers(1, 37), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_products_of_any_shape(left, right, length, seed):
    random = np.random.default_rng(seed)
    a = random.integers(-9, 9, (left, length)).astype(np.float32)
    b = random.integers(-9, 9, (right, length)).astype(np.float32)
    found = np.empty((left, right), np.float32)
    dots(a, b, found)
    assert np.array_equal(found, a @ b.T)
    mixed = np.empty((left, length), np.float32)
    mixtures(found, b, mixed)
    assert np.array_equal(mixed, found @ b)


@given(SHAPES, st.sampled_from([NOTHING, CAPPED, LEAKY]), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_gradient_is_the_slope_of_the_error(shape, activation, seed):
    groups, channels, inputs, samples = shape
    problem = layer(groups, channels, inputs, samples, activation, seed)
    weights, bias = arguments(problem, seed)
    sums = problem.rows @ weights.swapaxes(1, 2) + bias[:, None]
    assume(np.abs(sums).min() > 1e-3 and np.abs(sums - CAPPED.high).min() > 1e-3)  # no kink within reach
    gradient, bias_gradient = np.empty_like(weights), np.empty_like(bias)
    loss = BatchGradient(all_in_one(problem))(0, weights, bias, gradient, bias_gradient)
    assert loss == pytest.approx(errors(problem, weights, bias).sum(), rel=1e-4, abs=1e-6)
    step = 1e-5
    for index in np.ndindex(weights.shape):
        nudge = np.zeros(weights.shape)
        nudge[index] = step
        slope = (errors(problem, weights + nudge, bias) - errors(problem, weights - nudge, bias)).sum() / (2 * step)
        assert gradient[index] == pytest.approx(slope, rel=2e-3, abs=1e-4)
    for index in np.ndindex(bias.shape):
        nudge = np.zeros(bias.shape)
        nudge[index] = step
        slope = (errors(problem, weights, bias + nudge) - errors(problem, weights, bias - nudge)).sum() / (2 * step)
        assert bias_gradient[index] == pytest.approx(slope, rel=2e-3, abs=1e-4)


@given(SHAPES, st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_moments_say_the_same_as_the_rows(shape, seed):
    groups, channels, inputs, samples = shape
    problem = layer(groups, channels, inputs, samples, NOTHING, seed)
    batches = all_in_one(problem)
    start, moved = arguments(problem, seed), arguments(problem, seed + 1)
    found = []
    for gradient_of in (BatchGradient(batches), MomentGradient(batches, InputMoments.of(batches), *start)):
        gradient, bias_gradient = np.empty_like(moved[0]), np.empty_like(moved[1])
        loss = gradient_of(0, *moved, gradient, bias_gradient)
        found.append((loss, gradient, bias_gradient))
    for rows, moments in zip(*found, strict=True):
        np.testing.assert_allclose(moments, rows, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_errors_count_every_row_once(size):
    problem = layer(2, 3, 18, 65)
    order = np.random.default_rng(0).permutation(65)
    batches = batches_of(problem, order, size, problem.rows, round_output=False)
    assert batches.counts.sum() == 65
    assert batches.counts.max() <= size
    weights, bias = arguments(problem, 0)
    np.testing.assert_allclose(batches.errors(weights, bias), errors(problem, weights, bias), rtol=1e-4)


def test_part_has_the_errors_of_its_channels():
    problem = layer(3, 5, 18, 40)
    weights, bias = arguments(problem, 0)
    whole = all_in_one(problem).errors(weights, bias)
    where = slice(1, 3), slice(2, 5)
    part = all_in_one(problem).part(where).errors(np.ascontiguousarray(weights[where]), bias[where].copy())
    assert np.array_equal(part, whole[where])


def test_ties_of_a_rounded_output():
    """One input of 1 and four channels with weights that are ties, in steps of 2 from -8 to 6."""
    output = QuantParams.at(IntegerFormat("int4", scale="power_of_two", symmetric=True), -1)
    weights = np.array([[[-5.0], [-3.0], [3.0], [5.0], [99.0]]], np.float32)
    rows, target = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 5), np.float32)
    bare = replace(layer(1, 5, 1, 1, NOTHING), rows=rows, target=target, weight=weights.astype(float), output=output)
    for ties, expected in {"half_even": [-4, -4, 4, 4, 14], "half_up": [-4, -2, 4, 6, 14]}.items():
        batches = all_in_one(replace(bare, output_ties=ties), round_output=True)
        assert batches.errors(weights, np.zeros((1, 5)))[0].tolist() == [number**2 for number in expected]


def test_rounded_output():
    output = QuantParams.of(UINT4, 0.25, 6)
    problem = replace(layer(1, 6, 5, 50, NOTHING), output=output)
    weights, bias = arguments(problem, 0)
    sums = problem.rows[0].astype(np.float64) @ weights[0].T + bias[0]
    wanted = np.square(output.snap(activated(NOTHING, sums)) - problem.target[:, 0]).mean(axis=0)
    batches = all_in_one(problem, round_output=True)
    assert not batches.linear
    np.testing.assert_allclose(batches.errors(weights, bias)[0], wanted, rtol=1e-4)
    gradient, bias_gradient = np.empty_like(weights), np.empty_like(bias)
    BatchGradient(batches)(0, weights, bias, gradient, bias_gradient)
    inside = (sums > -1.5) & (sums < 2.25)
    derivatives = 2 * (output.snap(sums) - problem.target[:, 0]) * inside / problem.samples
    np.testing.assert_allclose(gradient[0], derivatives.T @ problem.rows[0], rtol=1e-3, atol=1e-5)
    assert sums.min() < -1.5
    assert sums.max() > 2.25
