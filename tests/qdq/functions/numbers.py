"""Numbers that the block formats may trip over."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SHAPES = (
    ((21,), 0),
    ((3, 10), 1),
    ((17, 3), 0),
    ((2, 16, 3), 1),
    ((2, 3, 33), -1),
    ((1, 19, 3, 2), 1),
    ((2, 3, 9, 5), 2),
    ((2, 8, 2, 2), -3),
)
"""Shapes with an axis to be cut along; most do not fill their last block."""


def spread(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Numbers of many magnitudes."""
    rng = np.random.default_rng(2)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, shape)).astype(np.float32)


def blocks_of_all_kinds(block_size: int) -> npt.NDArray[np.float32]:
    """Rows of two blocks, the second one element short of full, from one end of float32 to the other.

    Every bit pattern alike, so infinities and NaN among them; the same close to each other; few mantissa bits, so that
    many are halfway; subnormal numbers; the neighbours of powers of two; and zeros.
    """
    rng = np.random.default_rng(3)
    shape = (400, max(2 * block_size - 1, 1))
    bits = rng.integers(0, 1 << 32, shape, np.uint32)
    sign, mantissa = bits & 0x80000000, bits & 0x7FFFFF
    base = rng.integers(0, 255, (shape[0], 1), np.uint32)
    exponent = np.minimum(base + rng.integers(0, 10, shape, np.uint32), 254) << 23
    kinds = [
        bits,
        sign | exponent | mantissa,
        sign | exponent | (mantissa & 0x7F8000),
        sign | exponent | (mantissa & 0x700000),
        sign | mantissa,
        (sign | exponent) + rng.integers(0, 3, shape, np.uint32) - 1,
        sign | (exponent & np.uint32(0x01800000)) | mantissa,
        np.where(bits & 1, sign, sign | exponent | (mantissa & 0x7E0000)),
        np.where(bits & 7, sign | exponent | mantissa, np.where(bits & 8, 0x7F800000, 0x7FC00000) | sign),
    ]
    return np.concatenate(kinds).astype(np.uint32).view(np.float32)
