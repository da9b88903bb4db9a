from __future__ import annotations

import math

import numpy as np
import pytest

from detent.evaluation.fidelity import PIECE, channel_sums, error_sums, largest_magnitude
from tests.models import normal


def magnitude(bits):
    return np.uint32(bits).view(np.float32)


def plain(x, y):
    """All values as one channel that keeps its scale."""
    return error_sums(x, y, np.ones(1), x.size, 1)


def in_memory(array, lanes):
    """[N, C, S] as it lies in blocks of so many channels: [N, C / lanes, S, lanes]."""
    n, channels, positions = array.shape
    return np.ascontiguousarray(array.reshape(n, channels // lanes, lanes, positions).swapaxes(2, 3)).reshape(-1)


def test_all_sums_at_once():
    x, y = np.array([1, -3, 2], np.float32), np.array([1, -2, 0], np.float32)
    *sums, peak = plain(x, y)
    assert sums == [14.0, 5.0, 5.0, 3.0]
    assert magnitude(peak) == 3.0


def test_no_elements():
    empty = np.zeros(0, np.float32)
    assert plain(empty, empty) == (0.0, 0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_every_piece_is_counted(size):
    x, y = normal(size, seed=1), normal(size, seed=2)
    a, b = x.astype(np.float64), y.astype(np.float64)
    *sums, peak = plain(x, y)
    assert sums == pytest.approx([a @ a, (a - b) @ (a - b), b @ b, np.abs(a - b).sum()], rel=1e-12)
    assert magnitude(peak) == np.abs(x).max()
    # The product, without a sum of its own.
    assert (sums[0] + sums[2] - sums[1]) / 2 == pytest.approx(a @ b, abs=1e-10 * size)


LAYOUTS = [
    (n, lanes * groups, positions, lanes)
    for lanes in (1, 3, 4, 8, 16, 2 * PIECE)
    for groups in (1, 2, 3)
    for positions in (1, 2, 7, PIECE // 4, PIECE + 1)
    for n in (1, 2)
    if lanes * positions <= 20 * PIECE
]


@pytest.mark.parametrize(("n", "channels", "positions", "lanes"), LAYOUTS)
def test_channels_in_every_layout(n, channels, positions, lanes):
    x, y = normal(n, channels, positions, seed=1), normal(n, channels, positions, seed=2)
    factors = np.random.default_rng(3).uniform(0.5, 2, channels)
    a, b = x.astype(np.float64), y.astype(np.float64)
    one, other = in_memory(x, lanes), in_memory(y, lanes)
    found = channel_sums(one, other, channels, positions, lanes)
    expected = np.stack([(a * a).sum((0, 2)), (a * b).sum((0, 2)), (b * b).sum((0, 2))])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10)
    undone = b * factors[:, None]
    error = a - undone
    *sums, peak = error_sums(one, other, factors, positions, lanes)
    assert sums == pytest.approx([(a * a).sum(), (error**2).sum(), (undone**2).sum(), np.abs(error).sum()], rel=1e-12)
    assert magnitude(peak) == np.abs(x).max()


@pytest.mark.parametrize("special", [-0.0, 1e-45, -1e-45, math.inf, -math.inf])
def test_the_largest_of_special_numbers(special):
    x = np.array([0.0, special], np.float32)
    assert magnitude(largest_magnitude(x.view(np.uint32))) == np.abs(x).max()


def test_nan_is_above_all():
    for nan in (math.nan, -math.nan):
        x = np.array([math.inf, nan, 1.0], np.float32)
        assert math.isnan(magnitude(largest_magnitude(x.view(np.uint32))))
