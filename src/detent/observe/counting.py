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

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.numerics.compiled import compiled, known_to_numba

_READ, _KEEP_CLOSE, _DATA = 0, 3, 1  # the arguments of LLVM's prefetch


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the address of an element of a contiguous array."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


def _emit_prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    ir = _llvm()
    address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [address], kind)
    where = builder.bitcast(_address(context, builder, signature, arguments), address)
    builder.call(function, [where, number(_READ), number(_KEEP_CLOSE), number(_DATA)])
    return context.get_dummy_value()


def _emit_four(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    where = builder.bitcast(_address(context, builder, signature, arguments), _llvm().IntType(64).as_pointer())
    return builder.load(where, align=2)


def _emit_pointer(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.inttoptr(arguments[0], _llvm().IntType(8).as_pointer())


def _emit_bits(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], _llvm().IntType(32))


def _emit_float(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], _llvm().FloatType())


def _llvm() -> Any:
    """Return LLVM's types, which are imported with Numba."""
    return importlib.import_module("llvmlite.ir")


def _of_element(result: str, emit: Callable[..., Any]) -> Any:
    """Return an intrinsic of an array and an index, that gives Numba's type `result`."""
    numba = importlib.import_module("numba")
    kind = getattr(numba.types, result)
    return importlib.import_module("numba.extending").intrinsic(lambda _c, array, index: (kind(array, index), emit))


def _of_number(result: str, emit: Callable[..., Any]) -> Any:
    """Return an intrinsic of one number, that gives Numba's type `result`."""
    numba = importlib.import_module("numba")
    kind = getattr(numba.types, result)
    return importlib.import_module("numba.extending").intrinsic(lambda _c, value: (kind(value), emit))


# In compiled code, `prefetch(array, index)` brings an element of a contiguous array into the cache. That changes no
# result, and the index may lie behind the end.
prefetch: Any = known_to_numba(lambda: _of_element("void", _emit_prefetch))
# Four neighbours of an array of uint16, as one word.
_four_at: Any = known_to_numba(lambda: _of_element("uint64", _emit_four))
_pointer_to: Any = known_to_numba(lambda: _of_number("voidptr", _emit_pointer))
_bits_of: Any = known_to_numba(lambda: _of_number("int32", _emit_bits))
_float_of: Any = known_to_numba(lambda: _of_number("float32", _emit_float))
_carray: Any = known_to_numba(lambda: importlib.import_module("numba").carray)


@compiled
def floats_at(address: Any, size: Any) -> Any:
    """Return, in compiled code, the `size` float32 values at an address, which somebody else keeps alive."""
    return _carray(_pointer_to(address), size, np.float32)


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
_INDEX = np.uint64(BINS - 1)
_NO_LOW, _NO_HIGH = np.int32(2**31 - 1), np.int32(-(2**31))


@compiled
def find_bins(
    values: npt.NDArray[np.float32], inverse_width: np.float32, indices: npt.NDArray[np.uint16]
) -> tuple[Any, Any]:
    """Write the bin of each value to `indices`, and return the extreme keys of `values`.

    A key is the bits of a float32 as an integer, with the magnitude bits of negative numbers flipped. That makes
    integer order equal to float order, with NaNs beyond the infinities at both ends. Integer minima need no fast-math
    to be vectorised, and no NaN can hide from them.

    `inverse_width` is a power of two, so the product is exact or underflows to zero; a negative value that underflows
    still belongs to the first bin below zero, so the sign is taken from the value and not from the product. What is
    written for a value that does not fit the bins means nothing: look at the keys first.
    """
    low, high = _NO_LOW, _NO_HIGH
    for i in range(values.size):
        bits = _bits_of(values[i])
        key = np.int32(bits ^ np.int32(np.int32(bits >> _SIGN_SHIFT) & _MAGNITUDE))
        low = key if key < low else low
        high = key if key > high else high
        # The cast truncates towards zero, so negative values move down by one bin to be floored.
        below = np.int32(np.int32(values[i] * inverse_width) - np.int32(values[i] < 0))
        indices[i] = np.uint16(np.int32(below + _MIDDLE))
    return low, high


