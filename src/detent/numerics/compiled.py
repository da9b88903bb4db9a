"""The decorator of every compiled loop: no GIL, and the machine code kept for the next run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compile a loop over arrays. Where no folder is writable to keep the code in, it is compiled in each run."""
    return _compile(loop, frozenset())


def compiled_sums(loop: Loop) -> Loop:
    """Compile a loop whose sums may be taken in another order, which lets the processor add many numbers at once.

    The order is fixed when the loop is compiled: the same input gives the same bits in every call and thread.
    """
    return _compile(loop, frozenset({"contract", "reassoc"}))


def _compile(loop: Loop, liberties: frozenset[str]) -> Loop:
    try:
        return cast(Loop, numba.njit(nogil=True, cache=True, fastmath=set(liberties))(loop))
    except RuntimeError:
        return cast(Loop, numba.njit(nogil=True, fastmath=set(liberties))(loop))
