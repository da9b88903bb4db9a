from __future__ import annotations

import warnings
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from detent.errors import UsageError
from detent.numerics.blocks import ELEMENTS, Microscaling
from detent.numerics.codec import ROUNDINGS
from tests.numerics.test_block_float import exponent_of
from tests.numerics.test_ties import exactly

FLOATS = {
    # element: (exponent bits, mantissa bits, codes that are no number)
    "fp8_e5m2": (5, 2, 4),
    "fp8_e4m3": (4, 3, 1),
    "fp6_e3m2": (3, 2, 0),
    "fp6_e2m3": (2, 3, 0),
    "fp4_e2m1": (2, 1, 0),
}
GREATEST_EXPONENT = {"int8": 0, "fp8_e5m2": 15, "fp8_e4m3": 8, "fp6_e3m2": 4, "fp6_e2m3": 2, "fp4_e2m1": 2}

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
arrays = numpy_st.arrays(np.float32, st.integers(1, 20), elements=numbers)
ordinary = numpy_st.arrays(np.float32, st.integers(1, 20), elements=st.integers(-(2**12), 2**12).map(lambda n: n / 64))
formats = st.one_of(
    st.builds(Microscaling, st.sampled_from(ELEMENTS), st.sampled_from([1, 3, 8, 32])),
    st.builds(Microscaling, st.just("int8"), st.sampled_from([1, 3, 8, 32]), st.sampled_from(ROUNDINGS)),
)
every_element = pytest.mark.parametrize("element", ELEMENTS)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def elements_of(name: str) -> list[Fraction]:
    """The non-negative numbers of a float element in the order of their codes."""
    exponent_bits, mantissa_bits, no_numbers = FLOATS[name]
    bias = 2 ** (exponent_bits - 1) - 1
    found = []
    for code in range(2 ** (exponent_bits + mantissa_bits) - no_numbers):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        leading = 1 if exponent else 0
        found.append((leading + Fraction(mantissa, 2**mantissa_bits)) * Fraction(2) ** (max(exponent, 1) - bias))
    return found


def nearest_element(name: str, value: Fraction) -> Fraction:
    table = elements_of(name)
    code = min(range(len(table)), key=lambda code: (abs(table[code] - abs(value)), code % 2))
    return table[code] if value >= 0 else -table[code]


def by_definition(fmt: Microscaling, values: np.ndarray) -> list[float]:
    results = []
    for start in range(0, len(values), fmt.block_size):
        block = [float(value) for value in values[start : start + fmt.block_size]]
        exponent = max(max(map(exponent_of, block)) - GREATEST_EXPONENT[fmt.element], -127)
        scale = Fraction(2) ** exponent
        for value in block:
            if fmt.element == "int8":
                least = -127 if exponent == 127 else -128
                element = Fraction(max(min(exactly(Fraction(value) / scale * 64, fmt.rounding), 127), least), 64)
            else:
                element = nearest_element(fmt.element, Fraction(value) / scale)
            results.append(float(element * scale))
    return results


TEN = [3.7, -0.3, 0.11, -0.04, 0.015625, -2.5, 1.125, -7.9, 0.33, 0.002]


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ("int8", [3.6875, -0.3125, 0.125, -0.0625, 0, -2.5, 1.125, -7.875, 0.3125, 0]),
        ("fp8_e5m2", [3.5, -0.3125, 0.109375, -0.0390625, 0.015625, -2.5, 1, -7, 0.3125, 0.001953125]),
        ("fp8_e4m3", [3.75, -0.3125, 0.109375, -0.0390625, 0.015625, -2.5, 1.125, -7, 0.34375, 0.001953125]),
        ("fp6_e3m2", [3.5, -0.3125, 0.109375, -0.046875, 0.015625, -2.5, 1, -7, 0.3125, 0]),
        ("fp6_e2m3", [3.75, -0.25, 0.125, 0, 0, -2.5, 1.125, -7.5, 0.375, 0]),
        ("fp4_e2m1", [4, -0.5, 0, 0, 0, -2, 1, -6, 0.5, 0]),
    ],
)
def test_known_answers(element, expected):
    np.testing.assert_array_equal(Microscaling(element).snap(TEN, 0), expected)


@pytest.mark.parametrize(
    ("rounding", "sixty_fourths"),
    [
        ("half_away", [64, 1, -1, 2, -2, 3, -3, 127, -128]),
        ("half_up", [64, 1, 0, 2, -1, 3, -2, 127, -128]),
        ("half_even", [64, 0, 0, 2, -2, 2, -2, 127, -128]),
    ],
)
def test_the_roundings_of_int8(rounding, sixty_fourths):
    values = np.array([64, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 127.9375, -127.9375]) / 64
    snapped = Microscaling("int8", rounding=rounding).snap(values, 0)
    np.testing.assert_array_equal(snapped * 64, sixty_fourths)


@given(formats, arrays)
def test_the_definition(fmt, values):
    np.testing.assert_array_equal(fmt.snap(values, 0), by_definition(fmt, values))


@given(formats, ordinary)
def test_the_definition_near_ties(fmt, values):
    np.testing.assert_array_equal(fmt.snap(values, 0), by_definition(fmt, values))


