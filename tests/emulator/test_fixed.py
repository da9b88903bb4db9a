from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.devices.rewrites import HARD_SIGMOID_FACTOR, window_factor
from detent.emulator.fixed import (
    Constant,
    Fixed,
    NotIntegerError,
    average_of,
    dyadic,
    exact_bound,
    held,
    rounded_range,
    times_constant,
)

VALUE = ir.Value(name="x")


def test_finer_steps_hold_the_same_numbers():
    fixed = Fixed(VALUE, position=3, low=-128, high=127, shift=1).finer(2)
    assert (fixed.position, fixed.low, fixed.high, fixed.shift, fixed.unit) == (5, -512, 508, 3, 2)
    with pytest.raises(NotIntegerError, match="41 apart"):
        fixed.finer(41)


def test_powers_of_two_leave_the_divisor():
    fixed = average_of(12, Fixed(VALUE, position=3, low=-12, high=12))
    assert (fixed.position, fixed.divisor, fixed.shift) == (5, 3, 0)


@pytest.mark.parametrize("side", [2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 28])
def test_an_average_and_its_device_factor_are_a_whole_number_and_a_shift(side):
    count = side * side
    mean = average_of(count, Fixed(VALUE, position=4, low=-128 * count, high=127 * count))
    factor = dyadic(np.array(window_factor(side), np.float32))
    number, product = times_constant(mean, factor)
    assert product.divisor == 1
    assert Fraction(number, 2 ** (product.position - 4)) == Fraction(window_factor(side)) / count
    assert product.low == -128 * count * number


def test_the_device_factor_of_hard_sigmoid():
    six_times = Fixed(VALUE, position=5, low=0, high=6 << 5, divisor=6).reduced()
    number, product = times_constant(six_times, dyadic(np.array(HARD_SIGMOID_FACTOR, np.float32)))
    assert (number, product.position, product.divisor) == (2731, 5 + 14, 1)


@given(st.integers(-(2**23), 2**23), st.integers(0, 24))
def test_dyadic_numbers_are_found_again(integer, position):
    found = dyadic(np.array([integer * 2.0**-position]))
    assert Fraction(int(found.integers[0]), 2**found.position) == Fraction(integer, 2**position)


def test_numbers_that_are_not_dyadic():
    assert dyadic(np.array(1 / 3, np.float32)) is None or dyadic(np.array(1 / 3, np.float32)).position <= 24
    assert dyadic(np.array(np.inf)) is None
    assert dyadic(np.array(2.0**-25)) is None
    assert dyadic(np.array(2.0**25)) is None


@given(st.floats(-1e6, 1e6, width=32), st.integers(-10, 20))
def test_bounds_are_exact(bound, position):
    integer, more = exact_bound(bound, position)
    assert more >= 0
    assert Fraction(integer) == Fraction(bound) * Fraction(2) ** (position + more)


@given(st.integers(-4096, 0), st.integers(0, 4096), st.integers(-4, 8))
def test_ranges_hold_what_a_shift_may_give(low, high, cut):
    least, most = rounded_range(low, high, cut, (-128, 127))
    for integer in (low, high, (low + high) // 2):
        exact = Fraction(integer) / Fraction(2) ** cut
        for rounded in (exact.__floor__(), exact.__ceil__()):
            assert least <= min(max(rounded, -128), 127) <= most


def test_constants_refuse_shifts_that_no_device_has():
    constant = Constant(np.array([3, -100]), 2)
    assert constant.shifted(3).tolist() == [24, -800]
    with pytest.raises(NotIntegerError):
        constant.shifted(41)


def test_what_is_held_is_exact():
    integers = np.array([-(2**24) + 1, 2**24 - 1])
    assert held(integers, 7, wide=False).astype(np.float64).tolist() == (integers / 128).tolist()
    assert held(integers, 7, wide=True).dtype == np.float64
