from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import detent
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.recipe.file import find_recipe
from detent.refinements import Gptq, Rounding, parse_refinement
from detent.refinements.layer_problem import StepRounder
from detent.refinements.least_squares import RowMoments
from tests.refinements.layer_problems import layer
from tests.test_transformers import quality
from tests.transformer_models import Style, bert, bert_data


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def common(inputs=24, groups=1, seed=0):
    """A layer whose inputs have much in common."""
    case = layer(groups=groups, channels=16, inputs=inputs, samples=300, seed=seed)
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(groups, 300, 3)) @ random.normal(size=(groups, 3, inputs))
    rows = (mixed + 0.2 * random.normal(size=(groups, 300, inputs))).astype(np.float32)
    target = (rows @ case.weight.swapaxes(1, 2) + case.bias[:, None]).transpose(1, 0, 2)
    return replace(case, rows=rows, target=target.astype(np.float32))


@pytest.mark.parametrize("order", ["natural", "activation"])
@pytest.mark.parametrize("grouped", [False, True])
def test_better_than_nearest_on_the_rows_it_saw(pool, order, grouped):
    before, after = [], []
    for seed in range(6):
        case = common(groups=2, seed=seed)
        if grouped:  # a scale for each run of eight weights
            scale = np.repeat(np.random.default_rng(seed).uniform(0.05, 0.3, (2, 16, 3)), 8, axis=2)
            case = replace(case, rounder=StepRounder(scale, np.full(scale.shape, -7.0), np.full(scale.shape, 7.0)))
            case = replace(case, weight_scale=np.ones((2, 16)))
        moments = RowMoments.of(case)
        error = moments.to_weights(case.weight, 0.01)
        solution = Gptq(order=order, block=7).round_layer(case, moments, pool)
        scale = case.weight_scale[..., None]
        least = error.errors(case.weight)
        np.testing.assert_array_equal(case.codes(solution.codes * scale), solution.codes)
        before.append((error.errors(case.nearest() * scale) - least).mean())
        after.append((error.errors(solution.codes * scale) - least).mean())
    assert np.mean(after) < 0.5 * np.mean(before)


def test_without_damping_singular_moments_are_told(pool):
    case = common()
    case.rows[:, :, 1] = 0.0
    found = Gptq(damping=0.0).choose(case, case, pool)
    assert found.solution is None and "singular: raise the damping" in found.reason
    assert Gptq().choose(case, case, pool).solution is not None


def test_settings_are_checked():
    assert parse_refinement("gptq:damping=0.1,order=natural,block=64") == Gptq(damping=0.1, order="natural", block=64)
    for text in ("gptq:order=random", "gptq:block=0", "gptq:damping=-1", "rounding:span=0"):
        with pytest.raises(UsageError):
            parse_refinement(text)


@pytest.mark.parametrize("refinement", [Gptq(), Rounding()], ids=["Gptq", "Rounding"])
def test_weights_of_four_bits_in_groups(refinement):
    """A transformer of which only weights are quantized is closer to float than with the nearest ones."""
    proto, recipe = bert(Style(), layers=1), find_recipe("MATMUL_NBITS")
    recipe = recipe.replace(weights=IntegerFormat("int4", granularity="per_group:16"))
    found = {}
    for each in (None, refinement):
        report = detent.quantize(proto, calibration=bert_data(64), recipe=recipe.replace(refinement=each))
        found[each] = quality(proto, report.model, bert_data(32, seed=5))
    assert found[refinement] > found[None] + 1.0
    assert report.refined


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_other_integers(dtype):
    proto = bert(Style(), layers=1)
    recipe = find_recipe("A16W8").replace(weights=IntegerFormat(dtype, granularity="per_channel"), refinement=Gptq())
    report = detent.quantize(proto, calibration=bert_data(24), recipe=recipe)
    assert quality(proto, report.model, bert_data(8, seed=5)) > 30
