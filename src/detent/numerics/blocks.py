"""Blocks: what the formats that share an exponent among neighbours have in common.

A tensor is cut along one axis into blocks of a fixed number of elements; the last one is filled up with zeros, which
never raise an exponent and are dropped afterwards. A block of zeros is a block like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError

Blocks: TypeAlias = npt.NDArray[np.float32]

EXPONENT_BITS = 0x7F800000
EXPONENT_BIAS = 127
NOT_FINITE = 255
"""The biased exponent of infinities and NaN."""

_CHUNK = 1 << 16
"""Elements handled at a time: their temporaries stay in the processor's cache."""


def by_blocks(values: npt.ArrayLike, axis: int, block_size: int, snap: Callable[[Blocks], Blocks]) -> Blocks:
    """Apply `snap`, which works on rows that are one block each, to blocks of `values` along `axis`."""
    with np.errstate(over="ignore", invalid="ignore"):  # float64 past the range of float32 is infinite, and NaN is NaN
        array = np.asarray(values, np.float32)
    if not -array.ndim <= axis < array.ndim:
        raise UsageError(f"axis is {axis}, of an array of {array.ndim} dimensions: it cannot be cut into blocks there.")
    rows = np.moveaxis(array, axis, -1)
    length = rows.shape[-1]
    missing = -length % block_size
    if missing:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:-1], missing), np.float32)], axis=-1)
    blocks = np.ascontiguousarray(rows).reshape(-1, block_size)
    snapped = np.empty_like(blocks)
    step = max(1, _CHUNK // block_size)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            snapped[start : start + step] = snap(blocks[start : start + step])
    return np.ascontiguousarray(np.moveaxis(snapped.reshape(rows.shape)[..., :length], -1, axis))


def biased_exponents(values: Blocks) -> npt.NDArray[np.int32]:
    """The exponents as float32 stores them: floor(log2|x|) + 127; 0 for zero and subnormals, 255 for inf and NaN."""
    return (values.view(np.int32) & EXPONENT_BITS) >> 23


def powers_of_two(exponents: npt.NDArray[np.int32]) -> Blocks:
    """2^exponents, which may be subnormal."""
    return np.ldexp(np.float32(1.0), exponents)
