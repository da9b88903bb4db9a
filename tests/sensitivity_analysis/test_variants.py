from __future__ import annotations

import math

import numpy as np

from detent.execute.probe import ITSELF
from detent.sensitivity_analysis.variants import EVERYTHING, VariantComparison, VariantErrors, quantized_units
from tests.models import SMALL_MODELS, planned
from tests.sensitivity_analysis.test_layer_errors import SAMPLES


def test_sums_by_hand():
    one = VariantErrors(1, np.array([4.0]), {"v": np.array([1.0])}, {"v": 1})
    two = VariantErrors(2, np.array([12.0]), {"v": np.array([3.0])}, {"v": 0})
    total = one + two
    assert (total.samples, total.changed) == (3, {"v": 1})
    assert total.error("v") == 4 / 16
    # Each output counts alike, whatever its size; one that is zero throughout does not.
    parts = VariantErrors(1, np.array([4.0, 400.0, 0.0]), {"v": np.array([1.0, 0.0, 1.0])}, {})
    assert (parts.error("v"), parts.mean_error("v")) == (1 / 4, 1 / 8)  # the last is zero throughout: no part of it
    assert VariantErrors(1, np.array([4.0]), {"v": np.array([math.nan])}, {}).error("v") == math.inf


def test_two_questions():
    """Quantized alone: everything, and each thing. Left float: each layer that has something of its own."""
    model, plan = planned(SMALL_MODELS["residual"]())
    things = quantized_units(model, plan)
    alone, left = (
        VariantComparison.of(question, model, plan, things, {}, 1 << 20)(SAMPLES[0])
        for question in ("quantized alone", "left float")
    )
    assert list(alone.noise) == [ITSELF, EVERYTHING, *(thing.name for thing in things)]
    assert list(left.noise) == [ITSELF, "conv_c1", "conv_c2", "add_s"]
    assert not alone.noise[ITSELF].any()
    np.testing.assert_array_equal(alone.noise[EVERYTHING], left.noise[ITSELF])
    np.testing.assert_array_equal(alone.signal, left.signal)
