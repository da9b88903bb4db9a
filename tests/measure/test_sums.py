from __future__ import annotations

import numpy as np

from detent.measure.sums import error_sums


def test_all_sums_at_once():
    x, y = np.array([1, -3, 2], np.float32), np.array([1, -2, 0], np.float32)
    assert error_sums(x, y) == (14.0, 5.0, 7.0, 5.0, 3.0, 3.0)


def test_no_elements():
    empty = np.zeros(0, np.float32)
    assert error_sums(empty, empty) == (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
