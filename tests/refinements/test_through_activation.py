"""Weights that are fitted through the activation: less error after it, also if the device has another one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from detent.refinements.activations import Activation, Gate
from detent.refinements.least_squares import RowMoments
from detent.refinements.refinement import Contest
from detent.refinements.rounding import Rounding, fit_bias, fit_through_activation
from tests.refinements.layer_problems import layer

SILU, HARD_SWISH = Gate(gated=True), Gate(gated=True, hard=True)


def layers(groups=1, **changes):
    """A layer in two halves of its rows: to learn from, and others."""
    plain = layer(groups=groups, inputs=8, samples=900, step=2.0**-5, activation=Activation())
    whole, halves = replace(plain, **changes), (slice(600), slice(600, 900))
    return [replace(whole, rows=whole.rows[:, part], target=whole.target[part]) for part in halves]


def error(problem, weights, bias):
    answers = np.einsum("gnk,gck->gnc", problem.rows, weights) + bias[:, None]
    return float(np.square(problem.curve(answers) - problem.wanted()).sum())


@pytest.mark.parametrize("gates", [(SILU, HARD_SWISH), (SILU, SILU), None])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_error_after_the_activation_falls(gates, groups):
    changes = {"activation": Activation(0.0)} if gates is None else {"gates": gates}
    problem, _ = layers(groups=groups, **changes)
    moments = RowMoments.of(problem)
    weights, centered = fit_through_activation(problem, moments, 1e-3)
    bias = centered - np.einsum("gck,gk->gc", weights, moments.input_mean)
    linear = np.linalg.solve(moments.second, moments.cross.swapaxes(1, 2)).swapaxes(1, 2)
    plain = moments.output_mean - np.einsum("gck,gk->gc", linear, moments.input_mean)
    assert error(problem, weights, bias) < error(problem, linear, plain)


def test_the_bias_makes_up_for_another_activation():
    problem, _ = layers(gates=(SILU, HARD_SWISH))
    codes, start = problem.nearest(), problem.bias
    found, weights = fit_bias(problem, codes, start), codes * problem.weight_scale[..., None]
    assert error(problem, weights, found) < error(problem, weights, start)
    for shift in (-0.02, 0.02):
        assert error(problem, weights, found) < error(problem, weights, found + shift)


def test_a_layer_before_another_activation_takes_it():
    problem, held_out = layers(gates=(SILU, HARD_SWISH))
    contest = Contest(problem, held_out)
    with ThreadPoolExecutor(1) as pool:
        Rounding(damping=0.001).solve(problem, contest, pool)
    assert contest.best.solution.method.startswith("rounding through the activation")
    assert contest.best.after < contest.best.before
