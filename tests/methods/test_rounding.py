from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.methods.method import Points, absolute_error, squared_error
from detent.methods.min_mse import error_table, grid_error
from tests.methods.data import DISTRIBUTIONS, FORMATS, binned, identifier


def arrays(*values):
    return [np.array([value], np.float64) for value in values]


@pytest.mark.parametrize(
    ("lower", "upper", "squared", "absolute"),
    [
        (0.3, 0.3, 0.09, 0.3),
        (0.0, 1.0, 1 / 12, 0.25),  # all of one step: s^2 / 12 and s / 4
        (-0.5, 0.5, 1 / 12, 0.25),
        (-40.0, 40.0, None, None),
        (2.0, 3.0, 1 / 3, 0.5),  # clipped at 2: the mean of x^2 and of x over 0..1
        (-5.0, -3.0, 26 / 6, 2.0),  # clipped at -2: (3^3 - 1^3) / 3 / 2, and 2
        (1.75, 2.25, 0.0625 / 3, 0.125),  # both sides of the last code
        (0.25, 0.75, (0.25 * 0.25 + 0.25 * 0.5 + 0.25) / 3, 0.375),
    ],
)
def test_known_errors(lower, upper, squared, absolute):
    points = arrays(lower, upper, 3.0)
    if squared is None:  # -2.5..2.5 has the noise of its five steps; beyond, the tails are clipped
        squared = (5 / 12 + 2 * (38**3 - 0.5**3) / 3) / 80
        absolute = (5 / 4 + 2 * (38**2 - 0.5**2) / 2) / 80
    assert squared_error(*points, 1.0, -2.0, 2.0) == pytest.approx(3 * squared)
    assert absolute_error(*points, 1.0, -2.0, 2.0) == pytest.approx(3 * absolute)


@settings(max_examples=60, deadline=None)
@given(st.floats(-6, 6), st.floats(0.001, 6), st.floats(0.1, 3))
def test_the_error_of_a_spread_point_is_the_mean_over_it(lower, width, scale):
    values = lower + width * (np.arange(20_000) + 0.5) / 20_000
    error = values - scale * np.clip(np.rint(values / scale), -3, 4)
    points = arrays(lower, lower + width, 1.0)
    assert squared_error(*points, scale, -3.0, 4.0) == pytest.approx((error**2).mean(), rel=1e-3, abs=1e-8)
    assert absolute_error(*points, scale, -3.0, 4.0) == pytest.approx(np.abs(error).mean(), rel=1e-3, abs=1e-8)


@pytest.mark.parametrize("fmt", FORMATS, ids=identifier)
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "binned"])
def test_the_table_gives_the_error_of_the_points(fmt, raw):
    for values in DISTRIBUTIONS.values():
        points = Points.of_values(values) if raw else binned(values)
        table = error_table(points)
        for share in (1.0, 0.6, 0.11, 0.003):
            params = fmt.fit(points.minimum * share, points.maximum * share)
            low, high = float(fmt.low - int(params.zero_point)), float(fmt.high - int(params.zero_point))
            wanted = squared_error(points.lower, points.upper, points.counts, float(params.scale), low, high)
            found = grid_error(table, float(params.scale), low, high, np.inf)
            slack = 1e-12 * points.total * points.largest**2
            assert found == pytest.approx(wanted, rel=0.01 if fmt.bits == 16 else 1e-6, abs=slack)


def test_the_table_stops_past_the_limit():
    table = error_table(Points.of_values(DISTRIBUTIONS["normal"]))
    error = grid_error(table, 0.01, -127.0, 127.0, np.inf)
    assert grid_error(table, 0.01, -127.0, 127.0, error * 1.001) == error
    assert grid_error(table, 0.01, -127.0, 127.0, error * 0.9) == np.inf


@pytest.mark.parametrize("name", ["normal", "laplace", "relu", "relu6", "bimodal", "huge", "tiny"])
def test_the_error_from_bins_is_that_of_the_data(name):
    """For 16 bits the steps are finer than the bins: an error of bin centres would be anything, even zero."""
    data = DISTRIBUTIONS[name].astype(np.float64)
    points = binned(data)
    for fmt in FORMATS:
        params = fmt.fit(points.minimum * 0.9, points.maximum * 0.9)
        low, high = float(fmt.low - int(params.zero_point)), float(fmt.high - int(params.zero_point))
        found = squared_error(points.lower, points.upper, points.counts, float(params.scale), low, high)
        assert found == pytest.approx(((params.snap(data) - data) ** 2).sum(), rel=0.03)
