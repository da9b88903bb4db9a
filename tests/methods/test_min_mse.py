from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detent.methods.method import Points
from detent.methods.min_mse import fitted, min_mse_range
from detent.methods.percentile import percentile_range
from detent.numerics.formats import IntegerFormat
from tests.methods.data import DISTRIBUTIONS, FORMATS, binned, identifier, squared_error

SEARCHED = [IntegerFormat("int4"), IntegerFormat("uint4", False), IntegerFormat("uint8"), IntegerFormat("uint8", False)]


@settings(max_examples=200, deadline=None)
@given(st.floats(-3e38, 3e38), st.floats(-3e38, 3e38), st.sampled_from(FORMATS))
@example(0.0, 0.0, IntegerFormat("uint8"))
@example(0.0, 5e-324, IntegerFormat("int8", symmetric=False))
def test_the_compiled_fit_is_the_fit_of_the_format(a, b, fmt):
    low, high = min(a, b), max(a, b)
    params = fmt.fit(low, high)
    codes = (float(fmt.low), float(fmt.high), float(fmt.middle), fmt.symmetric)
    scale, low_level, high_level = fitted(low, high, codes)
    assert scale == params.scale
    assert (low_level, high_level) == (fmt.low - params.zero_point, fmt.high - params.zero_point)


def brute_force(values, fmt):
    """The least error on the data themselves over a dense grid of ranges."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    if fmt.symmetric:
        largest = max(-low, high)
        ranges = [(-share * largest, share * largest) for share in np.geomspace(0.004, 1.0, 200)]
    else:
        shares = np.concatenate((np.geomspace(0.004, 0.4, 12), np.linspace(0.45, 1.0, 12)))
        lows = [low * share for share in shares] if low else [0.0]
        highs = [high * share for share in shares] if high else [0.0]
        ranges = [(a, b) for a in lows for b in highs]
    return min(squared_error(values, fmt.fit(*found)) for found in ranges)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("fmt", SEARCHED, ids=identifier)
def test_no_range_of_a_dense_search_is_better(name, fmt):
    values = DISTRIBUTIONS[name][:600]
    best = brute_force(values, fmt)
    on_data = squared_error(values, fmt.fit(*min_mse_range(Points.of_values(values), fmt)))
    on_bins = squared_error(values, fmt.fit(*min_mse_range(binned(values), fmt)))
    slack = 1e-14 * values.size * float(np.abs(values).max()) ** 2
    assert on_data <= best * 1.01 + slack
    assert on_bins <= best * 1.03 + slack


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("fmt", FORMATS, ids=identifier)
def test_never_worse_than_the_candidates_of_other_tools(name, fmt):
    """Four percentiles, and windows that shrink from all of the range to half of it."""
    values = DISTRIBUTIONS[name][:1000]
    points = Points.of_values(values)
    found = squared_error(values, fmt.fit(*min_mse_range(points, fmt)))
    low, high = points.minimum, points.maximum
    others = [percentile_range(points, percentile, symmetric=False) for percentile in (99.9, 99.99, 99.999, 99.9999)]
    cuts = [(high - low) * cut / 2 for cut in np.linspace(0.0, 0.5, 25)]
    others += [(low + cut, high - cut) for cut in cuts]
    best = min(squared_error(values, fmt.fit(*other)) for other in others)
    assert found <= best * 1.001 + 1e-14 * values.size * points.largest**2


@pytest.mark.parametrize("fmt", [IntegerFormat("int4"), IntegerFormat("uint4", False)], ids=identifier)
def test_outliers_that_no_percentile_cuts_are_clipped_where_that_pays(fmt):
    # 15 in 10000 at 20 sigma: clipping them to 3 costs 0.0015 * 17^2 = 0.43, keeping them nearly all there is.
    values = np.concatenate((np.resize(DISTRIBUTIONS["normal"], 10_000), np.full(15, 20.0))).astype(np.float32)
    chosen = min_mse_range(binned(values), fmt)
    assert chosen.high < (10.0 if fmt.symmetric else 16.0)
    assert squared_error(values, fmt.fit(*chosen)) <= 1.01 * brute_force(values, fmt)


def test_sixteen_bits_clip_next_to_nothing():
    for name in ("normal", "laplace", "relu"):
        points = binned(DISTRIBUTIONS[name])
        low, high = min_mse_range(points, IntegerFormat("uint16", symmetric=False))
        assert high == pytest.approx(points.maximum, rel=0.01)
        assert low == pytest.approx(min(points.minimum, 0.0), rel=0.01)


def test_known_steps_for_a_normal_distribution():
    """The best uniform quantizer of a normal distribution has steps of 0.3534 for 15 levels, of 0.0308 for 255."""
    values = np.random.default_rng(3).normal(size=400_000).astype(np.float32)
    assert min_mse_range(binned(values), IntegerFormat("int4")).high / 7 == pytest.approx(0.3534, rel=0.01)
    assert min_mse_range(binned(values), IntegerFormat("int8")).high / 127 == pytest.approx(0.0308, rel=0.03)


@pytest.mark.parametrize("fmt", FORMATS, ids=identifier)
def test_data_on_the_grid_are_kept_exactly(fmt):
    values = np.array([-3.0, -1.0, 0.0, 0.0, 1.0, 2.0, 3.0], np.float32)
    found = fmt.fit(*min_mse_range(Points.of_values(values), fmt))
    assert squared_error(values, found) <= squared_error(values, fmt.fit(-3.0, 3.0)) + 1e-12


def test_nothing_and_zero():
    for points in (Points.of_values([]), Points.of_values([0.0]), binned([0.0, -0.0])):
        assert min_mse_range(points, IntegerFormat("int8")) == (0.0, 0.0)
