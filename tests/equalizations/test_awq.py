from __future__ import annotations

import numpy as np
import pytest

from detent.equalizations import Awq, parse_smoothing, smoothing_text
from detent.errors import UsageError
from tests.models import normal


def to_steps(rows):
    """Rounding with one step for all, of a 4-bit weight."""
    step = np.abs(rows).max() / 7
    return np.rint(rows / step) * step


def error(rows, weight, factors):
    return np.square(rows @ (to_steps(weight * factors[:, None]) / factors[:, None] - weight)).sum()


def rows_of(sizes, seed):
    return normal(64, len(sizes), seed=seed).astype(np.float64) * sizes


SIZES = np.array([1, 1, 50, 1, 1, 1, 20, 1])


def test_large_channels_get_large_factors_and_outputs_are_nearer():
    learned, confirmed = rows_of(SIZES, 0), rows_of(SIZES, 1)
    weight = normal(8, 16, seed=2).astype(np.float64)
    factors, before, after = Awq().choose(learned, confirmed, [(weight, to_steps)])
    assert list(np.argsort(-factors)[:2]) == [2, 6]
    np.testing.assert_allclose(np.exp(np.log(factors).mean()), 1)
    signal = np.square(confirmed @ weight).sum()
    assert before == pytest.approx(error(confirmed, weight, np.ones(8)) / signal)
    assert after == pytest.approx(error(confirmed, weight, factors) / signal)
    assert after < before / 2


def test_the_factors_are_the_best_power_of_the_mean_magnitudes():
    learned, confirmed = rows_of(SIZES, 0), rows_of(SIZES, 1)
    weight = normal(8, 16, seed=2).astype(np.float64)
    factors, _, _ = Awq(steps=4).choose(learned, confirmed, [(weight, to_steps)])
    means = np.abs(learned).mean(axis=0)
    tried = [(means / np.exp(np.log(means).mean())) ** (step / 4) for step in range(5)]
    np.testing.assert_allclose(factors, min(tried, key=lambda each: error(learned, weight, each)))


def test_weights_stay_where_nothing_is_gained():
    rows, weight = rows_of(SIZES, 0), normal(8, 16, seed=2).astype(np.float64)
    assert Awq().choose(rows, rows, [(weight, lambda each: each)]) is None  # nothing is rounded
    equal = np.tile([[1.0], [-1.0]], (8, 8))
    assert Awq().choose(equal, equal, [(weight, to_steps)]) is None  # all channels are alike
    zeros = np.zeros((4, 8))
    assert Awq().choose(zeros, zeros, [(weight, to_steps)]) is None
    # What other rows do not confirm is not taken: there, only the channels count that the first rows did not have.
    assert Awq().choose(rows, rows * (SIZES == 1), [(weight, to_steps)]) is None


def test_smoothing_as_text():
    assert parse_smoothing("0.5") == 0.5
    assert parse_smoothing("awq:steps=5,insert=true") == Awq(steps=5, insert=True)
    assert parse_smoothing("none") is None
    for each in (0.5, Awq(), Awq(rows=64), None):
        assert parse_smoothing(smoothing_text(each)) == each
    with pytest.raises(UsageError, match="smoothing 'Gptq'"):
        parse_smoothing("Gptq")
    with pytest.raises(UsageError, match="steps of Awq is 0"):
        Awq(steps=0)
