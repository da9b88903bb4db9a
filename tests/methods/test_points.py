from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.methods.method import Points
from detent.observe.statistics import Histogram
from tests.methods.data import DISTRIBUTIONS, binned

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_raw_values():
    points = Points.of_values([3.0, -1.0, 3.0, -0.0, 0.0])
    assert points.lower.tolist() == points.upper.tolist() == [-1.0, 0.0, 3.0]
    assert str(points.lower[1]) == "0.0"
    assert points.counts.tolist() == [1, 2, 2]
    assert (points.minimum, points.maximum, points.total, points.largest) == (-1.0, 3.0, 5.0, 3.0)


@pytest.mark.parametrize("points", [Points.of_values([]), Points.of_histogram(Histogram())])
def test_nothing(points):
    assert (points.minimum, points.maximum, points.total, points.largest) == (0.0, 0.0, 0.0, 0.0)
    assert points.within(-1.0, 1.0).total == points.magnitudes().total == 0.0


@settings(max_examples=100, deadline=None)
@given(st.lists(FINITE | st.sampled_from([0.0, 0.0, 1.0, -1.0, 1e-45]), min_size=1, max_size=40))
def test_bins_hold_every_value(values):
    data = np.array(values, np.float32).astype(np.float64)
    points = binned(data)
    assert points.total == data.size
    assert (points.minimum, points.maximum) == (data.min() + 0.0, data.max() + 0.0)
    assert points.lower[0] == points.minimum
    assert points.upper[-1] == points.maximum
    assert (points.lower <= points.upper).all()
    assert (points.upper[:-1] <= points.lower[1:]).all()
    for value in data:
        near = (points.lower <= value) & (value <= points.upper)
        taken_as_zero = 0.0 < value < points.largest / 2**12
        assert near.any() or taken_as_zero


@pytest.mark.parametrize("value", [0.7, -0.7, 0.0, 1e-45, -1e-45, 3e38, 1.0])
def test_a_constant_is_its_value(value):
    points = binned([value] * 5)
    assert points.lower.tolist() == points.upper.tolist() == [float(np.float32(value))]
    assert points.counts.tolist() == [5]


def test_zeros_of_a_relu_are_exact_and_its_small_values_are_not():
    values = DISTRIBUTIONS["relu"].repeat(20) * np.float32(1.25)
    smooth = np.linspace(0.0, 4.0, 80_000, endpoint=False, dtype=np.float32)[1:]
    points = binned(np.concatenate((values[values == 0], smooth)))
    zero = (points.lower == 0) & (points.upper == 0)
    assert points.counts[zero].sum() == pytest.approx((values == 0).sum(), abs=10)
    # Both sides of zero are as full as each other: there is no spike to take for zeros.
    points = binned(np.linspace(-4.0, 4.0, 163_840, endpoint=False, dtype=np.float32) + np.float32(2e-5))
    assert not ((points.lower == 0) & (points.upper == 0)).any()


def test_small_values_of_both_signs_beside_an_outlier_are_no_zeros():
    small = np.linspace(-1e-5, 1e-5, 2000, dtype=np.float32)  # all in the two bins beside zero
    points = binned(np.append(small, np.float32(1.0)))
    assert points.counts[(points.lower == 0) & (points.upper == 0)].sum() == 0
    assert points.counts.tolist() == [1000, 1000, 1]


def test_what_a_clip_saturated_is_exactly_at_its_bound():
    points = binned(DISTRIBUTIONS["relu6"])
    assert points.lower[-1] == points.upper[-1] == 6.0
    assert points.counts[-1] == (DISTRIBUTIONS["relu6"] == 6.0).sum()


def test_positive_values_have_no_zeros():
    assert binned([1e-6, 2e-6, 5.0]).lower[0] == np.float32(1e-6)


def test_the_mean_is_kept():
    for name in ("normal", "relu", "bimodal"):
        values = DISTRIBUTIONS[name]
        points = binned(values)
        mean = points.centres @ points.counts / points.total
        assert mean == pytest.approx(values.astype(np.float64).mean(), abs=points.largest / 2**13)


def test_within_and_magnitudes():
    points = Points.of_values([-4.0, -1.0, 0.0, 2.0, 2.0, 3.0])
    kept = points.within(-1.0, 2.0)
    assert kept.lower.tolist() == [-1.0, 0.0, 2.0]
    assert (kept.minimum, kept.maximum, kept.total) == (-1.0, 2.0, 4.0)
    magnitudes = points.magnitudes()
    assert magnitudes.upper.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert magnitudes.counts.tolist() == [1, 1, 2, 1, 1]
    assert (magnitudes.minimum, magnitudes.maximum) == (0.0, 4.0)
    assert points.without_zeros().lower.tolist() == [-4.0, -1.0, 2.0, 3.0]
