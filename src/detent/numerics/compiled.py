"""The decorator of every compiled loop: no GIL, and the machine code kept for the next run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compile a loop over arrays. Where no folder is writable to keep the code in, it is compiled in each run."""
    try:
        return cast(Loop, numba.njit(nogil=True, cache=True)(loop))
    except RuntimeError:
        return cast(Loop, numba.njit(nogil=True)(loop))
