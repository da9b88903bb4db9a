from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from detent.measure.fidelity import _Sums

floats = st.floats(-1e6, 1e6, width=32)


def closeness(x, y):
    return _Sums.of(np.array(x, np.float32), np.array(y, np.float32)).closeness()


def test_by_hand():
    # x = (3, 4), error = (0, 1): signal 25, noise 1, peak 4, mean noise 1/2; y = (3, 3): product 21, norm sqrt(25 * 18)
    found = closeness([3, 4], [3, 3])
    assert found.sqnr_db == pytest.approx(10 * math.log10(25))
    assert found.psnr_db == pytest.approx(10 * math.log10(16 / 0.5))
    assert found.cosine == pytest.approx(21 / math.sqrt(25 * 18))


def test_equal_tensors():
    found = closeness([1, -2], [1, -2])
    assert (found.sqnr_db, found.psnr_db, found.cosine) == (math.inf, math.inf, 1.0)
    assert closeness([0, 0], [0, 0]).cosine == 1.0


def test_nothing_left_or_nothing_there():
    assert closeness([1, 2], [0, 0]).cosine == 0.0
    assert closeness([1, 2], [0, 0]).sqnr_db == 0.0
    assert closeness([0, 0], [1, 0]).sqnr_db == -math.inf


@settings(deadline=None, max_examples=50)
@given(arrays(np.float32, 12, elements=floats), arrays(np.float32, 12, elements=floats), st.integers(0, 12))
def test_sums_of_parts_are_the_sums_of_the_whole(x, y, cut):
    whole = _Sums.of(x, y)
    parts = _Sums.of(x[:cut], y[:cut]) + _Sums.of(x[cut:], y[cut:])
    assert parts.elements == whole.elements
    assert parts.peak == whole.peak
    for name in ("signal", "noise", "product", "other"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-9)
    reference = x.astype(np.float64)
    assert whole.signal == pytest.approx(float(reference @ reference), rel=1e-9)
