"""Products of rows with a matrix."""

from __future__ import annotations

import numpy as np
import pytest

from detent.errors import ModelError
from detent.execute import row_product
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


def test_a_product_that_fails_is_an_error_that_says_so(monkeypatch):
    class Failing:
        def run(self, names, feeds):
            raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory")

    monkeypatch.setattr(row_product, "_session", Failing)
    with pytest.raises(ModelError, match=r"rows of shape \[1, 11, 7\] .*: Failed to allocate memory"):
        RowProduct(np.ones((1, 5, 7), np.float32))(np.ones((1, 11, 7), np.float32))
