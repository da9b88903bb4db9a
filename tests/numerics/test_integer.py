from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from detent.numerics.integer import INT8, UINT8_ZERO_128, IntegerGrid
from tests.models import build, info, node, session

GRIDS = {"int8": INT8, "uint8": UINT8_ZERO_128}
KINDS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
POSITIONS = st.integers(-121, 126)  # every scale of a finite float32 tensor, down to the last normal one
ANY_FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)


def quantizer(op, name):
    codes, values = KINDS[name], TensorProto.FLOAT
    source, result = (values, codes) if op == "QuantizeLinear" else (codes, values)
    return session(
        build(
            [node(op, "v scale zero_point", "out")],
            [info("out", ["n"], result)],
            inputs=[info("v", ["n"], source), info("scale", [], values), info("zero_point", [], codes)],
        )
    )


@pytest.fixture(scope="module")
def onnxruntime_codes():
    sessions = {name: quantizer("QuantizeLinear", name) for name in GRIDS}

    def encode(name, values, scale):
        grid = GRIDS[name]
        feeds = {"v": values, "scale": np.array(scale, np.float32), "zero_point": np.array(grid.zero_point, grid.dtype)}
        return sessions[name].run(None, feeds)[0]

    return encode


@pytest.fixture(scope="module")
def onnxruntime_values():
    sessions = {name: quantizer("DequantizeLinear", name) for name in GRIDS}

    def decode(name, codes, scale):
        grid = GRIDS[name]
        feeds = {"v": codes, "scale": np.array(scale, np.float32), "zero_point": np.array(grid.zero_point, grid.dtype)}
        return sessions[name].run(None, feeds)[0]

    return decode


def all_codes(grid):
    return np.arange(grid.low, grid.high + 1).astype(grid.dtype)


def test_the_two_grids():
    assert (INT8.low, INT8.high, INT8.low_level, INT8.high_level) == (-127, 127, -127, 127)
    assert (UINT8_ZERO_128.low, UINT8_ZERO_128.high) == (0, 255)
    assert (UINT8_ZERO_128.low_level, UINT8_ZERO_128.high_level) == (-128, 127)
    assert all_codes(INT8).size == 255
    assert all_codes(UINT8_ZERO_128).size == 256


@pytest.mark.parametrize(
    ("value", "level"),
    [
        *[(0, 0), (-0.0, 0), (0.49, 0), (0.5, 0), (0.51, 1), (1.5, 2), (2.5, 2), (3.5, 4)],
        *[(-0.5, 0), (-1.5, -2), (-2.5, -2), (-126.5, -126), (-127, -127)],
        *[(126.5, 126), (127, 127), (127.49, 127), (127.5, 127), (1e30, 127)],
    ],
)
@pytest.mark.parametrize("position", [0, 3, -5])
def test_known_levels(value, level, position):
    scale = 2.0**-position
    for grid in (INT8, UINT8_ZERO_128):
        assert grid.encode([value * scale], scale)[0] == level + grid.zero_point
        assert grid.encode([value * scale], scale).dtype == grid.dtype


@pytest.mark.parametrize(
    ("value", "int8", "uint8"), [(-127.5, -127, 0), (-128, -127, 0), (-128.6, -127, 0), (-1e9, -127, 0)]
)
def test_only_the_uint8_grid_goes_to_minus_128(value, int8, uint8):
    assert INT8.encode([value], 1.0)[0] == int8
    assert UINT8_ZERO_128.encode([value], 1.0)[0] == uint8


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("position", [-120, -20, -1, 0, 1, 7, 30, 100, 126, 127])
def test_all_codes_decode_as_onnxruntime_does_and_come_back(name, position, onnxruntime_values):
    grid, scale = GRIDS[name], 2.0**-position
    codes = all_codes(grid)
    values = grid.decode(codes, scale)
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, (np.arange(grid.low_level, grid.high_level + 1)) * scale)
    np.testing.assert_array_equal(values.astype(np.float32), onnxruntime_values(name, codes, scale))
    np.testing.assert_array_equal(grid.encode(values, scale), codes)
    np.testing.assert_array_equal(grid.snap(values, scale), values)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("position", [-120, -20, -1, 0, 1, 7, 30, 100, 126, 127])
def test_every_tie_and_its_neighbours_encode_as_onnxruntime_does(name, position, onnxruntime_codes):
    grid, scale = GRIDS[name], 2.0**-position
    ties = (np.arange(-140, 141, dtype=np.float32) + np.float32(0.5)) * np.float32(scale)
    values = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    values = np.concatenate([values, ties + np.float32(scale / 2)])
    theirs = onnxruntime_codes(name, values, scale)
    np.testing.assert_array_equal(grid.encode(values, scale), np.maximum(theirs, grid.low))


@pytest.mark.parametrize("name", GRIDS)
@settings(max_examples=60, deadline=None)
@given(values=st.lists(ANY_FLOAT, min_size=1, max_size=40), position=POSITIONS)
def test_any_value_encodes_as_onnxruntime_does(name, onnxruntime_codes, values, position):
    grid, scale, array = GRIDS[name], 2.0**-position, np.array(values, np.float32)
    theirs = onnxruntime_codes(name, array, scale)
    np.testing.assert_array_equal(grid.encode(array, scale), np.maximum(theirs, grid.low))


def test_onnxruntime_alone_uses_the_int8_code_minus_128(onnxruntime_codes):
    # QuantizeLinear saturates at the ends of its type. Weights are encoded here and stop at -127; an activation that
    # is emitted as int8 may come out one code lower at run time than the grid says.
    values = np.array([-127.4, -127.6, -128, -1000], np.float32)
    assert onnxruntime_codes("int8", values, 1.0).tolist() == [-127, -128, -128, -128]
    assert INT8.encode(values, 1.0).tolist() == [-127, -127, -127, -127]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@settings(max_examples=80, deadline=None)
@given(values=st.lists(ANY_FLOAT, max_size=30), position=POSITIONS)
def test_snap_is_decode_of_encode_and_moves_nothing_twice(grid, values, position):
    scale, array = 2.0**-position, np.array(values, np.float64)
    snapped = grid.snap(array, scale)
    np.testing.assert_array_equal(snapped, grid.decode(grid.encode(array, scale), scale))
    np.testing.assert_array_equal(grid.snap(snapped, scale), snapped)
    inside = (array >= grid.low_level * scale) & (array <= grid.high_level * scale)
    assert (np.abs(snapped - array)[inside] <= scale / 2).all()


@settings(max_examples=60, deadline=None)
@given(value=ANY_FLOAT, position=POSITIONS)
def test_int8_holds_the_negative_of_whatever_it_holds(value, position):
    scale = 2.0**-position
    assert INT8.encode([-value], scale)[0] == -INT8.encode([value], scale)[0]


def test_shape_and_emptiness_survive():
    grid = IntegerGrid("int8", -7, 7, 0)
    assert grid.encode(np.zeros((0, 3)), 1.0).shape == (0, 3)
    assert grid.encode(np.full((2, 3), 100.0), 1.0).tolist() == [[7, 7, 7], [7, 7, 7]]
    assert grid.encode(2.6, 1.0).shape == ()
