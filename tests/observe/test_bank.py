"""A bank counts what one histogram for each tensor would count, sample after sample."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.observe.statistics import Histogram, HistogramBank, NonFiniteError, fixed_point

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
HOSTILE = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, -3.4e38, 3.4e38, 1.0, -1.0, 6.0, 1e-9]


def contents(histogram):
    return histogram.exponent, histogram.total, histogram.minimum, histogram.maximum, histogram.counts.tolist()


def check_against_single_histograms(samples, count):
    """Compare with a histogram per tensor, and with sums of each sample's extremes in exact arithmetic."""
    bank = HistogramBank(count)
    for sample in samples:
        bank.add(sample)
    for number, statistics in enumerate(bank.statistics):
        tensors = [np.asarray(sample[number], np.float32).reshape(-1) for sample in samples if sample[number].size]
        alone = Histogram()
        for tensor in tensors:
            alone.add(tensor)
        assert contents(statistics.histogram) == contents(alone)
        assert statistics.samples == len(tensors)
        assert statistics.sum_of_minima == sum(Fraction(float(tensor.min())) for tensor in tensors) * 2**149
        assert statistics.sum_of_maxima == sum(Fraction(float(tensor.max())) for tensor in tensors) * 2**149


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(FINITE | st.sampled_from(HOSTILE), max_size=9), min_size=3, max_size=3), max_size=6))
def test_it_counts_what_each_tensor_alone_would(samples):
    check_against_single_histograms(
        [[np.array(values, np.float32) for values in sample] for sample in samples], count=3
    )


def test_shapes_types_and_orders_of_memory():
    rng = np.random.default_rng(1)
    tensors = [
        rng.standard_normal((2, 5, 7)).astype(np.float32).transpose(2, 0, 1),
        rng.integers(-5, 5, (3, 4)),
        rng.random(11) > 0.5,
        rng.standard_normal((40, 300)).astype(np.float32)[:, ::3],
        rng.standard_normal(9000).astype(np.float16),
        np.array(2.5, np.float32),
        np.zeros((0, 3), np.float32),
    ]
    check_against_single_histograms([[each * factor for each in tensors] for factor in (1, 20)], len(tensors))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_tensor_that_is_not_finite_is_named(bad):
    bank = HistogramBank(2)
    with pytest.raises(NonFiniteError) as error:
        bank.add([np.ones(5000, np.float32), np.append(np.ones(5000, np.float32), np.float32(bad))])
    assert error.value.number == 1


@given(FINITE | st.sampled_from(HOSTILE))
def test_every_float_is_a_whole_multiple_of_the_least(value):
    value = float(np.float32(value))
    assert fixed_point(value) == Fraction(value) * 2**149
