from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import UsageError
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import nearest_int16_scale

GRID = np.unique(np.concatenate([np.arange(1, 32768) / 2.0**shift for shift in range(17)]))
"""Every M / 2^N."""


@pytest.mark.parametrize(
    ("scale", "nearest"),
    [
        (1.0, 1.0),
        (0.1, 3277 / 2**15),
        (1 / 3, 21845 / 2**16),
        (0.7, 11469 / 2**14),
        (16383.5, 16383.5),
        (20000.3, 20000.0),
        (0.5 - 0.4 / 2**16, 0.5),  # 32768 / 2^16 has too large an M, but 1 / 2^1 has not
        (1.5 / 2**16, 2 / 2**16),  # a tie: 1 / 2^15 has the smaller shift
        (2.5 / 2**16, 2 / 2**16),
        (7e-6, 2.0**-16),  # not zero
        (1e-30, 2.0**-16),
        (40000.0, 32767.0),
    ],
)
def test_known_answers(scale, nearest):
    assert float(nearest_int16_scale(scale)) == nearest


@given(st.lists(st.floats(1e-7, 40000.0), min_size=1, max_size=50))
def test_no_other_is_nearer(scales):
    found = nearest_int16_scale(scales)
    assert np.isin(found, GRID).all()
    above = np.searchsorted(GRID, scales).clip(1, len(GRID) - 1)
    least = np.minimum(np.abs(GRID[above] - scales), np.abs(GRID[above - 1] - scales))
    np.testing.assert_array_equal(np.abs(found - scales), least)


def test_what_is_on_the_grid_stays():
    some = GRID[::101]
    np.testing.assert_array_equal(nearest_int16_scale(some), some)
    np.testing.assert_array_equal(nearest_int16_scale(some.reshape(1, -1)), some.reshape(1, -1))


@pytest.mark.parametrize("scale", [0.0, -0.1, np.nan, np.inf])
def test_what_is_no_scale(scale):
    with pytest.raises(UsageError, match="not a positive number"):
        nearest_int16_scale([0.1, scale])


def test_float8_scales():
    e4m3, e5m2 = FloatFormat("float8_e4m3", scaled=True), FloatFormat("float8_e5m2", scaled=True)
    assert [e4m3.fit(0.0, largest).scale for largest in (896.0, 1.0, 0.0)] == [2.0, float(np.float32(1 / 448)), 1.0]
    assert e5m2.fit(-57344.0, 1.0).scale == 1.0
    assert np.float32(e5m2.fit(0.0, 1e-45).scale) > 0
    for largest in (0.37, 5.0, 1e30):
        assert float(e4m3.fit(0.0, largest).snap(largest)) == pytest.approx(largest, rel=1e-6)
