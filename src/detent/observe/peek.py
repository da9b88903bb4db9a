"""The first samples of a source, for whoever needs some before the sweep; none is lost for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from detent.observe.samples import PendingSample
from detent.observe.sources import Source


def peek(source: Source, count: int) -> tuple[list[PendingSample], Source]:
    """The first `count` samples that are not held out, and the source to go on with.

    A source that can be read only once gives them back from memory, and then the rest.
    """
    iterator = iter(source)
    read: list[PendingSample] = []
    chosen: list[PendingSample] = []
    while len(chosen) < count and (pending := next(iterator, None)) is not None:
        read.append(pending)
        if not pending.held_out:
            chosen.append(pending)
    return chosen, source if source.repeatable else _Resumed(source, read, iterator)


class _Resumed:
    """A source that was begun already. Everything but its samples is that of the original."""

    def __init__(self, source: Source, read: list[PendingSample], rest: Iterator[PendingSample]) -> None:
        self._source = source
        self._samples: Iterator[PendingSample] | None = chain(read, rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __iter__(self) -> Iterator[PendingSample]:
        samples, self._samples = self._samples, None
        return iter(self._source) if samples is None else samples  # the original knows what to say to a second pass
