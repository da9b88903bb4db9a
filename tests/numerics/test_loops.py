"""Codes of activations, in each of the roundings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.numerics.codec import ROUNDINGS, round_by
from detent.numerics.formats import IntegerFormat, QuantParams, decode_activation, encode_activation

INT8, UINT8 = (IntegerFormat(dtype, scale="power_of_two") for dtype in ("int8", "uint8"))


def steps(values, ties, fmt=INT8, position=0):
    """The codes less their zero point."""
    params = QuantParams.at(fmt, position)
    return (encode_activation(np.array(values, np.float32), params, ties).astype(int) - fmt.middle).tolist()


@pytest.mark.parametrize("fmt", [INT8, UINT8])
@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("half_even", [-2, -2, 0, 0, 2, 2]),
        ("half_up", [-2, -1, 0, 1, 2, 3]),
        ("half_away", [-3, -2, -1, 1, 2, 3]),
    ],
)
def test_ties_by_hand(ties, expected, fmt):
    assert steps([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], ties, fmt) == expected
    assert steps([-5.0, -3.0, -1.0, 1.0, 3.0, 5.0], ties, fmt, position=-1) == expected, "in steps of 2"


@pytest.mark.parametrize("fmt", [INT8, UINT8])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_every_accumulator_is_shifted_as_the_device_does(cut, fmt):
    """(X + 2^(cut-1)) >> cut, saturated to -128 .. 127."""
    accumulators = np.arange(-160 << cut, 160 << cut)
    expected = np.clip((accumulators + (1 << (cut - 1))) >> cut, -128, 127)
    assert steps(accumulators, "half_up", fmt, position=-cut) == expected.tolist()


@pytest.mark.parametrize("ties", ROUNDINGS)
def test_the_ends_of_the_type(ties):
    assert steps([126.5, 127.0, 127.5, 128.0, 1e9, np.inf], ties)[1:] == [127] * 5
    assert steps([-128.0, -128.5, -129.0, -1e9, -np.inf], ties) == [-128] * 5
    assert steps([126.5, -127.5], "half_up") == [127, -127]
    assert steps([126.5, -127.5], "half_away") == [127, -128]


@pytest.mark.parametrize("ties", ROUNDINGS)
def test_next_to_a_tie_is_no_tie(ties):
    """The sum of 0.5 and the number below it is 1 in float32: floor(x + 0.5) would be wrong."""
    for tie, low, high in [(0.5, 0, 1), (-0.5, -1, 0), (2.5, 2, 3), (-3.5, -4, -3)]:
        below, above = np.nextafter(np.float32(tie), np.float32([-9, 9]))
        assert steps([below, above], ties) == [low, high]


@settings(max_examples=60)
@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=40), st.sampled_from(ROUNDINGS))
def test_as_the_roundings_are_defined(values, ties):
    array = np.array(values, np.float32)
    expected = np.clip(round_by(array.astype(np.float64), ties), -128, 127)
    assert steps(array, ties) == expected.tolist()
    params = QuantParams.at(UINT8, 3)
    assert np.abs(decode_activation(encode_activation(array / 16, params, ties), params) - array / 16).max() <= 1 / 16
