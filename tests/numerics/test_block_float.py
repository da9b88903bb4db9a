from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from detent.errors import UsageError
from detent.numerics.blocks import BlockFloat
from detent.numerics.codec import ROUNDINGS
from tests.numerics.test_ties import exactly

BFP16 = BlockFloat(rounding="half_even")
MX4, MX6, MX9 = (BlockFloat(bits, 16, 2) for bits in (11, 13, 16))
PRESETS = [BFP16, MX4, MX6, MX9]

parameters = st.tuples(
    st.integers(10, 20), st.sampled_from([(1, None), (5, None), (8, None), (8, 2), (16, 4), (6, 3)]), st.integers(1, 3)
)
formats = st.builds(
    lambda parts, rounding: BlockFloat(parts[0], *parts[1], parts[2], rounding), parameters, st.sampled_from(ROUNDINGS)
)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
arrays = numpy_st.arrays(np.float32, st.integers(1, 33), elements=numbers)
ordinary = numpy_st.arrays(np.float32, st.integers(1, 33), elements=st.integers(-(2**12), 2**12).map(lambda n: n / 64))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def exponent_of(value: float) -> int:
    """floor(log2|value|), and -127 for all that is below the normal numbers."""
    return max(math.frexp(value)[1] - 1, -127) if value and abs(value) >= 2.0**-126 else -127


def by_definition(fmt: BlockFloat, values: np.ndarray) -> list[float]:
    """The module's formulas, one element at a time and in rational numbers, for finite numbers along one axis."""
    bits, results = fmt.bit_width - 9, []
    for start in range(0, len(values), fmt.block_size):
        block = [float(value) for value in values[start : start + fmt.block_size]]
        shared = max(map(exponent_of, block))
        sub_size = fmt.sub_block_size or len(block)
        for first in range(0, len(block), sub_size):
            sub_block, exponent = block[first : first + sub_size], shared
            if fmt.sub_block_size:
                own = max(map(exponent_of, sub_block))
                exponent = shared - min(shared - own, 2**fmt.sub_block_shift_bits - 1)
                sub_block = [value if abs(value) >= 2.0**-126 else 0.0 for value in sub_block]
            step = Fraction(2) ** (exponent - bits + 1)
            for value in sub_block:
                scaled = Fraction(value) / step
                level = exactly(scaled, fmt.rounding)
                results.append(float(max(min(level, 2**bits - 1), 1 - 2**bits) * step))
    return results


EIGHT = [1.0, -1.0, 0.0703125, -0.0703125, 0.0859375, -0.0859375, 1.9990234375, -1.9990234375]  # step 1/64: n + 0.5
NEXT = [100.0, 0.3, -0.5]  # step 1


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("half_away", [1, -1, 0.078125, -0.078125, 0.09375, -0.09375, 1.984375, -1.984375, 100, 0, -1]),
        ("half_up", [1, -1, 0.078125, -0.0625, 0.09375, -0.078125, 1.984375, -1.984375, 100, 0, 0]),
        ("half_even", [1, -1, 0.0625, -0.0625, 0.09375, -0.09375, 1.984375, -1.984375, 100, 0, 0]),
    ],
)
def test_known_answers_of_bfp16(rounding, expected):
    np.testing.assert_array_equal(BlockFloat(rounding=rounding).snap(EIGHT + NEXT, 0), expected)


SIXTEEN = [1.7, -0.3, 0.3, -0.45, 0.9375, -0.9375, 0.25, -0.75, 0.125, -0.375, 1.25, -1.75, 3e-3, 0.0, 0.6, -1.0]


@pytest.mark.parametrize(
    ("fmt", "expected"),
    [
        (MX4, [1.5, -0.5, 0.25, -0.5, 0.75, -0.75, 0.25, -0.75, 0, -0.5, 1, -1.5, 0, 0, 0.5, -1]),
        (
            BlockFloat(11, 16, 2, rounding="half_away"),
            [1.5, -0.5, 0.25, -0.5, 0.75, -0.75, 0.25, -0.75, 0.25, -0.5, 1.5, -1.5, 0, 0, 0.5, -1],
        ),
        (
            BlockFloat(11, 16, 2, rounding="half_up"),
            [1.5, -0.5, 0.25, -0.5, 0.75, -0.75, 0.25, -0.75, 0.25, -0.25, 1.5, -1.5, 0, 0, 0.5, -1],
        ),
        (
            MX6,
            [1.75, -0.25, 0.3125, -0.4375, 0.9375, -0.9375, 0.25, -0.75, 0.125, -0.375, 1.25, -1.75, 0, 0, 0.625, -1],
        ),
        (
            MX9,
            [1.703125, -0.296875, 0.296875, -0.453125, *SIXTEEN[4:12], 0, 0, 0.59375, -1],
        ),
    ],
    ids=str,
)
def test_known_answers_of_two_levels(fmt, expected):
    np.testing.assert_array_equal(fmt.snap(SIXTEEN, 0), expected)


@given(formats, arrays)
def test_the_definition(fmt, values):
    np.testing.assert_array_equal(fmt.snap(values, 0), by_definition(fmt, values))


@given(formats, ordinary)
def test_the_definition_near_ties(fmt, values):
    np.testing.assert_array_equal(fmt.snap(values, 0), by_definition(fmt, values))


