"""The decorator of every compiled loop: no GIL, and the machine code kept for the next run.

Numba is imported when a loop is called for the first time, not when it is defined: importing it takes longer than most
commands, and modules with loops are imported by commands that never run one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar, cast

import numpy as np

Loop = TypeVar("Loop", bound=Callable[..., object])
Numbers = TypeVar("Numbers", bound="np.ndarray[Any, Any]")

_LOCK = threading.RLock()
_elsewhere: dict[str, threading.Event] = {}  # loops that another process compiles, and when their code is there


def compiled(loop: Loop) -> Loop:
    """Compile a loop over arrays. If no cache folder is writable, it is compiled anew in each run."""
    return cast(Loop, _LazyLoop(loop, frozenset()))


def compiled_sums(loop: Loop) -> Loop:
    """Compile a loop whose sums may be taken in another order, which lets the processor add many numbers at once.

    The order is fixed when the loop is compiled: the same input gives the same bits in every call and thread.
    """
    return cast(Loop, _LazyLoop(loop, frozenset({"contract", "reassoc"})))


def known_to_numba(make: Callable[[], Any]) -> Any:
    """Return a placeholder for something that only Numba can make, such as an intrinsic.

    A module defines it under the name that its loops call; `make` runs when the first of these loops is compiled.
    """
    return _Later(make)


def another_compiles(names: Sequence[str], finished: Iterable[str] | None) -> None:
    """Make calls of these loops (module:name) wait until `finished` has yielded the name, or has ended."""
    events = {name: threading.Event() for name in names}

    def listen() -> None:
        for line in finished or ():
            if event := events.get(line.strip()):
                event.set()
        for event in events.values():
            event.set()

    threading.Thread(target=listen, daemon=True).start()
    _elsewhere.update(events)  # only now: without a thread, nobody would end the waiting


def read_only(array: Numbers) -> Numbers:
    """Return a read-only view.

    Numba compiles a loop once for writable arrays and once for read-only ones, and constants come as both.
    """
    view = array.view()
    view.flags.writeable = False
    return view


class _Later:
    """A placeholder for what `make` returns."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._resolve = functools.cache(make)


class _LazyLoop:
    """A loop that is compiled when it is first called."""

    def __init__(self, function: Any, liberties: frozenset[str]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._liberties = function, liberties
        self._made: Callable[..., Any] | None = None
        self._ready: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._ready is None:
            if event := _elsewhere.get(f"{self._function.__module__}:{self._function.__qualname__}"):
                event.wait()
            self._resolve()
        return cast("Callable[..., Any]", self._ready)(*arguments)

    def compile(self, types: str) -> None:
        """Compile it for arguments of these types, in Numba's words, and keep the machine code."""
        from numba.core import sigutils

        with _LOCK:  # Numba prepares itself for the first loop: another thread is to wait, not to do it again
            # The cache is searched for types; it would take a string for another thing.
            cast(Any, self._resolve()).compile(cast(Any, sigutils).normalize_signature(types)[0])

    def _resolve(self) -> Callable[..., Any]:
        """Return the loop as Numba knows it."""
        with _LOCK:
            if self._made is None:
                self._made = _compile(self._function, self._liberties)
                # Numba compiles a call of another loop only if its name refers to a Numba dispatcher. So the names that
                # this loop calls are replaced, each after the names that it calls itself: another thread may call a
                # loop as soon as its name refers to machine code.
                names: dict[str, Any] = getattr(self._function, "__globals__", {})
                for name in _names_in(self._function.__code__):
                    if isinstance(value := names.get(name), (_LazyLoop, _Later)):
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
    from numba.core import caching

    FunctionCache: Any = caching.FunctionCache

    class Cache(FunctionCache):  # type: ignore[misc]
        """A cache that treats unreadable entries as missing, and ignores failures to write."""

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                return super().load_overload(sig, target_context)
            except Exception:  # noqa: BLE001 - a damaged pickle raises anything
                with contextlib.suppress(OSError):
                    self.flush()
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            with contextlib.suppress(OSError):
                super().save_overload(sig, data)

    dispatcher: Any = numba.njit(nogil=True, fastmath=set(liberties))(function)
    with contextlib.suppress(RuntimeError):  # no folder is writable
        if home() or "NUMBA_CACHE_DIR" in os.environ or os.access(Path(inspect.getfile(function)).parent, os.W_OK):
            dispatcher._cache = Cache(function)
    return cast("Callable[..., Any]", dispatcher)


def home() -> Path | None:
    """Return the user's home. In a container some have none, and Numba would make a folder called "~"."""
    try:
        return Path.home()
    except RuntimeError:
        return None
