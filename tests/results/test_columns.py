from __future__ import annotations

import numpy as np
import pytest

from detent.observe.statistics import Histogram
from detent.results.tensors import columns_of


def histogram(*values):
    counted = Histogram()
    counted.add(np.asarray(values, np.float32))
    return counted


def test_columns_are_aligned_to_zero_and_hold_every_value():
    # The range is 0..4 and at most 4 columns: they are 1 wide.
    found = list(columns_of(histogram(0.5, 1.5, 1.75, 3.5), 0.0, 4.0, 4))
    assert found == [(0.0, 1.0, 1), (1.0, 2.0, 2), (3.0, 4.0, 1)]


def test_the_outermost_columns_end_where_the_range_does():
    found = list(columns_of(histogram(-1.2, 2.9), -1.2, 2.9, 4))
    # 4.1 in at most 4 columns: they are 2 wide.
    assert found == [(-1.2, 0.0, 1), (2.0, 2.9, 1)]


@pytest.mark.parametrize("most", [16, 64, 400])
def test_half_to_all_of_the_columns_fill_the_range(most):
    values = np.linspace(-3, 5, 100_000, dtype=np.float32)
    found = list(columns_of(histogram(*values), -3.0, 5.0, most))
    assert most / 2 <= len(found) <= most + 2
    assert sum(count for *_, count in found) == values.size
