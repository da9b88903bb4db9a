from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto
from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

from detent.numerics.formats import LEAST_SCALE, IntegerFormat, QuantParams, power_of_two_above

CODES = {
    # dtype: (low when symmetric, low when not, high, middle)
    "int4": (-7, -8, 7, 0),
    "uint4": (0, 0, 15, 8),
    "int8": (-127, -128, 127, 0),
    "uint8": (0, 0, 255, 128),
    "int16": (-32767, -32768, 32767, 0),
    "uint16": (0, 0, 65535, 32768),
    "int32": (-2147483647, -2147483648, 2147483647, 0),
    "uint32": (0, 0, 4294967295, 2147483648),
}

finite = st.floats(-(2.0**127), 2.0**127, width=32)
ranges = st.tuples(finite, finite).map(sorted)
formats = st.builds(
    IntegerFormat, st.sampled_from(["int4", "uint4", "int8", "uint8", "int16", "uint16"]), st.booleans()
)
every_format = st.builds(
    IntegerFormat, st.sampled_from(list(CODES)), st.booleans(), st.sampled_from(["float", "power_of_two"])
)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("dtype", CODES)
def test_the_codes_of_every_type(dtype):
    low_symmetric, low, high, middle = CODES[dtype]
    symmetric, asymmetric = IntegerFormat(dtype), IntegerFormat(dtype, symmetric=False)
    assert (symmetric.low, symmetric.high, symmetric.middle) == (low_symmetric, high, middle)
    assert (asymmetric.low, asymmetric.high) == (low, high)
    assert symmetric.bits == int(dtype.strip("uint"))
    assert symmetric.signed == (dtype[0] == "i")


def test_the_grids_of_the_power_of_two_recipes():
    assert IntegerFormat("int8").levels == (-127, 127)
    assert IntegerFormat("uint8").levels == (-128, 127)


@pytest.mark.parametrize(
    ("fmt", "low", "high", "scale", "zero_point"),
    [
        (IntegerFormat("int8"), -127, 100, 1, 0),
        (IntegerFormat("int8"), -1, 254, 2, 0),
        (IntegerFormat("int8"), 127, 254, 2, 0),  # zero is always within
        (IntegerFormat("int4"), -14, 3, 2, 0),
        (IntegerFormat("uint8"), -51, 127.5, 1, 128),
        (IntegerFormat("int8", symmetric=False), -127, 128, 1, -1),
        (IntegerFormat("int8", symmetric=False), 5, 510, 2, -128),
        (IntegerFormat("int8", symmetric=False), -510, -5, 2, 127),
        (IntegerFormat("uint8", symmetric=False), -64, 63.5, 0.5, 128),
        (IntegerFormat("uint8", symmetric=False), -1.25, 126.25, 0.5, 2),  # 2.5 to the even one
        (IntegerFormat("uint16", symmetric=False), -1, 65534, 1, 1),
        (IntegerFormat("int16"), -1, 65534, 2, 0),
        (IntegerFormat("int8", scale="power_of_two"), -127, 127, 1, 0),
        (IntegerFormat("int8", scale="power_of_two"), -127, 127.5, 2, 0),
        (IntegerFormat("uint8", scale="power_of_two"), -1, 30, 0.25, 128),
    ],
)
def test_known_answers(fmt, low, high, scale, zero_point):
    params = fmt.fit(low, high)
    assert (float(params.scale), int(params.zero_point)) == (scale, zero_point)
    assert params.axis is None and params.format == fmt


@pytest.mark.parametrize(
    ("dtype", "symmetric", "zero_point"),
    [("int8", True, 0), ("uint8", True, 128), ("int8", False, 0), ("uint8", False, 0), ("uint16", False, 0)],
)
def test_an_empty_range(dtype, symmetric, zero_point):
    params = IntegerFormat(dtype, symmetric).fit(0.0, 0.0)
    assert (float(params.scale), int(params.zero_point)) == (1.0, zero_point)
    np.testing.assert_array_equal(params.snap([0.0, -0.0]), 0.0)


@given(st.sampled_from(["int8", "uint8", "int16", "uint16"]), st.booleans(), st.tuples(finite, finite).map(sorted))
@example("uint8", False, [-1.25, 126.25])
def test_the_same_as_onnxruntime(dtype, symmetric, limits):
    low, high = (np.float32(limit) for limit in limits)
    fmt = IntegerFormat(dtype, symmetric)
    kind = getattr(TensorProto, dtype.upper())
    widest = max(abs(float(low)), abs(float(high)))
    if widest < 1e-30 or widest > 1e38:  # onnxruntime takes 1 for a tiny scale, and overflows on a wide range
        return
    qmin, qmax = get_qmin_qmax_for_qType(kind, symmetric=symmetric and fmt.signed)
    # In double precision: its own float32 arithmetic rounds at every step.
    limits = np.array(low, np.float64), np.array(high, np.float64)
    zero_point, scale = compute_scale_zp(*limits, qmin, qmax, symmetric=symmetric)
    params = fmt.fit(float(low), float(high))
    assert float(params.scale) == pytest.approx(float(scale), rel=2**-23)
    assert abs(int(params.zero_point) - int(zero_point)) <= (not symmetric)


