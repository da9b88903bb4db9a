"""What holds for the parameters of every number format, whichever it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from detent.numerics import BLOCK_FORMATS
from detent.numerics.blocks import BlockParams
from detent.numerics.floats import FLOAT_NAMES, FloatFormat, FloatParams
from detent.numerics.formats import INTEGER_TYPES, IntegerFormat, QuantParams

PARAMS = {
    **{name: IntegerFormat(name).fit(-3.0, 2.0) for name in INTEGER_TYPES},
    **{f"{name} asymmetric": IntegerFormat(name, symmetric=False).fit(-3.0, 2.0) for name in INTEGER_TYPES},
    **{name: FloatParams(FloatFormat(name)) for name in FLOAT_NAMES},
    **{f"{name} scaled": FloatParams(FloatFormat(name, scaled=True), 0.25) for name in FLOAT_NAMES},
    **{name: BlockParams(fmt, 1) for name, fmt in BLOCK_FORMATS.items()},
}
VALUES = arrays(np.float32, (3, 20), elements=st.floats(-2.875, 1.875, width=32))


@pytest.mark.parametrize("name", PARAMS)
@settings(max_examples=20)
@given(values=VALUES)
def test_snapping(name, values):
    params = PARAMS[name]
    snapped = params.snap(values)
    low, high = params.span
    assert snapped.shape == values.shape
    assert not params.clipped(values).any()
    assert low <= snapped.min() and snapped.max() <= high
    if name != "MXINT8":  # where -2 has a code in a block whose exponent is 0
        np.testing.assert_array_equal(params.snap(snapped), snapped)
    np.testing.assert_array_equal(params.snap(np.zeros(5, np.float32).reshape(1, 5)), 0)


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_floats_clip_where_their_numbers_end(name):
    params = FloatParams(FloatFormat(name), 0.5)
    end = FloatFormat(name).largest / 2
    assert params.span == (-end, end)
    np.testing.assert_array_equal(
        params.clipped([end, -end, 2 * end, -3 * end, 0.0]), [False, False, True, True, False]
    )


def test_a_scale_is_divided_by_and_multiplied_with():
    # 1.1 / 0.5 = 2.2; the float8_e4m3 numbers around it are 2.0, 2.25.
    assert FloatParams(FloatFormat("float8_e4m3"), 0.5).snap([1.1])[0] == 1.125
    assert FloatParams(FloatFormat("float8_e4m3")).snap([1.1])[0] == 1.125
    assert FloatParams(FloatFormat("float8_e4m3"), 3.0).snap([1.1])[0] == np.float32(0.375 * 3.0)


def test_blocks_lie_along_their_axis():
    values = np.array([[1.0, 100.0], [1.0, 100.0]], np.float32) + np.float32(0.3)
    fmt = BLOCK_FORMATS["BFP16"]
    along, across = BlockParams(fmt, 1).snap(values), BlockParams(fmt, 0).snap(values)
    assert along[0, 0] == 1.0 and across[0, 0] == np.float32(1 + 19 / 64)
    assert BlockParams(fmt, 0).snap(np.float32(1.5)).shape == ()
    assert BlockParams(fmt, 0).span == (-np.inf, np.inf)
    assert not BlockParams(fmt, 0).clipped([1e30, np.inf]).any()


def test_scales_of_groups():
    fmt = IntegerFormat("int8", granularity="per_group:2")
    params = QuantParams(fmt, np.array([[1.0, 2.0], [4.0, 8.0]]), np.zeros((2, 2), np.int64), axis=1, block=2)
    scale, zero_point = params.broadcast((2, 3))
    np.testing.assert_array_equal(scale, [[1, 1, 2], [4, 4, 8]])
    assert zero_point.shape == (2, 3)
    np.testing.assert_array_equal(params.snap([[1.4, 1.6, 3.1], [5.9, 6.1, 13.0]]), [[1, 2, 4], [4, 8, 16]])
    np.testing.assert_array_equal(params.encode([[1.4, 1.6, 3.1], [5.9, 6.1, 13.0]]), [[1, 2, 2], [1, 2, 2]])
    np.testing.assert_array_equal(
        params.clipped([[200, 0, 200], [200, 0, 2000]]), [[True, False, False], [False, False, True]]
    )
    assert params.span == (-127 * 8.0, 127 * 8.0)


def test_scales_of_groups_along_the_first_axis():
    fmt = IntegerFormat("uint8", symmetric=False, granularity="per_group:2")
    params = QuantParams(fmt, np.array([[1.0], [2.0]]), np.array([[3], [5]]), axis=0, block=2)
    np.testing.assert_array_equal(params.encode([[1.0], [2.0], [4.0]]), [[4], [5], [7]])
    np.testing.assert_array_equal(params.decode([[4], [5], [7]]), [[1.0], [2.0], [4.0]])


@given(st.floats(1e-6, 1e4), st.sampled_from(["int8", "uint8", "int16"]))
def test_int16_scales_are_a_fraction(largest, dtype):
    params = IntegerFormat(dtype, scale="int16").fit(-largest, largest)
    numerators = float(params.scale) * 2.0 ** np.arange(17)
    whole = numerators[(numerators == np.rint(numerators)) & (numerators <= 32767)]
    assert whole.size and whole.min() >= 1
    wanted = 2 * largest / (params.format.high - params.format.low)
    assert abs(float(params.scale) - wanted) <= max(wanted / 2**14, 2.0**-16)


@given(
    values=arrays(np.float32, (4, 3), elements=st.floats(-300, 300, width=32) | st.just(float("nan"))),
    axis=st.sampled_from([None, 0, 1, -1]),
    zero=st.integers(-20, 20),
)
def test_what_is_clipped_is_told_number_by_number(values, axis, zero):
    # int8 with scale 1 holds -128 - zero .. 127 - zero; what rounds to one of these is not clipped.
    channels = () if axis is None else (values.shape[axis],)
    params = QuantParams(
        IntegerFormat("int8", symmetric=False), np.ones(channels), np.full(channels, zero, np.int64), axis
    )
    rounded = np.rint(values)
    np.testing.assert_array_equal(params.clipped(values), (rounded + zero < -128) | (rounded + zero > 127))
