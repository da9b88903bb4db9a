from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.measure.rescaled import LEAST, is_rescaled


def values(seed, shape=(1, 6, 8, 8)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


FACTORS = np.array([0.2, 3.0, 1.0, 8.0, 0.5, 2.0], np.float32)


@given(st.integers(0, 100), st.floats(0.0, 0.15))
def test_channels_at_other_scales(seed, noise):
    x = values(seed)
    factors = FACTORS.reshape(1, 6, 1, 1)
    assert is_rescaled(x, factors * (x + noise * values(seed + 1000)))
    last = np.moveaxis(x, 1, -1)
    assert is_rescaled(last, FACTORS * (last + noise * np.moveaxis(values(seed + 1000), 1, -1)))


@pytest.mark.parametrize("block", [8, 16])
def test_channels_in_blocks(block):
    x = values(0, (2, 32, 4, 8))
    factors = np.exp(np.random.default_rng(1).standard_normal((1, 32, 1, 1))).astype(np.float32)
    in_memory = [
        each.reshape(2, 32 // block, block, 4, 8).transpose(0, 1, 3, 4, 2).reshape(x.shape) for each in (x, factors * x)
    ]
    assert is_rescaled(*in_memory)


@given(st.integers(0, 100), st.floats(1e-3, 100.0))
def test_noise_is_not_mistaken_for_scales(seed, noise):
    x = values(seed)
    assert not is_rescaled(x, x + np.float32(noise) * values(seed + 1000))


def test_channels_with_few_elements_tell_nothing():
    assert not is_rescaled(values(0, (1, 64, 1, 1)), values(1, (1, 64, 1, 1)))
    few = values(0, (1, 4, LEAST - 1))
    assert not is_rescaled(few, np.array([[[1.0], [-1.0], [1.0], [-1.0]]]) * few)
    assert not is_rescaled(values(0, (64, 64)), np.linspace(0, 3, 64) * values(0, (64, 64)))  # of one sample each


def test_one_factor_throughout():
    assert is_rescaled(values(0, (1, LEAST)), 3 * values(0, (1, LEAST)))
    assert not is_rescaled(values(0, (1, LEAST - 1)), 3 * values(0, (1, LEAST - 1)))


@pytest.mark.parametrize("other", [values(0), np.full((1, 6, 8, 8), np.nan), np.zeros((1, 6, 8, 8))])
def test_equal_broken_and_silent_tensors_are_not_rescaled(other):
    assert not is_rescaled(values(0), other)
