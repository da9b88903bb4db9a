"""Products of rows with a matrix."""

from __future__ import annotations

import numpy as np
import pytest

from detent.execute.row_product import RowProduct


@pytest.mark.parametrize(("groups", "channels", "inputs"), [(1, 5, 7), (3, 2, 4), (6, 1, 9), (1, 1, 3)])
def test_it_is_the_product(groups, channels, inputs):
    rng = np.random.default_rng(1)
    matrix = rng.integers(-8, 8, (groups, channels, inputs)).astype(np.float32)
    rows = rng.integers(-8, 8, (groups, 11, inputs)).astype(np.float32)
    found = RowProduct(matrix)(rows)
    # Small whole numbers: exact in float32, whatever the order of summing.
    expected = np.stack(
        [[matrix[g, c] @ rows[g, p] for g in range(groups) for c in range(channels)] for p in range(11)]
    )
    assert found.dtype == np.float32 and np.array_equal(found, expected)
