"""Weights that make up for each other's errors, block by block."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from detent.errors import UsageError
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.recipe import Recipe
from detent.refinements import QuickRounding, parse_refinement
from detent.refinements.gptq import order_by_activation, round_in_order
from detent.refinements.least_squares import RowMoments
from tests.refinements.layer_problems import layer


@pytest.fixture
def pool():
    with ThreadPoolExecutor(3) as executor:
        yield executor


def common(inputs=24, groups=1, seed=0, samples=300):
    """A layer whose inputs have much in common."""
    case = layer(groups=groups, channels=16, inputs=inputs, samples=samples, seed=seed)
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(groups, samples, 3)) @ random.normal(size=(groups, 3, inputs))
    rows = (mixed + 0.2 * random.normal(size=(groups, samples, inputs)) + 1.0).astype(np.float32)
    target = (rows @ case.weight.swapaxes(1, 2) + case.bias[:, None]).transpose(1, 0, 2)
    return replace(case, rows=rows, target=target.astype(np.float32))


def test_two_equal_inputs_share_their_error(pool):
    case = layer(channels=1, inputs=2, samples=50, step=1.0)
    rows = np.repeat(np.random.default_rng(0).normal(size=(1, 50, 1)), 2, axis=2).astype(np.float32)
    case = replace(case, rows=rows, weight=np.array([[[0.4, 0.4]]]))
    # The nearest codes are 0 and 0, whose sum is 0.8 too low; rounded in turn, the second becomes 1.
    assert sorted(QuickRounding(damping=0.01).steps(case, pool).ravel()) == [0.0, 1.0]


def test_blocks_know_nothing_of_each_other(pool):
    case = layer(channels=1, inputs=2, samples=50, step=1.0)
    rows = np.repeat(np.random.default_rng(0).normal(size=(1, 50, 1)), 2, axis=2).astype(np.float32)
    case = replace(case, rows=rows, weight=np.array([[[0.4, 0.4]]]))
    np.testing.assert_array_equal(QuickRounding(damping=0.01, block=1).steps(case, pool).ravel(), [0.0, 0.0])


@pytest.mark.parametrize("samples", [299, 300])
@pytest.mark.parametrize("free_bias", [True, False])
def test_one_block_is_gptq(pool, samples, free_bias):
    case = replace(common(groups=2, samples=samples), free_bias=free_bias)
    moments = RowMoments.of(case)
    second = moments.to_weights(case.weight, 0.1).second
    expected = round_in_order(case.weight, second, case.grid(), order_by_activation(second), pool)
    np.testing.assert_array_equal(QuickRounding().steps(case, pool), expected)


@pytest.mark.parametrize("block", [7, 24, 128])
def test_better_than_nearest_on_the_rows_it_saw(pool, block):
    before, after = [], []
    for seed in range(6):
        case = common(groups=2, seed=seed)
        error, scale = RowMoments.of(case).to_weights(case.weight, 0.01), case.weight_scale[..., None]
        codes = case.codes_of_steps(QuickRounding(block=block).steps(case, pool))
        np.testing.assert_array_equal(case.codes(codes * scale), codes)
        least = error.errors(case.weight)
        before.append((error.errors(case.nearest() * scale) - least).mean())
        after.append((error.errors(codes * scale) - least).mean())
    assert np.mean(after) < 0.6 * np.mean(before)


def test_limits_hold(pool):
    case = replace(common(), low=-2, high=3)
    steps = QuickRounding().steps(case, pool)
    assert steps.min() >= -2 and steps.max() <= 3


def test_the_same_codes_for_any_number_of_threads():
    case, found = common(inputs=300), []
    for threads in (1, 4):
        with ThreadPoolExecutor(threads) as pool:
            found.append(QuickRounding(block=32).steps(case, pool))
    np.testing.assert_array_equal(*found)


def test_inputs_that_never_change_keep_the_nearest_codes(pool):
    case = common()
    case.rows[...] = 0.5
    np.testing.assert_array_equal(QuickRounding().steps(case, pool), case.nearest())


def test_weights_that_are_not_integers_are_left():
    assert QuickRounding().why_not(QuantParams.at(IntegerFormat("int8", scale="power_of_two"), 7)) is None
    recipe = Recipe("floats", "", weights=FloatFormat("bfloat16"))
    assert recipe.refinement == QuickRounding()
    QuickRounding().check_formats(recipe.name, [recipe.weights, None], [])


@pytest.mark.parametrize("setting", ["block=0", "damping=-1", "rows=0"])
def test_bad_settings_are_told(setting):
    with pytest.raises(UsageError, match=setting.partition("=")[0]):
        parse_refinement(f"QuickRounding:{setting}")
