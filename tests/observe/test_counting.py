from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.observe.counting import BINS, BLOCK, HALF, ROW, TABLES, count_tensors, find_bins, tally

ANY_BITS = st.integers(-(2**31), 2**31 - 1)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def extreme_keys(bits):
    """The least and greatest key, wherever the bins are."""
    return find_bins(bits.view(np.float32), np.float32(1), np.zeros(bits.size, np.uint16))


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


def bins_of(values, inverse_width):
    indices = np.zeros(len(values), np.uint16)
    keys = find_bins(np.array(values, np.float32), np.float32(inverse_width), indices)
    assert keys == extreme_keys(np.array(values, np.float32).view(np.int32))
    return (indices.astype(int) - HALF).tolist()


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
    assert bins_of(values, 1 / width) == [bin_of(value, width) for value in values]


@pytest.mark.parametrize("value", [1e-45, 1e-40, 2.0**-126, 1e-30])
def test_a_product_that_underflows_keeps_its_sign(value):
    assert bins_of([-value] * 3 + [value] * 4, 2.0**-115) == [-1] * 3 + [0] * 4


def test_every_bin_edge():
    width = 2.0**-3
    edges = np.arange(-HALF + 1, HALF, dtype=np.float32) * np.float32(width)
    # A positive edge opens the bin above it, a negative one the bin below it; so nothing is left for bin -1.
    assert bins_of(edges, 1 / width) == [*range(-HALF, -1), *range(HALF)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 1000, 1002])
def test_neighbours_go_to_the_tables_in_turn(count):
    tables = np.full((TABLES, ROW), 5, np.uint32)
    tally(np.full(BLOCK, 77, np.uint16), count, tables, np.zeros(3, np.float32))
    whole, rest = divmod(count, TABLES)
    assert (tables[:, 77] - 5).tolist() == [whole + rest, whole, whole, whole]
    assert tables.sum() == 5 * tables.size + count


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, BLOCK))
def test_each_index_is_tallied_once(seed, count):
    indices = np.random.default_rng(seed).integers(0, BINS, BLOCK).astype(np.uint16)
    indices[::3] = seed % BINS
    tables = np.zeros((TABLES, ROW), np.uint32)
    tally(indices, count, tables, np.zeros(0, np.float32))
    np.testing.assert_array_equal(
        tables.sum(axis=0)[:BINS], np.bincount(indices[:count].astype(np.int64), minlength=BINS)
    )


class Scratch:
    def __init__(self):
        self.indices = np.zeros(BLOCK, np.uint16)
        self.tables = np.zeros((TABLES, ROW), np.uint32)

    def count(self, values, exponent, counts):
        width, limit = 2.0 ** (exponent - 13), (exponent + 127) << 23
        address, found = values.__array_interface__["data"][0], np.zeros((1, 3), np.int32)
        which = np.array([address]), np.array([values.size]), np.array([0])
        count_tensors(
            *which,
            np.array([1 / width], np.float32),
            np.array([limit]),
            counts[np.newaxis],
            found,
            self.indices,
            self.tables,
        )
        assert not self.tables.any()
        return tuple(found[0].tolist())


SIZES = [1, 2, 3, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7, 5 * BLOCK]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_a_tensor_of_hostile_values(size, seed):
    rng = np.random.default_rng([size, seed])
    exponent = int(rng.integers(-90, 128))
    largest = np.nextafter(np.float32(2.0**exponent) if exponent < 128 else np.float32(np.inf), np.float32(0))
    pool = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 2.0**-126, largest, -largest, largest / 2], np.float32)
    spread = (rng.uniform(-1, 1, size) * np.exp2(exponent - rng.integers(1, 30, size))).astype(np.float32)
    values = np.where(rng.random(size) < 0.5, rng.choice(pool, size), spread).astype(np.float32)
    counts = rng.integers(0, 100, BINS)
    expected = counts.copy()
    for value in values:
        expected[HALF + bin_of(value, 2.0 ** (exponent - 13))] += 1
    low, high, fitted = Scratch().count(values, exponent, counts)
    assert fitted
    assert (low, high) == extreme_keys(values.view(np.int32))
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bad", [4.0, -4.0, 1e38, np.inf, -np.inf, np.nan, bits(0xFFFFFFFF)])
def test_where_one_value_does_not_fit_nothing_is_counted(size, bad):
    for place in {0, size // 2, size - 1}:
        values = np.linspace(-3.9, 3.9, size, dtype=np.float32)
        values[place] = bad
        counts = np.full(BINS, 3, np.int64)
        scratch = Scratch()
        low, high, fitted = scratch.count(values, 2, counts)
        assert not fitted
        assert (low, high) == extreme_keys(values.view(np.int32))  # all values, those behind the bad one too
        assert (counts == 3).all()
        # The same scratch counts the next tensor as if nothing had been.
        assert scratch.count(np.zeros(size, np.float32), 2, counts)[2]
        assert counts[HALF] == 3 + size
        assert counts.sum() == 3 * BINS + size


def test_no_values_are_no_counts():
    counts = np.zeros(BINS, np.int64)
    low, high, fitted = Scratch().count(np.zeros(0, np.float32), 0, counts)
    assert fitted
    assert low > high
    assert not counts.any()
