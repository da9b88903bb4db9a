"""The compiled loops of calibration. They release the GIL and allocate nothing.

Each reads a float32 tensor once. They are correct for every finite value, denormals and both zeros included, with no
fast-math: what they return must not depend on how the compiler felt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled

BINS = 1 << 14
HALF = BINS // 2


@compiled
def extreme_keys(bits: npt.NDArray[np.int32]) -> tuple[Any, Any]:
    """The least and greatest of float32 values, as order-preserving integer keys of their `bits`.

    Flipping the magnitude bits of negative numbers makes integer order equal to float order, with NaNs beyond the
    infinities at both ends. Integer minima need no fast-math to be vectorised, and no NaN can hide from them.
    """
    low = np.int32(2147483647)
    high = np.int32(-2147483648)
    for i in range(bits.size):
        bit = bits[i]
        key = bit ^ ((bit >> 31) & np.int32(0x7FFFFFFF))
        low = min(low, key)
        high = max(high, key)
    return low, high


@compiled
def count_bins(values: npt.NDArray[np.float32], inverse_width: np.float32, tables: npt.NDArray[np.uint32]) -> None:
    """Add each value's bin to one of two tables in turn (equal neighbours, zeros above all, would wait for each other).

    `inverse_width` is a power of two, so the product is exact or underflows to zero; a negative value that underflows
    still belongs to the first bin below zero, so the sign is taken from the value and not from the product.
    """
    even = values.size & ~1
    for i in range(0, even, 2):
        first = np.int32(values[i] * inverse_width) - np.int32(values[i] < 0) + HALF
        second = np.int32(values[i + 1] * inverse_width) - np.int32(values[i + 1] < 0) + HALF
        tables[0, first & (BINS - 1)] += np.uint32(1)
        tables[1, second & (BINS - 1)] += np.uint32(1)
    if even != values.size:
        last = np.int32(values[even] * inverse_width) - np.int32(values[even] < 0) + HALF
        tables[0, last & (BINS - 1)] += np.uint32(1)


@compiled
def count_if_fits(
    values: npt.NDArray[np.float32], inverse_width: np.float32, limit: int, tables: npt.NDArray[np.uint32]
) -> tuple[Any, Any, bool]:
    """The extreme keys of `values`; and where all magnitudes are below `limit` (as bits), they are counted as well.

    One call for both: a tensor that was just read is still in the cache, and a call costs more than a small tensor.
    """
    low, high = extreme_keys(values.view(np.int32))
    largest = high
    if low < 0:
        largest = max(high, (low ^ np.int32(0x7FFFFFFF)) & np.int32(0x7FFFFFFF))
    fits = largest < limit
    if fits:
        count_bins(values, inverse_width, tables)
    return low, high, fits