@pytest.mark.parametrize("element", FLOATS)
def test_every_element_survives_and_ties_go_to_the_even_code(element):
    table = np.array([float(number) for number in elements_of(element)])
    fmt = Microscaling(element, block_size=2)

    def snap(values):
        """Each next to the largest element, which makes the scale 1."""
        return fmt.snap(np.stack([values, np.full_like(values, table[-1])], axis=1), 1)[:, 0]

    even = np.where(np.arange(len(table) - 1) % 2 == 0, table[:-1], table[1:])
    for sign in (1, -1):
        np.testing.assert_array_equal(snap(sign * table), sign * table)
        np.testing.assert_array_equal(snap(sign * (table[:-1] + table[1:]) / 2), sign * even)


@pytest.mark.parametrize(("element", "dtype"), [("fp8_e5m2", "float8_e5m2"), ("fp8_e4m3", "float8_e4m3fn")])
def test_the_same_as_a_cast_where_the_scale_is_one(element, dtype):
    largest = float(elements_of(element)[-1])
    values = np.random.default_rng(5).uniform(-largest, largest, (500, 31)).astype(np.float32)
    values *= np.exp2(-np.arange(31, dtype=np.float32))
    values = np.concatenate([values, np.full((500, 1), largest, np.float32)], axis=1)
    cast = values.astype(getattr(ml_dtypes, dtype)).astype(np.float32)
    np.testing.assert_array_equal(Microscaling(element).snap(values, 1), cast)


@every_element
def test_infinities_and_nan(element):
    fmt = Microscaling(element)
    usual = fmt.snap([1.3, 0.1, 0.0], 0)
    np.testing.assert_array_equal(
        fmt.snap([np.inf, 1.3, np.nan, 0.1, -np.inf, 0.0], 0),
        [np.inf, usual[0], np.nan, usual[1], -np.inf, usual[2]],
    )


@every_element
def test_the_ends_of_float32(element):
    fmt = Microscaling(element)
    largest = np.finfo(np.float32).max
    snapped = fmt.snap([largest, -largest, 1.0], 0)
    assert np.isfinite(snapped).all() and snapped[0] == -snapped[1] > largest * 0.7
    np.testing.assert_array_equal(fmt.snap(np.zeros((2, 3)), 0), np.zeros((2, 3)))
    least_spacing = {"int8": -6, "fp8_e5m2": -16, "fp8_e4m3": -9, "fp6_e3m2": -4, "fp6_e2m3": -3, "fp4_e2m1": -1}
    unit = 2.0 ** (-127 + least_spacing[element])  # no scale is below 2^-127
    np.testing.assert_array_equal(fmt.snap([unit, -unit, unit / 4], 0), [unit, -unit, 0.0])


@given(formats, arrays)
def test_idempotent(fmt, values):
    if fmt.element == "int8":
        values = np.abs(values)  # -128 / 64 has the next exponent, and a block with it a wider scale
    snapped = fmt.snap(values, 0)
    assert snapped.dtype == np.float32
    np.testing.assert_array_equal(fmt.snap(snapped, 0), snapped)


@given(formats, ordinary, st.integers(-40, 40))
def test_powers_of_two_pass_through(fmt, values, exponent):
    scale = np.float32(2.0**exponent)
    np.testing.assert_array_equal(fmt.snap(values * scale, 0), fmt.snap(values, 0) * scale)


@given(st.sampled_from(sorted(FLOATS)), arrays)
def test_symmetry(element, values):
    fmt = Microscaling(element, 8)
    np.testing.assert_array_equal(fmt.snap(-values, 0), -fmt.snap(values, 0))


@given(formats, arrays, arrays)
def test_blocks_do_not_notice_each_other(fmt, first, second):
    first = np.resize(first, fmt.block_size * 2)
    together = fmt.snap(np.concatenate([first, second]), 0)
    np.testing.assert_array_equal(together, np.concatenate([fmt.snap(first, 0), fmt.snap(second, 0)]))


@every_element
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axes(element, axis):
    values = np.random.default_rng(6).standard_normal((37, 5, 33)).astype(np.float32)
    fmt = Microscaling(element)
    expected = np.apply_along_axis(lambda row: fmt.snap(row, 0), axis, values)
    np.testing.assert_array_equal(fmt.snap(values, axis), expected)


def test_names():
    assert [str(Microscaling(element)) for element in ELEMENTS] == [
        "MXINT8",
        "MXFP8E5M2",
        "MXFP8E4M3",
        "MXFP6E3M2",
        "MXFP6E2M3",
        "MXFP4E2M1",
    ]
    assert Microscaling("int8", 16, "half_up").label == "MXINT8 block 16 half_up"
    assert len({Microscaling("int8"), Microscaling("int8", 32), Microscaling("fp4_e2m1")}) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"element": "fp8_e4m4"}, "no microscaling element 'fp8_e4m4'.*Did you mean 'fp8_e4m3'"),
        ({"element": "int8", "block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"element": "int8", "rounding": "up"}, "no rounding 'up'"),
        ({"element": "fp4_e2m1", "rounding": "half_up"}, "fp4_e2m1 is always half_even"),
    ],
)
def test_impossible_parameters(arguments, message):
    with pytest.raises(UsageError, match=message):
        Microscaling(**arguments)