def test_infinities_and_nan():
    special = [np.nan, 1.3, np.inf, -np.inf, 0.01, 0.0]
    np.testing.assert_array_equal(BFP16.snap(special, 0), [np.nan, 1.296875, np.inf, -np.inf, 0.015625, 0.0])
    for fmt in (MX4, MX6, MX9):
        two_blocks = fmt.snap([1.0] * 16 + special, 0)
        np.testing.assert_array_equal(two_blocks, [1.0] * 16 + [np.nan] * 6)


def test_subnormals():
    tiny = 2.0**-133  # the step of a block of them
    np.testing.assert_array_equal(BFP16.snap([3.25 * tiny, -0.75 * tiny, 0.25 * tiny], 0), [3 * tiny, -tiny, 0.0])
    np.testing.assert_array_equal(BFP16.snap([np.inf, 3.25 * tiny], 0), [np.inf, 3 * tiny])
    np.testing.assert_array_equal(MX9.snap([3 * tiny, 2.0**-126, 2.0**-127], 0), [0.0, 2.0**-126, 0.0])
    for fmt in PRESETS:
        np.testing.assert_array_equal(fmt.snap(np.zeros((3, 5)), 1), np.zeros((3, 5)))


@pytest.mark.parametrize("fmt", PRESETS, ids=str)
def test_the_largest_floats_do_not_overflow(fmt):
    largest = np.finfo(np.float32).max
    bits = fmt.mantissa_bits
    np.testing.assert_array_equal(
        fmt.snap([largest, -largest], 0), np.array([1, -1]) * (2 - 2.0 ** (1 - bits)) * 2.0**127
    )


@given(formats, arrays)
def test_idempotent_and_within_half_a_step_or_saturated(fmt, values):
    snapped = fmt.snap(values, 0)
    np.testing.assert_array_equal(fmt.snap(snapped, 0), snapped)
    assert snapped.dtype == np.float32
    if fmt.sub_block_size is None:
        for start in range(0, len(values), fmt.block_size):
            block = values[start : start + fmt.block_size].astype(np.float64)
            step = 2.0 ** (max(exponent_of(float(value)) for value in block) - fmt.mantissa_bits + 1)
            error = np.abs(snapped[start : start + fmt.block_size] - block)
            saturated = np.abs(block) > (2**fmt.mantissa_bits - 1) * step
            assert (error <= np.where(saturated, step, step / 2)).all()


@given(formats, ordinary, st.integers(-40, 40))
def test_powers_of_two_pass_through(fmt, values, exponent):
    scale = np.float32(2.0**exponent)
    np.testing.assert_array_equal(fmt.snap(values * scale, 0), fmt.snap(values, 0) * scale)


@given(formats, arrays)
def test_symmetry(fmt, values):
    if fmt.rounding != "half_up":
        np.testing.assert_array_equal(fmt.snap(-values, 0), -fmt.snap(values, 0))


@given(formats, arrays, arrays)
def test_blocks_do_not_notice_each_other(fmt, first, second):
    first = np.resize(first, fmt.block_size * 2)
    together = fmt.snap(np.concatenate([first, second]), 0)
    np.testing.assert_array_equal(together, np.concatenate([fmt.snap(first, 0), fmt.snap(second, 0)]))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("fmt", PRESETS, ids=str)
def test_axes(fmt, axis):
    values = np.random.default_rng(3).standard_normal((19, 21, 17)).astype(np.float32)
    kept = values.copy()
    snapped = fmt.snap(values, axis)
    np.testing.assert_array_equal(snapped, np.apply_along_axis(lambda row: fmt.snap(row, 0), axis, values))
    np.testing.assert_array_equal(values, kept)
    assert snapped.flags.c_contiguous


def test_more_than_fits_the_cache():
    values = np.random.default_rng(4).standard_normal((40_000, 5)).astype(np.float32)
    np.testing.assert_array_equal(BFP16.snap(values, 1)[-7:], BFP16.snap(values[-7:], 1))
    assert BFP16.snap(np.empty((0, 3)), 1).shape == (0, 3)


def test_names():
    assert [str(fmt) for fmt in PRESETS] == ["BFP16", "MX4", "MX6", "MX9"]
    assert BlockFloat(13, 16).label == "BFP13 block 16"
    assert BlockFloat(13, 16, 4, 2).label == "BFP13 block 16 sub 4 shift 2"
    assert BlockFloat(rounding="half_up").label == "BFP16 half_up"
    assert len({BlockFloat(), BFP16, MX4}) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bit_width": 9}, "bit_width .* is 9; it must be 10 to 32"),
        ({"bit_width": 33}, "10 to 32"),
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"sub_block_size": 0}, "sub_block_size is 0"),
        ({"sub_block_size": 3}, "Blocks of 8 cannot be cut into sub blocks of 3"),
        ({"sub_block_size": 2, "sub_block_shift_bits": 0}, "sub_block_shift_bits is 0; it must be 1 to 8"),
        ({"rounding": "half_odd"}, "no rounding 'half_odd'"),
    ],
)
def test_impossible_parameters(arguments, message):
    with pytest.raises(UsageError, match=message):
        BlockFloat(**arguments)


@pytest.mark.parametrize(("shape", "axis"), [((), 0), ((3,), 1), ((3, 4), -3)])
def test_an_axis_that_is_not_there(shape, axis):
    with pytest.raises(UsageError, match=f"axis is {axis}"):
        BFP16.snap(np.ones(shape), axis)
