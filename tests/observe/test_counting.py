from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.observe.counting import BINS, HALF, count_bins, extreme_keys

ANY_BITS = st.integers(-(2**31), 2**31 - 1)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def key_of(value):
    """One value's key, by asking for the extremes of it alone."""
    low, high = extreme_keys(np.array([value], np.float32).view(np.int32))
    assert low == high
    return int(low)


def bits(pattern):
    return np.array([pattern], np.uint32).view(np.float32)[0]


def test_keys_are_in_the_order_of_the_values():
    ordered = [
        bits(0xFFFFFFFF),  # NaNs of either sign lie beyond the infinities of the same sign
        bits(0xFFC00000),
        bits(0xFF800001),
        -np.inf,
        np.finfo(np.float32).min,
        -1.0,
        -np.float32(1e-38),
        -np.finfo(np.float32).smallest_subnormal,
        -0.0,
        0.0,
        np.finfo(np.float32).smallest_subnormal,
        np.finfo(np.float32).tiny,
        1.0,
        np.nextafter(np.float32(1), np.float32(2)),
        np.finfo(np.float32).max,
        np.inf,
        bits(0x7F800001),
        bits(0x7FC00000),
        bits(0x7FFFFFFF),
    ]
    keys = [key_of(value) for value in ordered]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert (key_of(0.0), key_of(-0.0)) == (0, -1)


@settings(max_examples=100, deadline=None)
@given(patterns=st.lists(ANY_BITS, min_size=1, max_size=70))
def test_extremes_of_any_bits(patterns):
    array = np.array(patterns, np.int32)
    keys = [key_of(value) for value in array.view(np.float32)]
    assert extreme_keys(array) == (min(keys), max(keys))


@settings(max_examples=100, deadline=None)
@given(values=st.lists(FINITE, min_size=1, max_size=70))
def test_extremes_of_finite_values_are_numpys(values):
    array = np.array(values, np.float32)
    low, high = extreme_keys(array.view(np.int32))
    assert low == key_of(array.min() + 0.0) or (array.min() == 0 and low == key_of(-0.0))
    assert high == key_of(array.max()) or (array.max() == 0 and high in (key_of(-0.0), key_of(0.0)))


def test_no_values_leave_the_extremes_crossed():
    low, high = extreme_keys(np.zeros(0, np.int32))
    assert low > high


def bin_of(value, width):
    """The documented bin, in exact arithmetic: bin j >= 0 holds j*w <= x < (j+1)*w, and bin -1-j its mirror image."""
    exact = abs(float(value)) / width  # a division by a power of two of a float32 is exact in float64
    return int(exact) if value >= 0 else -1 - int(exact)


@settings(max_examples=150, deadline=None)
@given(
    exponent=st.integers(-100, 128),
    fractions=st.lists(st.floats(-1, 1, width=32, exclude_min=True, exclude_max=True), max_size=70),
    tiny=st.lists(st.floats(-(2.0**-101), 2.0**-101, width=32), max_size=6),
)
def test_bins_are_the_documented_ones(exponent, fractions, tiny):
    with np.errstate(under="ignore"):
        values = np.array([*(np.ldexp(fraction, exponent) for fraction in fractions), *tiny], np.float32)
    values = values[np.abs(values.astype(np.float64)) < 2.0**exponent]
    width = 2.0 ** (exponent - 13)
    tables = np.zeros((2, BINS), np.uint32)
    count_bins(values, np.float32(1 / width), tables)
    expected = np.zeros(BINS, np.int64)
    for value in values:
        expected[HALF + bin_of(value, width)] += 1
    np.testing.assert_array_equal(tables.sum(axis=0), expected)


@pytest.mark.parametrize("value", [1e-45, 1e-40, 2.0**-126, 1e-30])
def test_a_product_that_underflows_keeps_its_sign(value):
    tables = np.zeros((2, BINS), np.uint32)
    count_bins(np.array([-value] * 3 + [value] * 4, np.float32), np.float32(2.0**-115), tables)
    assert tables[:, HALF - 1 : HALF + 1].tolist() == [[2, 2], [1, 2]]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 1001])
def test_neighbours_go_to_the_two_tables_in_turn(count):
    tables = np.zeros((2, BINS), np.uint32)
    count_bins(np.zeros(count, np.float32), np.float32(1), tables)
    assert tables[:, HALF].tolist() == [(count + 1) // 2, count // 2]
    assert tables.sum() == count


def test_every_bin_edge():
    width = 2.0**-3
    edges = np.arange(-HALF + 1, HALF, dtype=np.float32) * np.float32(width)
    tables = np.zeros((2, BINS), np.uint32)
    count_bins(edges, np.float32(1 / width), tables)
    counts = tables.sum(axis=0)
    # A positive edge opens the bin above it, a negative one the bin below it; so nothing is left for bin -1.
    assert counts[HALF - 1] == 0
    assert np.delete(counts, HALF - 1).tolist() == [1] * (BINS - 1)


def test_counts_are_added_to_what_is_there():
    tables = np.full((2, BINS), 5, np.uint32)
    count_bins(np.array([0.5], np.float32), np.float32(1), tables)
    assert (int(tables[0, HALF]), int(tables[1, HALF])) == (6, 5)
