from __future__ import annotations

import math

import numpy as np
import pytest

from detent.measure.sums import CHUNK, error_sums, largest_magnitude
from tests.models import normal


def magnitude(bits):
    return np.uint32(bits).view(np.float32)


def test_all_sums_at_once():
    x, y = np.array([1, -3, 2], np.float32), np.array([1, -2, 0], np.float32)
    *sums, peak = error_sums(x, y)
    assert sums == [14.0, 5.0, 5.0, 3.0]
    assert magnitude(peak) == 3.0


def test_no_elements():
    empty = np.zeros(0, np.float32)
    assert error_sums(empty, empty) == (0.0, 0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_every_chunk_is_counted(size):
    x, y = normal(size, seed=1), normal(size, seed=2)
    a, b = x.astype(np.float64), y.astype(np.float64)
    *sums, peak = error_sums(x, y)
    assert sums == pytest.approx([a @ a, (a - b) @ (a - b), b @ b, np.abs(a - b).sum()], rel=1e-12)
    assert magnitude(peak) == np.abs(x).max()
    # The product, without a sum of its own.
    assert (sums[0] + sums[2] - sums[1]) / 2 == pytest.approx(a @ b, abs=1e-10 * size)


@pytest.mark.parametrize("special", [-0.0, 1e-45, -1e-45, math.inf, -math.inf])
def test_the_largest_of_special_numbers(special):
    x = np.array([0.0, special], np.float32)
    assert magnitude(largest_magnitude(x.view(np.uint32))) == np.abs(x).max()


def test_nan_is_above_all():
    for nan in (math.nan, -math.nan):
        x = np.array([math.inf, nan, 1.0], np.float32)
        assert math.isnan(magnitude(largest_magnitude(x.view(np.uint32))))
