from __future__ import annotations

import math

import numpy as np

from detent.measure.comparing import EVERYTHING, Sums, ask
from detent.measure.probe import ITSELF
from detent.measure.things import things_of
from tests.measure.test_sensitivity import SAMPLES
from tests.models import SMALL_MODELS, planned


def test_sums_by_hand():
    one = Sums(1, np.array([4.0]), {"v": np.array([1.0])}, {"v": 1})
    two = Sums(2, np.array([12.0]), {"v": np.array([3.0])}, {"v": 0})
    total = one + two
    assert (total.samples, total.changed) == (3, {"v": 1})
    assert total.error("v") == 4 / 16
    # Each output counts alike, whatever its size; one that is zero throughout does not.
    assert Sums(1, np.array([4.0, 400.0, 0.0]), {"v": np.array([1.0, 0.0, 1.0])}, {}).error("v") == 1 / 8
    assert Sums(1, np.array([4.0]), {"v": np.array([math.nan])}, {}).error("v") == math.inf


def test_two_questions():
    """Quantized alone: everything, and each thing. Left float: each layer that has something of its own."""
    model, plan = planned(SMALL_MODELS["residual"]())
    things = things_of(model, plan)
    alone, left = (
        ask(question, model, plan, things, 1 << 20)(SAMPLES[0]) for question in ("quantized alone", "left float")
    )
    assert list(alone.noise) == [ITSELF, EVERYTHING, *(thing.name for thing in things)]
    assert list(left.noise) == [ITSELF, "conv_c1", "conv_c2", "add_s"]
    assert not alone.noise[ITSELF].any()
    np.testing.assert_array_equal(alone.noise[EVERYTHING], left.noise[ITSELF])
    np.testing.assert_array_equal(alone.signal, left.signal)