@given(every_format, ranges)
@example(IntegerFormat("uint8", symmetric=False), [1e-45, 1e-45])
@example(IntegerFormat("int16", symmetric=False), [-1e-40, 3e38])
@example(IntegerFormat("int8"), [-3e38, 3e38])
@example(IntegerFormat("int32", symmetric=False), [-1.0, 0.0])  # the scale is rounded down
def test_zero_has_a_code_of_its_own(fmt, limits):
    params = fmt.fit(*limits)
    assert fmt.low <= int(params.zero_point) <= fmt.high
    assert params.encode(0.0) == params.zero_point
    assert params.snap(0.0) == 0.0
    scale = float(params.scale)
    assert scale == float(np.float32(scale)) and LEAST_SCALE <= scale < np.inf


@given(formats, ranges)
def test_the_range_is_covered_up_to_half_a_step_and_no_step_is_wasted(fmt, limits):
    params = fmt.fit(*limits)
    low, high, scale = min(limits[0], 0.0), max(limits[1], 0.0), float(params.scale)
    slack = scale * (0.5 + 0.01)  # float32 scale: up to 65535 * 2^-24 steps
    if fmt.symmetric and not fmt.signed:
        slack = scale * 1.01  # 128 codes below the middle and 127 above it share one step of the fit
    least, greatest = params.span
    assert least <= low + slack and greatest >= high - slack
    if scale > LEAST_SCALE and (low, high) != (0.0, 0.0):
        widest = 2 * max(-low, high) if fmt.symmetric else high - low
        assert scale * (fmt.high - fmt.low) == pytest.approx(widest, rel=1e-6)


@given(every_format, ranges, st.lists(finite, min_size=1, max_size=20))
def test_snapping(fmt, limits, values):
    params = fmt.fit(*limits)
    low, high = params.span
    array = np.array(values, np.float32).astype(np.float64)
    codes = params.encode(array)
    assert ((codes >= fmt.low) & (codes <= fmt.high)).all()
    snapped = params.decode(codes)
    np.testing.assert_array_equal(params.encode(snapped), codes)  # idempotent
    inside = (array >= low) & (array <= high)
    # Quotients are float32, as onnxruntime's are: near a tie a code may be the other neighbor.
    half = float(params.scale) * (0.5 + (fmt.high - fmt.low) * 2.0**-23)
    assert (np.abs(snapped - array)[inside] <= half).all()
    assert not params.clipped(array[inside]).any()
    np.testing.assert_array_equal(snapped[array < low], low)
    np.testing.assert_array_equal(snapped[array > high], high)


def test_ties_go_to_the_even_level():
    params = QuantParams.of(IntegerFormat("uint8", symmetric=False), 2.0, 3)
    np.testing.assert_array_equal(params.encode([-8, -1, 1, 3, 5, 1000]), [0, 3, 3, 5, 5, 255])
    np.testing.assert_array_equal(params.clipped([-8, -7, -6, 504, 505, 506]), [True, True, False, False, False, True])
    assert params.span == (-6.0, 504.0)


@given(st.sampled_from(["int8", "uint8", "int16"]), st.integers(-120, 126))
def test_positions(dtype, position):
    fmt = IntegerFormat(dtype, scale="power_of_two")
    params = QuantParams.at(fmt, position)
    assert params.position == position
    assert Fraction(float(params.scale)) == Fraction(2) ** -position
    assert params.zero_point == fmt.middle


def test_a_scale_that_is_no_power_of_two_has_no_position():
    with pytest.raises(AssertionError, match="0.3 is not a power of two"):
        QuantParams.of(IntegerFormat("int8"), 0.3, 0).position


@given(st.floats(1e-300, 1e300))
@example(1.0)
@example(np.nextafter(1.0, 2.0))
@example(np.nextafter(1.0, 0.0))
def test_the_power_of_two_above(scale):
    above = float(power_of_two_above(scale))
    assert np.frexp(above)[0] == 0.5
    assert above / 2 < scale <= above


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_channels_are_apart(axis, symmetric):
    fmt = IntegerFormat("int8", symmetric, granularity="per_channel")
    array = np.random.default_rng(0).standard_normal((2, 3, 4)) * np.array([1.0, 10.0, 0.0, 1e-3])
    channels = np.moveaxis(array, axis, 0)
    apart = [fmt.fit(channel.min() / 2, channel.max() / 2) for channel in channels]
    params = QuantParams.stack(apart, axis)
    assert params.scale.shape == params.zero_point.shape == (array.shape[axis],)
    for method in ("encode", "snap", "clipped"):
        looped = np.stack([getattr(one, method)(channel) for one, channel in zip(apart, channels, strict=True)])
        np.testing.assert_array_equal(np.moveaxis(getattr(params, method)(array), axis, 0), looped)
    codes = np.arange(24).reshape(2, 3, 4)
    looped = np.stack([one.decode(part) for one, part in zip(apart, np.moveaxis(codes, axis, 0), strict=True)])
    np.testing.assert_array_equal(np.moveaxis(params.decode(codes), axis, 0), looped)
    assert params.span == (min(one.span[0] for one in apart), max(one.span[1] for one in apart))
