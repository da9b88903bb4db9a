"""Count values into bins: the compiled loops of calibration. They release the GIL and read each tensor once.

A tensor is counted in blocks that stay in the innermost cache: one vectorized loop turns a block into bin indices, a
second one adds them up. Both work in scratch memory of the caller, and what they found goes into the histogram at the
end, completely or not at all.

They are correct for every finite value, denormals and both zeros included, without fast-math: the result must not
depend on the compiler. Numba widens each integer operation to 64 bits; the casts to int32 after every step undo that,
so that a vector holds eight values. Numba also lacks two things that are added here: reading memory by its address,
and prefetching it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from detent.numerics.compiled import compiled

_READ, _KEEP_CLOSE, _DATA = 0, 3, 1  # the arguments of LLVM's prefetch


def _emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [address], kind)
    where = builder.bitcast(builder.gep(data, [arguments[1]]), address)
    builder.call(function, [where, number(_READ), number(_KEEP_CLOSE), number(_DATA)])
    return context.get_dummy_value()


def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    return types.void(array, index), _emit


# In compiled code, `prefetch(array, index)` brings an element of a contiguous array into the cache. That changes no
# result, and the index may lie behind the end.
prefetch: Any = intrinsic(_prefetch)


def _emit_pointer(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())


def _pointer(_context: Any, address: Any) -> Any:
    return types.voidptr(address), _emit_pointer


_pointer_to: Any = intrinsic(_pointer)


@njit(nogil=True)
def floats_at(address: Any, size: Any) -> Any:
    """Return, in compiled code, the `size` float32 values at an address, which somebody else keeps alive."""
    return carray(_pointer_to(address), size, np.float32)


BINS = 1 << 14
HALF = BINS // 2

BLOCK = 1 << 12  # values per block: a multiple of TABLES

# Neighbours are counted in tables of their own: equal ones, zeros above all, would wait for each other in one.
TABLES = 4

# The length of a table: a cache line more than it holds, or equal bins of all tables would compete for the cache.
ROW = BINS + 16

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN_SHIFT = np.int32(31)
_MIDDLE = np.int32(HALF)
_NO_LOW, _NO_HIGH = np.int32(2**31 - 1), np.int32(-(2**31))


@compiled
def extreme_keys(bits: npt.NDArray[np.int32]) -> tuple[Any, Any]:
    """Return the least and greatest of float32 values, as order-preserving integer keys of their `bits`.

    Flipping the magnitude bits of negative numbers makes integer order equal to float order, with NaNs beyond the
    infinities at both ends. Integer minima need no fast-math to be vectorised, and no NaN can hide from them.
    """
    low, high = _NO_LOW, _NO_HIGH
    for i in range(bits.size):
        key = np.int32(bits[i] ^ np.int32(np.int32(bits[i] >> _SIGN_SHIFT) & _MAGNITUDE))
        low = min(low, key)
        high = max(high, key)
    return low, high


@compiled
def find_bins(
    values: npt.NDArray[np.float32], inverse_width: np.float32, indices: npt.NDArray[np.uint16]
) -> tuple[Any, Any]:
    """Write the bin of each value to `indices`, and return the extreme keys of `values`.

    `inverse_width` is a power of two, so the product is exact or underflows to zero; a negative value that underflows
    still belongs to the first bin below zero, so the sign is taken from the value and not from the product. What is
    written for a value that does not fit the bins means nothing: look at the keys first.
    """
    bits = values.view(np.int32)
    low, high = _NO_LOW, _NO_HIGH
    for i in range(values.size):
        key = np.int32(bits[i] ^ np.int32(np.int32(bits[i] >> _SIGN_SHIFT) & _MAGNITUDE))
        low = min(low, key)
        high = max(high, key)
        # The cast truncates towards zero, so negative values move down by one bin to be floored.
        below = np.int32(np.int32(values[i] * inverse_width) - np.int32(values[i] < 0))
        indices[i] = np.uint16(np.int32(below + _MIDDLE))
    return low, high


@compiled
def tally(
    indices: npt.NDArray[np.uint16], count: int, tables: npt.NDArray[np.uint32], ahead: npt.NDArray[np.float32]
) -> None:
    """Add the first `count` indices to the tables in turn. Four of them are read as one word.

    This keeps the processor busy but not the memory, so meanwhile the values that come next, `ahead`, are fetched.
    """
    words = indices.view(np.uint64)
    mask = np.uint64(BINS - 1)
    for i in range(count // 4):
        prefetch(ahead, 4 * i)
        word = words[i]
        # Four neighbours go to four tables: an activation after Relu is mostly zeros, and increments of one and the
        # same counter would have to wait for each other.
        tables[0, word & mask] += np.uint32(1)
        tables[1, (word >> np.uint64(16)) & mask] += np.uint32(1)
        tables[2, (word >> np.uint64(32)) & mask] += np.uint32(1)
        tables[3, (word >> np.uint64(48)) & mask] += np.uint32(1)
    # Only the last block of a tensor has a remainder, since BLOCK is a multiple of four.
    for i in range(count // 4 * 4, count):
        tables[0, np.uint64(indices[i]) & mask] += np.uint32(1)


@compiled
def largest_magnitude(low: Any, high: Any) -> Any:
    """Return the bits of the largest magnitude between two extreme keys."""
    below = np.int32(np.int32(low ^ _MAGNITUDE) & _MAGNITUDE) if low < 0 else np.int32(0)
    return max(high, below)


@compiled
def count_if_fits(
    values: npt.NDArray[np.float32],
    inverse_width: np.float32,
    limit: int,
    counts: npt.NDArray[np.int64],
    indices: npt.NDArray[np.uint16],
    tables: npt.NDArray[np.uint32],
) -> tuple[Any, Any, bool]:
    """Add the bins of `values` to `counts` where all magnitudes are below `limit` (as bits); else nothing.

    Return the extreme keys, of all values in either case, and whether they fitted. `indices` (BLOCK long) and `tables`
    (TABLES x ROW, zero before and after) are scratch memory. A table holds 2^32, so a tensor up to 2^34 values.
    """
    low, high = _NO_LOW, _NO_HIGH
    start = 0
    while start < values.size:
        block = values[start : start + BLOCK]
        lower, higher = find_bins(block, inverse_width, indices)
        low, high = min(low, lower), max(high, higher)
        # Nothing of this tensor may stay in the tables: the caller widens the bins and counts all of it again. The
        # extremes of the rest are needed for that, so they are found here in the same pass over the cache.
        if largest_magnitude(lower, higher) >= limit:
            tables[:] = 0
            lower, higher = extreme_keys(values[start:].view(np.int32))
            return min(low, lower), max(high, higher), False
        start += block.size
        tally(indices, block.size, tables, values[start:])
    if start:
        _empty(tables, low, high, inverse_width, counts)
    return low, high, True


@compiled
def count_tensors(
    addresses: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    inverse_widths: npt.NDArray[np.float32],
    limits: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    found: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]],
    indices: npt.NDArray[np.uint16],
    tables: npt.NDArray[np.uint32],
) -> None:
    """Do `count_if_fits` for many tensors, given by address and size, each into its row of `counts`.

    `found` takes what it returns for each: the least key, the greatest, and whether the tensor fitted.
    """
    lows, highs, fitted = found
    for i in range(addresses.size):
        values = floats_at(addresses[i], sizes[i])
        low, high, fits = count_if_fits(values, inverse_widths[i], limits[i], counts[i], indices, tables)
        lows[i] = low
        highs[i] = high
        fitted[i] = fits


@compiled
def _empty(
    tables: npt.NDArray[np.uint32], low: Any, high: Any, inverse_width: np.float32, counts: npt.NDArray[np.int64]
) -> None:
    """Move the tables into `counts`. Only the bins between those of the extreme keys can hold anything."""
    ends = np.empty(2, np.int32)
    ends[0] = low ^ ((low >> _SIGN_SHIFT) & _MAGNITUDE)
    ends[1] = high ^ ((high >> _SIGN_SHIFT) & _MAGNITUDE)
    bins = np.empty(2, np.uint16)
    find_bins(ends.view(np.float32), inverse_width, bins)
    # Clearing 4 x 16,384 counters for every tensor would take longer than counting a small one.
    begin, end = bins[0], bins[1] + 1
    occupied = counts[begin:end]
    for table in range(TABLES):
        taken = tables[table, begin:end]
        for i in range(occupied.size):
            occupied[i] += np.int64(taken[i])
        taken[:] = 0
