from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detent.errors import UsageError
from detent.numerics.codec import ROUNDINGS, round_by

KNOWN = {
    #             -2.5  -1.5  -0.5   0.5   1.5   2.5
    "half_even": [-2.0, -2.0, -0.0, 0.0, 2.0, 2.0],
    "half_up": [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0],
    "half_away": [-3.0, -2.0, -1.0, 1.0, 2.0, 3.0],
}


def exactly(value: float, mode: str) -> int:
    """The definition, in rational numbers."""
    number = Fraction(value)
    below = math.floor(number)
    rest = number - below
    if rest != Fraction(1, 2):
        return below + (rest > Fraction(1, 2))
    return {"half_even": below + below % 2, "half_up": below + 1, "half_away": below + (value > 0)}[mode]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_ties(mode, dtype):
    ties = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], dtype)
    rounded = round_by(ties, mode)
    np.testing.assert_array_equal(rounded, KNOWN[mode])
    assert rounded.dtype == dtype


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_where_adding_a_half_would_round(mode):
    for dtype, digits in ((np.float32, 24), (np.float64, 53)):
        below_half = np.nextafter(dtype(0.5), dtype(0))
        odd = dtype(2**digits - 1)  # adding 0.5 gives 2^digits
        np.testing.assert_array_equal(
            round_by(np.array([below_half, -below_half, odd, -odd]), mode), [0.0, 0.0, float(odd), -float(odd)]
        )


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_infinities_and_nan_stay(mode):
    np.testing.assert_array_equal(round_by(np.array([np.inf, -np.inf, np.nan]), mode), [np.inf, -np.inf, np.nan])


@given(st.sampled_from(ROUNDINGS), st.floats(-(2.0**60), 2.0**60), st.integers(-1000, 1000))
@example("half_up", -0.49999999999999994, -1)
def test_the_definition(mode, value, halves):
    for number in (
        value,
        halves / 2,
        float(np.nextafter(halves / 2, np.inf)),
        float(np.nextafter(halves / 2, -np.inf)),
    ):
        assert int(round_by(np.array([number]), mode)[0]) == exactly(number, mode)


@given(st.sampled_from(ROUNDINGS), st.floats(-(2.0**26), 2.0**26, width=32))
def test_the_definition_in_single_precision(mode, value):
    assert int(round_by(np.array([value], np.float32), mode)[0]) == exactly(value, mode)


def test_every_float16():
    values = np.arange(2**16).astype(np.uint16).view(np.float16)
    values = values[np.isfinite(values)]
    for mode in ROUNDINGS:
        np.testing.assert_array_equal(round_by(values, mode), round_by(values.astype(np.float64), mode))


@given(st.sampled_from(["half_even", "half_away"]), st.floats(allow_nan=False))
def test_symmetry(mode, value):
    assert round_by(np.array([-value]), mode)[0] == -round_by(np.array([value]), mode)[0]


def test_the_values_are_left_as_they_were():
    values = np.array([0.5, 1.5])
    for mode in ROUNDINGS:
        round_by(values, mode)
    np.testing.assert_array_equal(values, [0.5, 1.5])


def test_an_unknown_mode():
    with pytest.raises(UsageError, match="no rounding 'half_evn'.*Did you mean 'half_even'"):
        round_by(np.array([0.5]), "half_evn")
