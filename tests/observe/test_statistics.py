"""Histograms are exact in any order and merge exactly; a bank counts what one for each tensor would count."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detent.numerics.formats import min_mse_position, min_mse_position_of
from detent.observe.counting import BINS, BLOCK, HALF
from detent.observe.statistics import (
    LOWEST_EXPONENT,
    Histogram,
    HistogramBank,
    NonFiniteError,
    fixed_point,
    merged_bins,
)
from tests.grids import INT8, UINT8_ZERO_128
from tests.methods.data import error_of_bins

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
SPECIAL = st.sampled_from(
    [
        *[0.0, -0.0, 1e-9, -1e-9, 1e-45, -1e-45, 1.1754944e-38, 2.0**-100, -(2.0**-100), 0.5, 1.0, -1.0, 2.0, 4096.0],
        *[3e38, -3e38, float(np.finfo(np.float32).max), 2.0**127, 1.0 + 2.0**-23, 2.0 - 2.0**-23],
    ]
)
CHUNKS = st.lists(st.lists(FINITE | SPECIAL | st.floats(-8, 8, width=32), max_size=12), min_size=1, max_size=8)


def of(*chunks):
    histogram = Histogram()
    for chunk in chunks:
        histogram.add(np.array(chunk, np.float32))
    return histogram


def state(histogram):
    """Everything that a reader can see, in a form that tells -0.0 from 0.0."""
    extremes = (str(histogram.minimum), str(histogram.maximum), str(histogram.largest))
    return (histogram.exponent, histogram.total, extremes, histogram.counts.tolist())


def documented(values):
    """The histogram of all values, straight from the module's docstring, in exact arithmetic."""
    largest = max((abs(float(value)) for value in values), default=0.0)
    exponent = LOWEST_EXPONENT
    while 2.0**exponent <= largest:
        exponent += 1
    width = 2.0 ** (exponent - 13)
    counts = [0] * BINS
    for value in values:
        j = int(abs(float(value)) / width)
        counts[HALF + (j if value >= 0 else -1 - j)] += 1
    return exponent, counts


@settings(max_examples=120, deadline=None)
@given(chunks=CHUNKS)
@example(chunks=[[1e-9], [1.0, -2.0]])
@example(chunks=[[0.0, -0.0], [-0.0], [0.0]])
@example(chunks=[[3e38], [1e-45], [-1.0]])
@example(chunks=[[], [1.0]])
def test_bins_hold_what_the_docstring_says(chunks):
    values = [float(np.float32(value)) for chunk in chunks for value in chunk]
    histogram = of(*chunks)
    exponent, counts = documented(values)
    assert histogram.exponent == exponent
    assert histogram.counts.tolist() == counts
    assert histogram.total == len(values) == sum(counts)
    assert histogram.minimum == min(values, default=math.inf)
    assert histogram.maximum == max(values, default=-math.inf)
    assert histogram.largest == max((abs(value) for value in values), default=0.0)
    assert histogram.width == 2.0 ** (exponent - 13)


@settings(max_examples=120, deadline=None)
@given(chunks=CHUNKS, data=st.data())
def test_order_batching_and_sharding_do_not_matter(chunks, data):
    values = [value for chunk in chunks for value in chunk]
    whole = state(of(values))
    assert state(of(*chunks)) == whole
    assert state(of(*([value] for value in reversed(values)))) == whole
    assert state(of(data.draw(st.permutations(values)))) == whole
    cut = data.draw(st.integers(0, len(chunks)))
    shards = [of(*chunks[:cut]), of(*chunks[cut:])]
    for one, other in (shards, [of(*chunks[cut:]), of(*chunks[:cut])]):
        before = state(other)
        one.merge(other)
        assert state(one) == whole
        assert state(other) == before


def test_minus_zero_is_zero_whoever_comes_first():
    assert state(of([-0.0], [0.0])) == state(of([0.0], [-0.0])) == state(of([0.0, -0.0]))
    assert str(of([-0.0]).minimum) == str(of([-0.0]).maximum) == "0.0"


def test_a_histogram_goes_on_after_a_merge():
    one, other = of([0.1, 0.2]), of([300.0])
    one.merge(other)
    one.add(np.array([5.0], np.float32))
    assert state(one) == state(of([0.1, 0.2, 300.0, 5.0]))
    one.merge(Histogram())
    assert state(one) == state(of([0.1, 0.2, 300.0, 5.0]))
    empty = Histogram()
    empty.merge(one)
    assert state(empty) == state(one)


