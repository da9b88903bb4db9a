from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from detent.numerics.formats import (
    HIGHEST_POSITION,
    LOWEST_POSITION,
    base_position,
    min_mse_position,
    min_mse_position_of,
    non_overflow_position,
    position_of,
    scale_of,
)
from tests.grids import INT8, UINT8_ZERO_128

GRIDS = pytest.mark.parametrize("grid", [INT8, UINT8_ZERO_128], ids=["int8", "uint8"])
ANY_FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)
FLOAT_MAX = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).smallest_subnormal)


@pytest.mark.parametrize(
    ("scale", "position"),
    [(1.0, 0), (0.5, 1), (2.0, -1), (2.0**-127, 127), (0.3, None), (0.0, None), (-0.5, None), (math.inf, None)],
)
def test_the_position_of_a_scale(scale, position):
    assert position_of(scale) == position


@pytest.mark.parametrize("position", [-127, -1, 0, 1, 10, 127, 149])
def test_scale_is_exact(position):
    assert scale_of(position) == 2.0**-position
    assert math.frexp(scale_of(position))[0] == 0.5
    assert position_of(scale_of(position)) == position


@pytest.mark.parametrize("scale", [0.3, 0.0, -0.5, math.inf, math.nan, 1 + 2.0**-23])
def test_other_scales_have_no_position(scale):
    assert position_of(scale) is None


@pytest.mark.parametrize(
    ("largest", "int8", "uint8"),
    [
        (1.0, 7, 7),  # -log2(1 / 127) = 6.989, -log2(2 / 255) = 6.994
        (0.0, 0, 0),
        (127.0, 0, 0),
        (127.5, 0, 0),
        (6.0, 4, 4),  # 4.40, 4.41
        (5.6, 5, 5),  # 4.503, 4.509: the nearest position, not the one below
        (5.625, 4, 5),  # 4.497, 4.502: the two grids spread the range over 254 and 255 steps
        (255.0, -1, -1),
        (1e-3, 17, 17),  # 16.95, 16.96
        (3e38, -121, -121),  # -120.8
        (TINY, 127, 127),  # 156 is beyond the last position
        (1e-37, 127, 127),  # 129.9
        (1e300, -127, -127),
    ],
)
def test_known_base_positions(largest, int8, uint8):
    assert base_position(largest, INT8) == int8
    assert base_position(largest, UINT8_ZERO_128) == uint8


@settings(max_examples=150, deadline=None)
@given(largest=st.floats(2.0**-110, 2.0**127))
def test_base_position_is_the_formula_and_clips_less_than_sqrt_2(largest):
    for grid, steps in ((INT8, 254), (UINT8_ZERO_128, 255)):
        wanted = 2 * largest / steps
        position = base_position(largest, grid)
        assert position == round(-math.log2(wanted))
        assert 2**-0.5 * 0.999999 <= scale_of(position) / wanted <= 2**0.5 * 1.000001


@settings(max_examples=50, deadline=None)
@given(largest=st.floats(1e-20, 1e20), shift=st.integers(-30, 30))
def test_doubling_the_data_lowers_the_position_by_one(largest, shift):
    assert base_position(largest * 2.0**shift, INT8) == base_position(largest, INT8) - shift


def brute_force(values, grid, candidates):
    errors = {}
    for position in candidates:
        step = 2.0**-position
        levels = [min(max(round(value / step), grid.levels[0]), grid.levels[1]) for value in values]
        errors[position] = math.fsum((value - level * step) ** 2 for value, level in zip(values, levels, strict=True))
    return errors


@GRIDS
@settings(max_examples=80, deadline=None)
@given(values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30), shift=st.integers(-20, 20))
def test_min_mse_agrees_with_brute_force(grid, values, shift):
    data = [float(np.float32(value * 2.0**shift)) for value in values]
    base = base_position(max(abs(value) for value in data), grid)
    errors = brute_force(data, grid, range(base - 1, min(base + 3, HIGHEST_POSITION) + 1))
    found = min_mse_position_of(data, grid)
    assert found in errors
    assert errors[found] <= min(errors.values()) * (1 + 1e-9)
    clear = [position for position, error in errors.items() if error <= min(errors.values()) * (1 + 1e-9)]
    assert found == clear[0] or len(clear) > 1


def test_candidates_are_five_and_the_first_minimum_wins():
    asked = []

    def error(position):
        asked.append(position)
        return {6: 3.0, 7: 1.0, 8: 1.0, 9: 1.0, 10: 2.0}[position]

    assert min_mse_position(1.0, INT8, error) == 7
    assert asked == [6, 7, 8, 9, 10]


