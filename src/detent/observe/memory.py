"""Two things that compiled loops need and Numba does not have: memory by its address, and memory before its time."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

_READ, _KEEP_CLOSE, _DATA = 0, 3, 1


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


prefetch: Any = intrinsic(_prefetch)
"""In compiled code, `prefetch(array, index)` brings an element of a contiguous array into the cache.

That changes no result, and the index may lie behind the end.
"""


def _emit_pointer(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())


def _pointer(_context: Any, address: Any) -> Any:
    return types.voidptr(address), _emit_pointer


_pointer_to: Any = intrinsic(_pointer)


@njit(nogil=True)
def floats_at(address: Any, size: Any) -> Any:
    """In compiled code, the `size` float32 values at an address, which somebody else keeps alive."""
    return carray(_pointer_to(address), size, np.float32)
