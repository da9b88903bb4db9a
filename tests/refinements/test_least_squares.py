from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from detent.refinements.layer_problem import StepRounder
from detent.refinements.least_squares import Quadratic, descend, search_exhaustively


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def ill_conditioned(groups, channels, inputs, seed, damping=0.01):
    """Inputs that have two things in common and little of their own; float weights, a scale for each, a box."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(groups, 40, 2)) @ random.normal(size=(groups, 2, inputs))
    rows += 0.1 * random.normal(size=rows.shape)
    second = rows.swapaxes(1, 2) @ rows + damping * np.eye(inputs)
    centre = random.normal(size=(groups, channels, inputs))
    scale = random.uniform(0.2, 0.6, centre.shape)
    below = np.floor(centre / scale)
    return Quadratic(second, centre @ second), StepRounder(scale, below - 1, below + 2), centre


def brute_force(error, box):
    """The least error of each channel over all steps in the box."""
    least = np.empty(error.cross.shape[:2])
    for g, c in np.ndindex(least.shape):
        ranges = [np.arange(low, high + 1) for low, high in zip(box.low[g, c], box.high[g, c], strict=True)]
        weights = np.array(list(itertools.product(*ranges))) * box.scale[g, c]
        least[g, c] = (((weights @ error.second[g]) * weights).sum(axis=1) - 2 * weights @ error.cross[g, c]).min()
    return least


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("inputs", [1, 2, 5, 7])
def test_the_search_finds_what_trying_all_finds(pool, inputs, seed):
    error, box, centre = ill_conditioned(2, 2, inputs, seed)
    found = search_exhaustively(box.steps(centre), error, box, pool)
    assert (found >= box.low).all() and (found <= box.high).all() and (found == np.rint(found)).all()
    np.testing.assert_allclose(error.errors(found * box.scale), brute_force(error, box), rtol=1e-6)


def test_nine_weights_that_may_go_down_or_up(pool):
    error, box, centre = ill_conditioned(3, 2, 9, 1)
    box = StepRounder(box.scale, box.low + 1, box.high - 1)
    found = search_exhaustively(box.steps(centre), error, box, pool)
    np.testing.assert_allclose(error.errors(found * box.scale), brute_force(error, box), rtol=1e-6)


def test_never_worse_than_descent_and_often_better(pool):
    error, box, centre = ill_conditioned(30, 2, 9, 3)
    nearest = box.steps(centre)
    down = descend(nearest, error, box, 20, pool)
    before, after = (error.errors(steps * box.scale) for steps in (down, search_exhaustively(down, error, box, pool)))
    assert (after <= before + 1e-9 * np.abs(before)).all() and (after < before).sum() > 30
    np.testing.assert_array_equal(
        search_exhaustively(nearest, error, box, pool), search_exhaustively(down, error, box, pool)
    )


def test_limits_hold_where_the_best_is_far_outside(pool):
    error, box, centre = ill_conditioned(4, 3, 6, 4)
    narrow = StepRounder(box.scale, np.full_like(centre, 2.0), np.full_like(centre, 3.0))
    found = search_exhaustively(np.full_like(centre, 2.0), error, narrow, pool)
    np.testing.assert_allclose(error.errors(found * box.scale), brute_force(error, narrow), rtol=1e-6)


def test_what_cannot_be_inverted_stays_as_it_is(pool):
    error, box, centre = ill_conditioned(2, 2, 4, 5)
    error.second[1] = np.outer([1.0, 1.0, 2.0, 0.0], [1.0, 1.0, 2.0, 0.0])
    start = box.steps(centre)
    found = search_exhaustively(start, error, box, pool)
    np.testing.assert_array_equal(found[1], start[1])
    assert not np.array_equal(found[0], start[0])
