"""Asks the processor to bring memory into the cache before it is needed. That changes no result."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
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
"""In compiled code, `prefetch(array, index)` for a contiguous array. The index may lie behind its end."""
