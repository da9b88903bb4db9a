"""The decorator of every compiled loop: no GIL, and the machine code kept for the next run.

Loops are compiled when the first one is called, so that a module with loops costs nothing to import.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

Loop = TypeVar("Loop", bound=Callable[..., object])

_lock = threading.RLock()


def compiled(loop: Loop) -> Loop:
    """Compile a loop over arrays. Where no folder is writable to keep the code in, it is compiled in each run."""
    return cast(Loop, _Lazy(loop, frozenset()))


def compiled_sums(loop: Loop) -> Loop:
    """Compile a loop whose sums may be taken in another order, which lets the processor add many numbers at once.

    The order is fixed when the loop is compiled: the same input gives the same bits in every call and thread.
    """
    return cast(Loop, _Lazy(loop, frozenset({"contract", "reassoc"})))


class _Lazy:
    """A loop that becomes machine code when it is called."""

    def __init__(self, loop: Callable[..., object], liberties: frozenset[str]) -> None:
        self.loop, self._liberties = loop, liberties
        self._dispatcher: Any = None
        self.__doc__, self.__name__, self.__module__ = loop.__doc__, loop.__name__, loop.__module__

    def __call__(self, *arguments: Any) -> Any:
        return (self._dispatcher or self.compile())(*arguments)

    def compile(self) -> Any:
        """Return the compiled loop. The loops that it calls are compiled before it."""
        import numba

        with _lock:
            if self._dispatcher is None:
                names = self.loop.__globals__
                for name in self.loop.__code__.co_names:
                    if isinstance(names.get(name), _Lazy):
                        # Numba looks the loop up by its name, and must find machine code there.
                        names[name] = names[name].compile()
                try:
                    self._dispatcher = numba.njit(nogil=True, cache=True, fastmath=set(self._liberties))(self.loop)
                except RuntimeError:
                    self._dispatcher = numba.njit(nogil=True, fastmath=set(self._liberties))(self.loop)
            return self._dispatcher
