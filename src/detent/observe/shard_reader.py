"""Calibration data that a user's own object reads, a share at a time, wherever the worker is.

    class Reader:
        def shard(self, index: int, count: int) -> Iterable[{input: array}]: ...

The shards 0 to count - 1 together give every sample once, whatever `count` is: `files[index::count]` is the usual way.
Some may be empty. The object itself is sent to the workers, so it holds paths or addresses and no arrays.

The number of shards is fixed, and the limit and what is held out are divided over them: so the samples that count are
the same on one machine as on many.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

from detent.errors import DataError
from detent.observe.preprocess import InputSpec, Preprocess
from detent.observe.samples import Array, PendingSample
from detent.observe.streams import StreamSource

SHARDS = 16


class ShardReader(Protocol):
    """What a user writes to calibrate with data that only the workers can read."""

    def shard(self, index: int, count: int) -> Iterable[Mapping[str, Array]]:
        """The samples of share `index` out of `count`."""


def is_shard_reader(data: object) -> bool:
    """Whether `data` has shard(index, count). Libraries have a shard() too, with other parameters: that is not it."""
    shard = getattr(data, "shard", None)
    return callable(shard) and list(inspect.signature(shard).parameters) == ["index", "count"]


class ShardedSource:
    """The samples of a shard reader. See `Source` for the attributes."""

    random = False
    repeatable = True
    length: int | None = None
    preprocess: Preprocess | None = None
    note = ""
    fingerprint: str | None = None  # nobody knows what the reader will read

    def __init__(self, reader: ShardReader, inputs: Sequence[InputSpec], *, limit: int | None, reserve: int) -> None:
        self._reader = reader
        self._inputs = tuple(inputs)
        self._limit = limit
        self._reserve = reserve

    @property
    def describe(self) -> str:
        """One line for the terminal."""
        count = "all samples" if self._limit is None else f"up to {self._limit} samples"
        return f"{count} from the shards of a {type(self._reader).__name__}"

    def __iter__(self) -> Iterator[PendingSample]:
        empty = True
        for index in range(SHARDS):
            for pending in self.shard(index):
                empty = False
                yield pending
        if empty:
            raise DataError(f"None of the {SHARDS} shards of the {type(self._reader).__name__} has a sample.")

    def shard(self, index: int) -> Iterator[PendingSample]:
        """The samples of one shard, numbered so that no two shards share a number."""
        stream = StreamSource(
            partial(self._start, index),
            self._inputs,
            noun=f"reader's shard {index}",
            repeatable=False,
            total=None,
            limit=None if self._limit is None else share(self._limit, index),
            reserve=share(self._reserve, index),
            may_be_empty=True,
        )
        return (replace(pending, index=pending.index * SHARDS + index) for pending in stream)

    def chosen(self, numbers: Sequence[int]) -> Iterator[PendingSample]:
        """The samples of these numbers, in that order. Their shards are read as far as the last of them."""
        last: dict[int, int] = {}
        for number in numbers:
            last[number % SHARDS] = max(number // SHARDS, last.get(number % SHARDS, 0))
        read = (pending for index, item in last.items() for pending in islice(self.shard(index), item + 1))
        found = {pending.index: pending for pending in read if pending.index in numbers}
        for number in numbers:
            if number not in found:
                raise DataError(
                    f"Item {number // SHARDS} of the reader's shard {number % SHARDS} is there no more: the "
                    f"{type(self._reader).__name__} must give the same samples each time."
                )
            yield found[number]

    def _start(self, index: int) -> Iterator[Any]:
        return iter(self._reader.shard(index=index, count=SHARDS))


def share(total: int, index: int) -> int:
    """The part of `total` that falls to shard `index`: all parts differ by at most one and add up to it."""
    return total * (index + 1) // SHARDS - total * index // SHARDS
