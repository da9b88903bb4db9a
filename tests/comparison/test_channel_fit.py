from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.comparison import ChannelProducts, channel_axes, fit_scales
from detent.evaluation.fidelity import ChannelLayout, ChannelScales, NoiseSums
from tests.models import normal

SHAPE = (3, 5, 4, 4)


def fit(x, y, axis=1):
    """With every sample by itself, as they come."""
    return fit_scales([[ChannelProducts.of(x[at : at + 1], y[at : at + 1], axis, 1) for at in range(len(x))]])


def along_channels(factors):
    return np.asarray(factors, np.float32)[:, None, None]


@pytest.mark.parametrize("factors", [[1, 2, 4, 8, 0.25], [4, 4, 4, 4, 4], [1, 1, 1, 1, 2]])
def test_exact_factors_are_found_exactly(factors):
    x = normal(*SHAPE)
    found = fit(x, x * along_channels(factors))
    assert found.undoing.tolist() == [1 / factor for factor in factors]
    assert NoiseSums.of(x, x * along_channels(factors), found).noise == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x * np.float32(1.02),
        lambda x: -x,
        lambda x: x + normal(*SHAPE, seed=1),
        lambda x: normal(*SHAPE, seed=1),
        lambda x: x + np.float32(3),
        lambda x: 0 * x,
    ],
    ids=["same", "almost", "negative", "noise", "another", "offset", "nothing"],
)
def test_other_differences_are_no_scales(change):
    x = normal(*SHAPE)
    assert fit(x, change(x)) is None


def test_undoing_must_gain_enough():
    x, noise = normal(1, 2, 64, 64), normal(1, 2, 64, 64, seed=1)
    for gain, expected in ((1.3, True), (1.1, False)):  # noise of 0.04, and 0.09 or 0.01 for the factor
        found = fit(x, x * np.float32(gain) + np.float32(0.2) * noise)
        assert (found is not None) == expected


def test_channels_without_signal_keep_their_scale():
    x = normal(*SHAPE)
    y = x * along_channels([2, 2, 2, -2, 16])
    x[:, 0] = 0  # dead in the first model
    y[:, 1] = 0  # in the second
    x[:, 2] = y[:, 2] = 0  # in both
    assert fit(x, y).undoing.tolist() == [1, 1, 1, 1, 1 / 16]
    assert fit(np.zeros_like(x), y) is None


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_rescaled(special):
    x = normal(*SHAPE)
    y = 2 * x
    y[0, 1, 2, 3] = special
    assert fit(x, y) is None
    assert fit(y, x) is None


def test_few_values_fit_any_factor():
    x = np.abs(normal(8, 100))
    assert fit(x[:3], 3 * x[:3]) is None
    assert fit(x[:4], 3 * x[:4]) is not None


def test_factors_that_only_fit_the_noise():
    x = np.tile(np.array([[1], [0.38], [0.38], [0.38]], np.float32), (1, 2000))
    noise = 1 + 0.05 * normal(4, 2000)
    y = x * noise  # most of it is that of the largest value, and goes into the factor: 3.2 dB of 4 values
    assert fit(x, y) is None
    assert fit(x, 2 * y) is not None


def test_another_number_of_channels():
    x = normal(2, 4, 6)
    samples = [ChannelProducts.of(array, 2 * array, 1, 1) for array in (x, x[:, :3])]
    assert fit_scales([samples]) is None
    scales = fit_scales([samples[:1]])
    assert scales.fits(x.shape)
    assert not scales.fits(x[:, :3].shape)
    assert not scales.fits((4,))


@pytest.mark.parametrize("axis", [1, -1])
def test_the_axis_that_explains_more(axis):
    x = normal(2, 6, 8)
    factors = np.float32(2) ** np.arange(x.shape[axis])
    y = x * (factors[:, None] if axis == 1 else factors)
    found = fit_scales([[ChannelProducts.of(x, y, each, 1)] for each in channel_axes(3, 1)])
    assert found.axis == axis
    assert NoiseSums.of(x, y, found).noise == 0


def test_where_channels_may_be():
    assert [channel_axes(rank, 1) for rank in range(5)] == [(), (), (1,), (1, -1), (1, -1)]
    assert channel_axes(4, 8) == (1,)
    assert ChannelLayout.along(1, (2, 16, 3, 5), 8) == (16, 15, 8)
    assert ChannelLayout.along(1, (2, 16, 1, 1), 8) == (16, 1, 16)
    assert ChannelLayout.along(-1, (2, 7, 5)) == (5, 7, 5)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([1, 4, 8, 16]),
    st.lists(st.floats(0.01, 100), min_size=16, max_size=16),
    st.integers(1, 3),
    st.integers(2, 30),
)
def test_undone_as_by_numpy(lanes, factors, n, positions):
    x = normal(n, 16, positions, seed=positions)
    y = (x * np.array(factors)[:, None] + 0.1 * normal(n, 16, positions, seed=n)).astype(np.float32)
    in_blocks = [a.reshape(n, 16 // lanes, lanes, positions).swapaxes(2, 3).reshape(n, 16, positions) for a in (x, y)]
    sums = ChannelProducts.of(*in_blocks, 1, lanes)
    a, b = x.astype(np.float64), y.astype(np.float64)
    fitted = (a * b).sum((0, 2)) / (a * a).sum((0, 2))
    np.testing.assert_allclose(sums.sums[1] / sums.sums[0], fitted, rtol=1e-9, atol=1e-9)
    found = NoiseSums.of(*in_blocks, ChannelScales(1, 1 / fitted), lanes)
    error = a - b / fitted[:, None]
    assert found.noise == pytest.approx((error**2).sum())
    assert found.distance == pytest.approx(np.abs(error).sum())
