"""The decorator of every compiled loop: no GIL, and the machine code kept for the next run.

Numba is imported when a loop is called for the first time, not when it is defined: importing it takes longer than most
commands, and modules with loops are imported by commands that never run one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar, cast

import numpy as np

Loop = TypeVar("Loop", bound=Callable[..., object])
Numbers = TypeVar("Numbers", bound="np.ndarray[Any, Any]")

_LOCK = threading.RLock()


def compiled(loop: Loop) -> Loop:
    """Compile a loop over arrays. Where no folder is writable to keep the code in, it is compiled in each run."""
    return cast(Loop, _LazyLoop(loop, frozenset()))


def compiled_sums(loop: Loop) -> Loop:
    """Compile a loop whose sums may be taken in another order, which lets the processor add many numbers at once.

    The order is fixed when the loop is compiled: the same input gives the same bits in every call and thread.
    """
    return cast(Loop, _LazyLoop(loop, frozenset({"contract", "reassoc"})))


def read_only(array: Numbers) -> Numbers:
    """Return a view that cannot be written to.

    Loops are compiled once for arrays that can be and once for those that cannot, and constants are of both kinds.
    """
    view = array.view()
    view.flags.writeable = False
    return view


class _LazyLoop:
    """Stands for a loop until it is called."""

    def __init__(self, function: Any, liberties: frozenset[str]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._liberties = function, liberties
        self._made: Callable[..., Any] | None = None
        self._ready: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._ready or self._resolve())(*arguments)

    def _resolve(self) -> Callable[..., Any]:
        """Return the loop as Numba knows it."""
        with _LOCK:
            if self._made is None:
                self._made = _compile(self._function, self._liberties)
                # Numba compiles the calls of other loops only where their names stand for what it made itself. Only the
                # names that this loop calls are replaced, each after those that it calls: another thread may call a
                # loop by its name as soon as that stands for machine code.
                names: dict[str, Any] = getattr(self._function, "__globals__", {})
                for name in _names_in(self._function.__code__):
                    if isinstance(value := names.get(name), _LazyLoop):
                        names[name] = value._resolve()
                self._ready = self._made
            return self._made


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield every name that a function reads from its module, those in comprehensions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _compile(function: Callable[..., object], liberties: frozenset[str]) -> Callable[..., Any]:
    import numba

    try:
        return cast("Callable[..., Any]", numba.njit(nogil=True, cache=True, fastmath=set(liberties))(function))
    except RuntimeError:
        return cast("Callable[..., Any]", numba.njit(nogil=True, fastmath=set(liberties))(function))