@compiled
def tally(
    indices: npt.NDArray[np.uint16], count: int, tables: npt.NDArray[np.uint32], ahead: npt.NDArray[np.float32]
) -> None:
    """Add the first `count` indices to the tables in turn.

    This keeps the processor busy but not the memory, so meanwhile the values that come next, `ahead`, are fetched.
    """
    for step in range(count // 4):
        i = 4 * step
        prefetch(ahead, i)
        word = _four_at(indices, i)
        # Four neighbours go to four tables: an activation after Relu is mostly zeros, and increments of one and the
        # same counter would have to wait for each other.
        tables[0, word & _INDEX] += np.uint32(1)
        tables[1, (word >> np.uint64(16)) & _INDEX] += np.uint32(1)
        tables[2, (word >> np.uint64(32)) & _INDEX] += np.uint32(1)
        tables[3, (word >> np.uint64(48)) & _INDEX] += np.uint32(1)
    # Only the last block of a tensor has a remainder, since BLOCK is a multiple of four.
    for i in range(count // 4 * 4, count):
        tables[0, np.uint64(indices[i]) & _INDEX] += np.uint32(1)


@compiled
def count_tensors(
    addresses: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    inverse_widths: npt.NDArray[np.float32],
    limits: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    found: npt.NDArray[np.int32],
    indices: npt.NDArray[np.uint16],
    tables: npt.NDArray[np.uint32],
) -> None:
    """Add the bins of many tensors, given by address and size, each to its row of `counts`; or nothing of a tensor
    where a magnitude reaches its limit (as bits). Widths and limits are by row too.

    `found` has a row for each: the least key, the greatest, of all values in either case, and whether they fitted.
    `indices` (BLOCK long) and `tables` (TABLES x ROW, zero before and after) are scratch memory. A table holds 2^32, so
    a tensor up to 2^34 values.
    """
    for tensor in range(addresses.size):
        values, row = floats_at(addresses[tensor], sizes[tensor]), rows[tensor]
        low, high, fits = _NO_LOW, _NO_HIGH, True
        start = 0
        while start < values.size:
            block = values[start : start + BLOCK]
            lower, higher = find_bins(block, inverse_widths[row], indices)
            low = lower if lower < low else low
            high = higher if higher > high else high
            below = np.int32(low ^ _MAGNITUDE) & _MAGNITUDE if low < 0 else 0
            # The caller widens the bins and counts all of it again: only the extremes of the rest are needed.
            fits = fits and high < limits[row] and below < limits[row]
            start += block.size
            if fits:
                tally(indices, block.size, tables, values[start:])
        found[tensor, 0], found[tensor, 1], found[tensor, 2] = low, high, fits
        # Clearing 4 x 16,384 counters for every tensor would take longer than counting a small one: only the bins
        # between those of the extremes can hold anything. Nothing of a tensor that did not fit may stay in the tables.
        begin, end = 0, BINS
        if fits and start:
            begin, end = _bin_of(low, inverse_widths[row]), _bin_of(high, inverse_widths[row]) + 1
        occupied = counts[row, begin:end]
        for table in range(TABLES):
            taken = tables[table, begin:end]
            for i in range(occupied.size if fits else 0):
                occupied[i] += np.int64(taken[i])
            for i in range(taken.size):
                taken[i] = 0


@compiled
def _bin_of(key: np.int32, inverse_width: np.float32) -> Any:
    """Return the bin of a value with this key."""
    value = _float_of(np.int32(key ^ np.int32(np.int32(key >> _SIGN_SHIFT) & _MAGNITUDE)))
    return np.int64(np.int32(value * inverse_width)) - np.int64(value < 0) + HALF