def test_candidates_stop_at_the_last_position():
    asked = []
    min_mse_position(TINY, INT8, lambda position: asked.append(position) or 0.0)
    assert asked == [126, 127]


@GRIDS
def test_all_zero_takes_the_first_candidate(grid):
    assert min_mse_position_of(np.zeros((3, 4)), grid) == -1
    assert min_mse_position_of(np.zeros(0), grid) == -1
    assert min_mse_position_of([-0.0], grid) == -1


def test_min_mse_known_answers():
    # 1.0 is level 64 at position 6 and would be level 128 at position 7.
    assert min_mse_position_of([1.0], INT8) == 6
    # -1.0 is level -128 at position 7, which only uint8 has; but position 6 is as good, and first.
    assert min_mse_position_of([-1.0], UINT8_ZERO_128) == 6
    # At 6 both small values are half a step off: 2 / 128^2. At 7 uint8 is exact, and int8 clips -1 by 1 / 128.
    data = [-1.0, 1 / 128, 3 / 128]
    assert min_mse_position_of(data, UINT8_ZERO_128) == 7
    assert min_mse_position_of(data, INT8) == 7
    # An outlier and many small values. At 7: 100000 * 0.003^2 = 0.9 and next to nothing for the outlier; at 8:
    # 100000 * (1/256 - 0.003)^2 = 0.082 and (1 - 127/256)^2 = 0.254; at 9 the same and (1 - 127/512)^2 = 0.565.
    assert min_mse_position_of([1.0] + [0.003] * 100_000, INT8) == 8


def saturates(values, position, grid):
    levels = np.rint(np.asarray(values, np.float64) * 2.0**position)
    return bool((levels < grid.levels[0]).any() or (levels > grid.levels[1]).any())


def edges(position):
    """Values around the last levels of both grids, and half a step past them."""
    levels = [126.5, 127, 127.5, 128, 128.5, 129, 255, 255.5]
    exact = [level * 2.0**-position for level in levels]
    return exact + [math.nextafter(value, toward) for value in exact for toward in (0, math.inf)]


@GRIDS
@settings(max_examples=200, deadline=None)
@given(values=st.lists(ANY_FLOAT, min_size=1, max_size=6))
@example(values=[FLOAT_MAX])
@example(values=[-FLOAT_MAX, FLOAT_MAX])
@example(values=[TINY])
@example(values=[-TINY, 1.0])
def test_non_overflow_never_saturates_and_is_the_largest_such(grid, values):
    low, high = min(0.0, *values), max(0.0, *values)
    assume(low or high)
    position = non_overflow_position(low, high, grid)
    assert LOWEST_POSITION <= position <= HIGHEST_POSITION
    assert not saturates([low, high, *values], position, grid)
    assert position == HIGHEST_POSITION or saturates([low, high], position + 1, grid)


@GRIDS
@pytest.mark.parametrize("position", [-115, -3, 0, 7, 100])
@pytest.mark.parametrize("sign", [-1, 1])
def test_non_overflow_at_the_edges(grid, position, sign):
    for value in edges(position):
        low, high = min(0.0, sign * value), max(0.0, sign * value)
        found = non_overflow_position(low, high, grid)
        assert not saturates([low, high], found, grid)
        assert saturates([low, high], found + 1, grid)


@pytest.mark.parametrize(
    ("low", "high", "int8", "uint8"),
    [
        (0.0, 0.0, 0, 0),
        (0.0, 127.0, 0, 0),
        (0.0, 127.49, 0, 0),
        (0.0, 127.5, -1, -1),  # a tie, to the even 128
        (-127.49, 0.0, 0, 0),
        (-128.0, 0.0, -1, 0),
        (-128.5, 0.0, -1, 0),  # a tie, to the even -128
        (-128.51, 0.0, -1, -1),
        (-1.0, 1.0, 6, 6),
        (-1.0, 0.99, 6, 7),
        (0.0, TINY, 127, 127),
    ],
)
def test_known_non_overflow_positions(low, high, int8, uint8):
    assert non_overflow_position(low, high, INT8) == int8
    assert non_overflow_position(low, high, UINT8_ZERO_128) == uint8


@GRIDS
def test_the_base_position_does_overflow(grid):
    # What the reference calls non-overflow is the base position; on about half of all tensors it clips.
    rng = np.random.default_rng(0)
    largest = np.exp2(rng.uniform(-4, 4, 400))
    clipped = sum(saturates([value], base_position(value, grid), grid) for value in largest)
    assert 150 < clipped < 250
    assert not any(saturates([-value, value], non_overflow_position(-value, value, grid), grid) for value in largest)
