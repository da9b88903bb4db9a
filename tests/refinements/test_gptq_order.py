from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from detent.refinements.gptq import natural_order, order_by_activation, round_in_order
from detent.refinements.layer_problem import StepRounder
from detent.refinements.least_squares import Quadratic


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def grid(shape, scale=1.0, limit=100.0):
    return StepRounder(np.full(shape, scale), np.full(shape, -limit), np.full(shape, limit))


def test_two_weights_by_hand(pool):
    """H = [[2, 1], [1, 2]] and weights 0.4, 0.4. The first becomes 0, an error of -0.4; the second is then best at
    0.4 + 0.4 * H_12 / H_22 = 0.6, which becomes 1.
    """
    weights, second = np.array([[[0.4, 0.4]]]), np.array([[[2.0, 1.0], [1.0, 2.0]]])
    for block in (1, 2):
        found = round_in_order(weights, second, grid((1, 1, 2)), natural_order(second), pool, block)
        np.testing.assert_array_equal(found, [[[0.0, 1.0]]])
    second[0, 1, 1] = 3.0  # now the second one is rounded first, and the first is best at 0.4 + 0.4 / 2
    found = round_in_order(weights, second, grid((1, 1, 2)), order_by_activation(second), pool)
    np.testing.assert_array_equal(found, [[[1.0, 0.0]]])


def textbook(weights, second, scale):
    """GPTQ as it is usually written down: the upper factor of the inverse, column after column."""
    upper = np.linalg.cholesky(np.linalg.inv(second)).T
    left, found = weights.copy(), np.empty_like(weights)
    for k in range(weights.shape[1]):
        found[:, k] = np.clip(np.rint(left[:, k] / scale), -7, 7)
        error = (left[:, k] - found[:, k] * scale) / upper[k, k]
        left[:, k:] -= error[:, None] * upper[k, k:]
    return found


@pytest.mark.parametrize("block", [1, 5, 128])
@pytest.mark.parametrize("order", [natural_order, order_by_activation])
def test_the_same_as_with_the_inverse(pool, order, block):
    random = np.random.default_rng(0)
    rows = random.normal(size=(2, 60, 12)) @ random.normal(size=(2, 12, 12))
    second, weights = rows.swapaxes(1, 2) @ rows, random.normal(size=(2, 5, 12))
    found = round_in_order(weights, second, grid(weights.shape, 0.2, 7), order(second), pool, block)
    for g in range(2):
        taken = order(second)[g]
        expected = textbook(weights[g][:, taken], second[g][np.ix_(taken, taken)], 0.2)
        np.testing.assert_array_equal(found[g][:, taken], expected)


def test_better_than_nearest_on_the_whole(pool):
    random = np.random.default_rng(1)
    rows = random.normal(size=(1, 300, 4)) @ random.normal(size=(1, 4, 32)) + 0.3 * random.normal(size=(1, 300, 32))
    second, weights = rows.swapaxes(1, 2) @ rows, random.normal(size=(1, 40, 32))
    steps = grid(weights.shape, 0.25)
    steps = StepRounder(steps.scale * random.uniform(0.5, 2.0, steps.scale.shape), steps.low, steps.high)
    error = Quadratic(second, weights @ second)
    nearest = error.errors(steps.round(weights)) - error.errors(weights)
    for order in (natural_order, order_by_activation):
        found = round_in_order(weights, second, steps, order(second), pool, 8)
        turned = error.errors(found * steps.scale) - error.errors(weights)
        assert turned.mean() < 0.5 * nearest.mean()


def test_without_a_factor_it_says_so(pool):
    second = np.ones((1, 2, 2))
    with pytest.raises(np.linalg.LinAlgError):
        round_in_order(np.zeros((1, 1, 2)), second - 2, grid((1, 1, 2)), natural_order(second), pool)
