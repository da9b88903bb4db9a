from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from detent.numerics.formats import IntegerFormat, QuantParams
from detent.refinements import Rounding
from detent.refinements.activations import Activation
from detent.refinements.layer_problem import LayerProblem
from detent.refinements.least_squares import RowMoments

INT8 = IntegerFormat("int8", scale="power_of_two")
INT32 = IntegerFormat("int32")


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def problem(rows, weight, scale=0.25, noise=0.0, seed=0, bias=0.0, **changes):
    """A layer whose float input is `rows`, and whose quantized one has noise on it."""
    rng = np.random.default_rng(seed)
    groups, channels, _ = weight.shape
    target = np.matmul(rows, weight.transpose(0, 2, 1)).transpose(1, 0, 2) + bias
    return LayerProblem(
        name="layer",
        weight=weight,
        bias=np.full((groups, channels), bias),
        rows=(rows + noise * rng.standard_normal(rows.shape)).astype(np.float32),
        target=target.astype(np.float32),
        weight_scale=np.full((groups, channels), scale),
        low=-127,
        high=127,
        bias_params=QuantParams.of(INT32, 2.0**-16, 0),
        activation=Activation(),
        output=None,
        **changes,
    )


def correlated(groups, count, inputs, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((groups, count, 2)) @ rng.standard_normal((groups, 2, inputs)) + 0.3 * (
        rng.standard_normal((groups, count, inputs))
    )


def objective(case, moments, damping, codes):
    """The damped squared error, straight from the rows."""
    centred = case.rows - moments.input_mean[:, None, :]
    wanted = case.target.transpose(1, 0, 2) - moments.output_mean[:, None, :]
    weights = codes * case.weight_scale[..., None]
    error = np.square(np.matmul(centred, weights.transpose(0, 2, 1)) - wanted).sum()
    added = damping * np.square(centred).sum(axis=1).mean(axis=1)
    return error + (added[:, None, None] * np.square(weights - case.weight)).sum()


def solutions(case, settings, pool):
    """The solution of every damping."""
    moments = RowMoments.of(case)
    return [settings.round_layer(case, moments, damping, pool) for damping in settings.dampings(case)]


def descend(case, moments, damping, settings, pool):
    """The codes for one damping."""
    return settings.best_steps(case, moments.to_output(case.weight, damping), pool)


@pytest.mark.parametrize("seed", range(4))
def test_no_single_step_improves_the_codes(pool, seed):
    rng = np.random.default_rng(seed)
    case = problem(correlated(2, 60, 5, seed), rng.standard_normal((2, 3, 5)), noise=0.05, seed=seed, bias=1.0)
    settings, moments = Rounding(span=2), RowMoments.of(case)
    codes = descend(case, moments, 0.1, settings, pool)
    least = objective(case, moments, 0.1, codes)
    assert least <= objective(case, moments, 0.1, case.nearest())
    exact = np.floor(case.weight / 0.25)
    for where in itertools.product(*map(range, codes.shape)):
        for step in (-1, 1):
            moved = codes.copy()
            moved[where] += step
            if exact[where] - 1 <= moved[where] <= exact[where] + 2:
                assert objective(case, moments, 0.1, moved) >= least * (1 - 1e-5)


def test_the_best_codes_of_uncorrelated_inputs_are_the_nearest(pool):
    rows = np.vstack([np.eye(4), -np.eye(4)])[None].repeat(4, axis=1)
    case = problem(rows, np.random.default_rng(3).standard_normal((1, 5, 4)))
    for solution in solutions(case, Rounding(), pool):
        np.testing.assert_array_equal(solution.codes, case.nearest())


def test_two_equal_inputs_share_their_rounding_error(pool):
    """0.4 + 0.4 on a grid of 1 is 1 + 0, not 0 + 0: worked out by hand."""
    rows = np.linspace(-1, 1, 20)[None, :, None].repeat(2, axis=2)
    case = problem(rows, np.array([[[0.4, 0.4]]]), scale=1.0)
    solution = solutions(case, Rounding(damping=1e-3), pool)[0]
    assert sorted(solution.codes.reshape(-1)) == [0, 1]


def test_codes_stay_within_the_span_and_the_format(pool):
    rng = np.random.default_rng(5)
    case = replace(problem(correlated(1, 80, 6), 3 * rng.standard_normal((1, 8, 6)), noise=0.5), low=-7, high=7)
    for span in (1, 2, 3):
        for solution in solutions(case, Rounding(span=span, damping=0.001), pool):
            assert np.abs(solution.codes).max() <= 7
            steps = solution.codes - np.clip(np.floor(case.weight / 0.25), -7, 7)
            assert steps.min() >= -(span - 1) and steps.max() <= span


def test_strong_damping_is_rounding_to_nearest(pool):
    case = problem(correlated(1, 80, 6), np.random.default_rng(1).standard_normal((1, 4, 6)), noise=0.3)
    codes = descend(case, RowMoments.of(case), 1e9, Rounding(), pool)
    np.testing.assert_array_equal(codes, case.nearest())


def test_a_scale_for_each_channel(pool):
    rng = np.random.default_rng(7)
    case = problem(correlated(2, 60, 4), rng.standard_normal((2, 3, 4)))
    case = replace(case, weight_scale=2.0 ** -rng.integers(1, 5, (2, 3)).astype(float))
    together = descend(case, RowMoments.of(case), 0.1, Rounding(), pool)
    for g, c in itertools.product(range(2), range(3)):
        single = replace(
            case,
            weight=case.weight[g : g + 1, c : c + 1],
            bias=case.bias[g : g + 1, c : c + 1],
            rows=case.rows[g : g + 1],
            target=case.target[:, g : g + 1, c : c + 1],
            weight_scale=case.weight_scale[g : g + 1, c : c + 1],
        )
        np.testing.assert_array_equal(
            descend(single, RowMoments.of(single), 0.1, Rounding(), pool)[0, 0], together[g, c]
        )


def test_dead_and_constant_inputs_give_no_nan(pool):
    rows = correlated(2, 40, 4)
    rows[0] = 0.0
    rows[1, :, 1] = 0.0
    rows[1, :, 2] = 3.0
    case = problem(rows, np.random.default_rng(2).standard_normal((2, 2, 4)))
    for solution in solutions(case, Rounding(), pool):
        assert np.isfinite(solution.codes).all() and np.isfinite(solution.bias).all()
        np.testing.assert_array_equal(solution.codes[0], case.nearest()[0])
        np.testing.assert_array_equal(solution.codes[1][:, 1:3], case.nearest()[1][:, 1:3])


def test_rows_that_are_not_finite_give_no_solution(pool):
    case = problem(correlated(1, 40, 4), np.ones((1, 2, 4)))
    case.rows[0, 0, 0] = np.inf
    assert Rounding().choose(case, problem(correlated(1, 40, 4), np.ones((1, 2, 4))), pool).solution is None


def test_the_bias_matches_the_means(pool):
    case = problem(correlated(1, 50, 4) + 2.0, np.random.default_rng(4).standard_normal((1, 3, 4)), noise=0.1)
    solution = solutions(case, Rounding(), pool)[0]
    found = np.matmul(case.rows, (solution.codes * 0.25).transpose(0, 2, 1)) + solution.bias[:, None, :]
    np.testing.assert_allclose(found.mean(axis=1), case.target.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(solution.bias, case.matching_bias(solution.codes), atol=1e-5)


def test_a_bias_that_is_not_free_stays_and_is_reckoned_with(pool):
    case = problem(np.full((1, 30, 1), 1.0), np.array([[[0.4]]]), scale=1.0, bias=0.7, free_bias=False)
    solution = solutions(case, Rounding(damping=1e-6), pool)[0]
    assert solution.bias.tolist() == [[0.7]] and solution.codes.tolist() == [[[0]]]
    case = replace(case, bias=case.bias - 0.3)  # the layer adds too little, so the weight has to make up for it
    assert solutions(case, Rounding(damping=1e-6), pool)[0].codes.tolist() == [[[1]]]


def test_only_what_is_better_on_held_out_rows_is_taken(pool):
    weight = np.random.default_rng(6).standard_normal((1, 6, 12))
    seen, unseen = correlated(1, 400, 12), correlated(1, 400, 12, seed=0)
    good = Rounding().choose(problem(seen, weight), problem(unseen, weight), pool)
    assert good.solution is not None and good.after < good.before
    other = problem(correlated(1, 400, 12, seed=99), weight)
    noise = problem(np.random.default_rng(8).standard_normal((1, 13, 12)), weight, noise=2.0)
    bad = Rounding(damping=1e-6).choose(noise, other, pool)
    assert bad.solution is None and bad.after == bad.before


def test_the_error_is_that_after_activation_and_saturation():
    rows = np.array([[[-4.0], [1.0], [2.0], [100.0]]])
    case = problem(rows, np.ones((1, 1, 1)), scale=1.0)
    relu = replace(case, activation=Activation(0.0), output=QuantParams.at(INT8, 4))  # at most 127 / 16
    codes, bias = np.full((1, 1, 1), 2.0), np.zeros((1, 1))
    top = 127 / 16
    assert relu.relative_error(codes, bias) == pytest.approx((0 + 1 + 4 + 0) / (0 + 1 + 4 + top**2), rel=1e-6)
    assert case.relative_error(codes, bias) == pytest.approx(1.0)


def test_the_stored_bias_is_what_counts():
    coarse = replace(
        problem(np.zeros((1, 4, 1)), np.ones((1, 1, 1)), bias=0.3), bias_params=QuantParams.of(INT8, 1.0, 0)
    )
    assert coarse.relative_error(np.zeros((1, 1, 1)), np.full((1, 1), 0.3)) == pytest.approx(1.0, rel=1e-5)
