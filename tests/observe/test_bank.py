"""A bank counts what one histogram for each tensor would count, sample after sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.observe.statistics import ExactSums, HistogramBank, NonFiniteTensorError, TensorStatistics, fixed_point

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
HOSTILE = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, -3.4e38, 3.4e38, 1.0, -1.0, 6.0, 1e-9]


def contents(statistics):
    histogram = statistics.histogram
    return (
        (histogram.exponent, histogram.total, histogram.minimum, histogram.maximum, histogram.counts.tolist()),
        (statistics.samples, statistics.sum_of_minima, statistics.sum_of_maxima),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(FINITE | st.sampled_from(HOSTILE), max_size=9), min_size=3, max_size=3), max_size=6))
def test_it_counts_what_each_tensor_alone_would(samples):
    bank, alone = HistogramBank(3), [TensorStatistics() for _ in range(3)]
    for sample in samples:
        tensors = [np.array(values, np.float32) for values in sample]
        bank.add(tensors)
        for statistics, tensor in zip(alone, tensors, strict=True):
            statistics.add(tensor)
    assert [contents(each) for each in bank.statistics()] == [contents(each) for each in alone]


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
    bank, alone = HistogramBank(len(tensors)), [TensorStatistics() for _ in tensors]
    for factor in (1, 20):
        bank.add([tensor * factor for tensor in tensors])
        for statistics, tensor in zip(alone, tensors, strict=True):
            statistics.add(tensor * factor)
    assert [contents(each) for each in bank.statistics()] == [contents(each) for each in alone]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_tensor_that_is_not_finite_is_named(bad):
    bank = HistogramBank(2)
    with pytest.raises(NonFiniteTensorError) as error:
        bank.add([np.ones(5000, np.float32), np.append(np.ones(5000, np.float32), np.float32(bad))])
    assert error.value.number == 1


@given(st.lists(FINITE | st.sampled_from(HOSTILE), max_size=20))
def test_sums_are_exact(values):
    sums = ExactSums(2)
    for value in values:
        bits = int(np.float32(value).view(np.int32))
        key = bits if bits >= 0 else bits ^ 0x7FFFFFFF
        sums.add(np.array([1]), np.array([key], np.int32))
    assert sums.totals() == [0, sum(fixed_point(float(np.float32(value))) for value in values)]