def test_large_data_in_many_shards():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(300_001) * np.exp2(rng.uniform(-30, 10, 300_001))).astype(np.float32)
    whole = state(of(values))
    merged = Histogram()
    for shard in np.array_split(values, 7):
        part = Histogram()
        for batch in np.array_split(shard, 3):
            part.add(batch)
        merged.merge(part)
    assert state(merged) == whole
    width = 2.0 ** (merged.exponent - 13)
    expected = np.bincount((np.trunc(values / width) - (values < 0) + HALF).astype(np.int64), minlength=BINS)
    np.testing.assert_array_equal(merged.counts, expected)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 12, 13, 14, 200])
def test_merged_bins_keep_every_count_on_its_side_of_zero(steps):
    counts = np.random.default_rng(steps).integers(0, 100, BINS)
    wide = merged_bins(counts, steps)
    assert wide[:HALF].sum() == counts[:HALF].sum()
    assert wide[HALF:].sum() == counts[HALF:].sum()
    for j in (0, 1, 4095, HALF - 1):
        first, last = j << steps, (j + 1) << steps
        assert wide[HALF + j] == counts[HALF:][first:last].sum()
        assert wide[HALF - 1 - j] == counts[:HALF][::-1][first:last].sum()


@pytest.mark.parametrize("bad", [np.nan, np.copysign(np.nan, -1), np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_non_finite_values_raise_and_count_nothing(bad, place):
    histogram = of([1.0, -3.0])
    before = state(histogram)
    values = np.array([1e30, 2.0, -5.0], np.float32)
    values[place] = bad
    with pytest.raises(NonFiniteError):
        histogram.add(values)
    assert state(histogram) == before
    histogram.add(np.array([1e30, 2.0, -5.0], np.float32))
    assert state(histogram) == state(of([1.0, -3.0, 1e30, 2.0, -5.0]))


def test_a_float64_beyond_float32_is_infinite():
    with pytest.raises(NonFiniteError), np.errstate(over="ignore"):
        Histogram().add(np.array([1e300]))


def test_nothing_at_all():
    histogram = of([], [])
    assert (histogram.total, histogram.largest, histogram.counts.sum()) == (0, 0.0, 0)
    histogram.add(np.zeros((2, 0, 3), np.float32))
    assert state(histogram) == state(Histogram())


def test_any_layout_and_type():
    cube = np.random.default_rng(1).integers(-100, 100, (4, 5, 6)).astype(np.float32) / 16
    expected = state(of(cube.reshape(-1)))
    views = {
        "transposed": cube.T,
        "fortran": np.asfortranarray(cube),
        "reversed": cube[::-1, :, ::-1],
        "strided": np.repeat(cube, 2, axis=1)[:, ::2],
        "float16": cube.astype(np.float16),
        "float64": cube.astype(np.float64),
        "big endian": cube.astype(">f4"),
    }
    for name, view in views.items():
        histogram = Histogram()
        histogram.add(view)
        assert state(histogram) == expected, name
    scalar = Histogram()
    scalar.add(np.array(2.5, np.float32))
    assert state(scalar) == state(of([2.5]))


def test_the_input_is_not_written_to():
    values = np.array([1.0, -2.0], np.float32)
    values.flags.writeable = False
    of(values)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_non_finite_values_far_into_a_tensor_count_nothing(bad):
    histogram = of([1.0, -3.0])
    before = state(histogram)
    values = np.full(5 * BLOCK, 2.0, np.float32)
    values[BLOCK] = 1e30  # makes the histogram grow, if nobody looks further first
    values[4 * BLOCK + 3] = bad
    with pytest.raises(NonFiniteError):
        histogram.add(values)
    assert state(histogram) == before
    histogram.add(np.array([5.0], np.float32))
    assert state(histogram) == state(of([1.0, -3.0, 5.0]))


def test_a_tensor_of_many_blocks_that_makes_the_histogram_grow_in_the_middle():
    values = np.random.default_rng(3).standard_normal(4 * BLOCK + 9).astype(np.float32)
    values[2 * BLOCK + 1] = -777.0
    assert state(of([0.25], values)) == state(of(np.append(values, np.float32(0.25))))
    assert state(of(values)) == state(of(*np.array_split(values, 50)))


def test_threads_do_not_disturb_each_other():
    chunks = [normal * np.float32(2.0**k) for k, normal in enumerate(np.random.default_rng(4).random((16, 30_000)))]
    expected = [state(of(chunk)) for chunk in chunks]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert list(pool.map(lambda chunk: state(of(chunk)), chunks)) == expected


def test_reading_counts_in_the_middle_changes_nothing():
    histogram = of([1.0, 2.0])
    assert histogram.counts.sum() == 2
    histogram.add(np.array([0.5], np.float32))
    assert state(histogram) == state(of([1.0, 2.0, 0.5]))


def distributions():
    rng = np.random.default_rng(5)
    size = 30_000
    normal = rng.standard_normal(size)
    sparse = rng.standard_normal(size) * (rng.random(size) < 0.02)
    outlier = np.append(normal * 0.01, [40.0, -7.0])
    yield "normal", normal
    yield "laplace", rng.laplace(size=size)
    yield "relu", np.maximum(normal, 0)
    yield "relu6", np.clip(normal * 4 + 1, 0, 6)  # a quarter of the mass at 6.0 itself, a bin's lower edge
    yield "sparse", sparse
    yield "uniform", rng.uniform(-1, 1, size)
    yield "sigmoid", 1 / (1 + np.exp(-3 * normal))
    yield "negative", -np.abs(normal)
    yield "student", rng.standard_t(2, size)
    yield "outlier", outlier
    yield "cubed", normal**3
    yield "bytes", rng.integers(0, 256, size) / 255
    yield "pixels", rng.integers(0, 256, size) / 256
    yield "whole numbers", rng.integers(-20, 90, size).astype(float)
    yield "constant", np.full(size, 0.3)
    yield "one", np.full(size, 1.0)
    yield "zero", np.zeros(size)


DISTRIBUTIONS = dict(distributions())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("grid", [INT8, UINT8_ZERO_128], ids=["int8", "uint8"])
def test_the_search_over_counts_agrees_with_the_search_over_the_data(name, grid):
    for factor in (1.0, 0.037, 1.37, 11.1, 2.0**-40, 1e20):
        values = (DISTRIBUTIONS[name] * factor).astype(np.float32)
        histogram = of(values)
        found = min_mse_position(histogram.largest, grid, lambda p, h=histogram: error_of_bins(h, p, grid))
        exact = min_mse_position_of(values, grid)
        if found != exact:
            errors = [raw_error(values, position, grid) for position in (found, exact)]
            assert errors[0] <= errors[1] * 1.001, (factor, found, exact)


def raw_error(values, position, grid):
    data = values.astype(np.float64)
    difference = data - grid.snap(data, 2.0**-position)
    return float(np.vdot(difference, difference))


@pytest.mark.parametrize("name", ["normal", "laplace", "relu6", "student"])
def test_the_error_itself_is_that_of_the_data(name):
    values = DISTRIBUTIONS[name].astype(np.float32)
    histogram = of(values)
    for grid in (INT8, UINT8_ZERO_128):
        base = min_mse_position_of(values, grid)
        for position in range(base - 2, base + 2):
            exact = raw_error(values, position, grid)
            assert error_of_bins(histogram, position, grid) == pytest.approx(exact, rel=0.02)


HOSTILE = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, -3.4e38, 3.4e38, 1.0, -1.0, 6.0, 1e-9]


def contents(histogram):
    return histogram.exponent, histogram.total, histogram.minimum, histogram.maximum, histogram.counts.tolist()


def check_against_single_histograms(samples, count):
    """Compare with a histogram per tensor, and with sums of each sample's extremes in exact arithmetic."""
    bank = HistogramBank(count)
    for sample in samples:
        bank.add(dict(enumerate(sample)))
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
        bank.add({0: np.ones(5000, np.float32), 1: np.append(np.ones(5000, np.float32), np.float32(bad))})
    assert error.value.number == 1


@given(FINITE | st.sampled_from(HOSTILE))
def test_every_float_is_a_whole_multiple_of_the_least(value):
    value = float(np.float32(value))
    assert fixed_point(value) == Fraction(value) * 2**149
