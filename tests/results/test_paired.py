from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.results.paired import (
    NORMAL_QUANTILE,
    mcnemar_exact,
    mean_interval,
    mean_ratio,
    paired_loss_interval,
    resampled,
    student_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("right", "samples", "low", "high"),
    [
        # From the formula with z^2 = 3.841459: (k + 1.920729 -+ 1.959964 sqrt(k (n - k) / n + 0.960365)) / (n + z^2)
        (0, 10, 0.0, 0.277533),
        (10, 10, 0.722467, 1.0),
        (5, 10, 0.236593, 0.763407),
        (841, 1000, 0.817036, 0.862354),
    ],
)
def test_wilson(right, samples, low, high):
    assert wilson_interval(right, samples) == pytest.approx((low, high), abs=5e-6)


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_where_the_score_test_has_its_limit(case):
    right, samples = case
    for bound in wilson_interval(right, samples):
        if 0.0 < bound < 1.0:
            z = abs(right / samples - bound) / math.sqrt(bound * (1 - bound) / samples)
            assert z == pytest.approx(NORMAL_QUANTILE, rel=1e-6)
    low, high = wilson_interval(right, samples)
    assert 0.0 <= low <= right / samples <= high <= 1.0


def test_wilson_of_nothing():
    with pytest.raises(ValueError, match="3 of 2"):
        wilson_interval(3, 2)


@pytest.mark.parametrize(("wrong", "right"), list(product(range(7), repeat=2)))
def test_mcnemar_counts_all_tosses(wrong, right):
    tosses = wrong + right
    heads = [sum(sides) for sides in product((0, 1), repeat=tosses)]
    as_uneven = sum(abs(2 * head - tosses) >= abs(wrong - right) for head in heads)
    assert mcnemar_exact(wrong, right) == float(Fraction(as_uneven, len(heads)))


def test_mcnemar_of_many_changes():
    assert mcnemar_exact(3000, 3000) == 1.0
    # The normal approximation with its continuity correction: z = (|b - c| - 1) / sqrt(b + c)
    z = (300 - 1) / math.sqrt(6000)
    assert mcnemar_exact(3150, 2850) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-2)
    assert mcnemar_exact(1500, 0) == pytest.approx(0.0, abs=1e-300)


def test_the_interval_of_a_loss_by_hand():
    # b = 9, c = 2, n = 98: p = 0.1, q = 0.03; 0.07 -+ 1.959964 sqrt((0.13 - 0.0049) / 100)
    half = 1.959964 * math.sqrt(0.1251 / 100)
    assert paired_loss_interval(9, 2, 98) == pytest.approx((0.07 - half, 0.07 + half), abs=1e-7)


@pytest.mark.parametrize("rates", [(0.05, 0.0), (0.1, 0.05), (0.02, 0.02), (0.3, 0.1)])
def test_the_interval_of_a_loss_covers_it_as_often_as_it_says(rates):
    worse, better = rates
    samples = 60
    covered = 0.0
    for b in range(samples + 1):
        for c in range(samples + 1 - b):
            low, high = paired_loss_interval(b, c, samples)
            if low <= worse - better <= high:
                ways = math.comb(samples, b) * math.comb(samples - b, c)
                covered += ways * worse**b * better**c * (1 - worse - better) ** (samples - b - c)
    assert 0.93 < covered <= 1.0


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_interval_of_a_loss_is_symmetric_and_holds_the_loss(wrong, right, same):
    samples = wrong + right + same + 1
    low, high = paired_loss_interval(wrong, right, samples)
    assert low <= (wrong - right) / samples <= high
    assert paired_loss_interval(right, wrong, samples) == pytest.approx((-high, -low))


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    # Known for 1 (tan) and 2 (algebraic); the rest from printed tables of the distribution.
    [
        (1, math.tan(math.pi * 0.475)),
        (2, 0.95 * math.sqrt(2 / (1 - 0.95**2))),
        (3, 3.182446),
        (4, 2.776445),
        (10, 2.228139),
        (30, 2.042272),
        (200, 1.971896),
        (1000, 1.962339),
    ],
)
def test_student(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, abs=2e-6)


def test_student_has_no_step_where_the_series_takes_over():
    assert 0 < student_quantile(200) - student_quantile(201) < 1e-4


def test_the_interval_of_a_mean():
    # 1, 2, 3: mean 2, standard deviation 1, two degrees of freedom
    half = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    assert mean_interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2 - half, 2 + half))
    assert mean_interval(np.array([5.0])) is None


def columns(*values):
    return np.array(values, np.float64).T


def test_the_interval_of_a_ratio():
    ratio, interval = mean_ratio(columns([1.0, 2.0]), columns([10.0, 20.0]))
    assert ratio == pytest.approx(0.1)
    assert interval == pytest.approx((0.1, 0.1))
    # With equal wholes it is the mean's interval.
    parts = np.array([1.0, 2.0, 3.0, 2.5])
    ratio, interval = mean_ratio(columns(parts), columns([4.0] * 4))
    assert ratio == pytest.approx(parts.mean() / 4)
    assert interval == pytest.approx(mean_interval(parts / 4))
    assert mean_ratio(columns([1.0]), columns([10.0])) == (pytest.approx(0.1), None)


def test_ratios_of_several_columns_count_alike():
    ratio, interval = mean_ratio(columns([1.0, 3.0], [200.0, 200.0]), columns([10.0, 10.0], [1000.0, 1000.0]))
    assert ratio == pytest.approx((0.2 + 0.2) / 2)
    # The second column does not vary: half of the first one's deviations, 0.1 and 0.3, of which no ratio is below 0.
    low, high = mean_interval(np.array([0.15, 0.25]))
    assert interval == pytest.approx((max(0.0, low), high))


def test_ratios_without_a_whole():
    assert mean_ratio(columns([0.0, 0.0]), columns([0.0, 0.0])) == (0.0, (0.0, 0.0))
    assert mean_ratio(columns([1.0, 0.0]), columns([0.0, 0.0])) == (math.inf, None)
    assert mean_ratio(columns([math.nan, 0.0]), columns([1.0, 1.0])) == (math.inf, None)
    assert mean_ratio(np.zeros((3, 0)), np.zeros((3, 0))) == (0.0, (0.0, 0.0))


def test_draws_of_many_samples_take_little_memory():
    """All draws of 20,000 samples at once would be 80 megabytes of indices alone."""
    tracemalloc.start()
    resampled(np.ones(20_000), np.ones(20_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6
