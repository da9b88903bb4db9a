"""Calibration in shares that travel: what a task is told, and how the data is divided into tasks.

Data stays where it is. A task carries row numbers; the description of the data, which is paths, preprocessing or a seed
but never an array, goes to each worker once, with the model.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from detent.errors import UsageError
from detent.observe.samples import PendingSample
from detent.observe.shard_reader import SHARDS, ShardedSource
from detent.observe.sources import RowSource, Source
from detent.observe.statistics import Statistics, Vote
from detent.observe.statistics_bytes import pack, unpack

SHARDS_PER_WORKER = 4
"""So that the last worker to finish keeps the others waiting for a quarter of its work at most."""

LARGEST_SHARD = 32
"""Samples. What a lost worker costs, and how often progress is seen."""

_QUICK = 1  # a higher level of compression saves a few percent and takes several times as long

Divisible = RowSource | ShardedSource
Dumps = Callable[[object], bytes]


@dataclass(frozen=True)
class Work:
    """What all tasks of a sweep share."""

    sites: tuple[str, ...]
    source: Divisible
    vote: Vote | None


@dataclass(frozen=True)
class Shard:
    """One task. `groups` are the numbers and the rows of its samples; a shard reader goes by `number` alone."""

    number: int
    name: str
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class ShardResult:
    """What came of a shard: compressed statistics, over how many samples, of how many feeds; and what it held out."""

    number: int
    compressed: bytes
    samples: int
    feeds: int
    held_out: tuple[PendingSample, ...] = ()

    @property
    def statistics(self) -> Statistics:
        """The statistics, restored and checked."""
        return unpack(zlib.decompress(self.compressed), f"What a worker sent for shard {self.number}")[1]


def compress(statistics: Statistics) -> bytes:
    """Statistics as few bytes, to travel: a site is a few kilobytes instead of a hundred and more."""
    return zlib.compress(pack({}, statistics), _QUICK)


@dataclass(frozen=True)
class Division:
    """All shards of a source, and what the parent knows to be held out without reading anything."""

    shards: list[Shard]
    held_out: list[PendingSample] = field(default_factory=list)


def divisible(source: Source) -> Divisible:
    """The source, if its samples can be read elsewhere. Raises UsageError, with what to do instead, if not."""
    if isinstance(source, ShardedSource):
        return source
    if not isinstance(source, RowSource):
        raise UsageError(
            f"Other processes cannot read {source.describe}: a stream is in this process only. Save the samples as "
            ".npy or .npz files and give the path, or give an object with shard(index, count)."
        )
    try:
        _ArrayRefuser(io.BytesIO()).dump(source)
    except _ArrayFoundError:
        raise UsageError(
            f"Other processes cannot read {source.describe}: arrays in memory are not sent. Save them with np.save() "
            "or np.savez() and give the path."
        ) from None
    return source


def dump_work(work: Work, dumps: Dumps = pickle.dumps) -> bytes:
    """The work as bytes. Raises UsageError for a source that holds what cannot be pickled."""
    try:
        return dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"Other processes cannot read {work.source.describe}: it cannot be pickled ({error}). "
            "Let it hold paths and plain values, and open files in shard()."
        ) from error


def divide(source: Divisible, workers: int) -> Division:
    """Shards for this many workers. A reader's are its own; of rows there are several to a worker."""
    if isinstance(source, ShardedSource):
        return Division([Shard(index, f"the reader's shard {index}") for index in range(SHARDS)])
    held_out, counted = [], []
    for index, (group, held) in enumerate(source.groups()):
        if held:
            held_out.append(source.sample(index, group, held))
        else:
            counted.append((index, group))
    size = max(1, min(LARGEST_SHARD, len(counted) // (workers * SHARDS_PER_WORKER)))
    starts = range(0, len(counted), size)
    shards = [_shard(source, number, counted[start : start + size]) for number, start in enumerate(starts)]
    return Division(shards, held_out)


def _shard(source: RowSource, number: int, groups: Sequence[tuple[int, tuple[int, ...]]]) -> Shard:
    first, last = source.rows.origin(groups[0][1][0]), source.rows.origin(groups[-1][1][-1])
    return Shard(number, first if first == last else f"{first} … {last}", tuple(groups))


def samples_of(source: Divisible, shard: Shard) -> Iterator[PendingSample]:
    """The samples of a shard, read where this is called."""
    if isinstance(source, ShardedSource):
        return source.shard(shard.number)
    return (source.sample(index, group, held_out=False) for index, group in shard.groups)


def first_samples(source: Divisible, count: int) -> list[PendingSample]:
    """The first samples that are counted, read by the parent itself."""
    return list(islice((pending for pending in source if not pending.held_out), count))


class _ArrayFoundError(Exception):
    """There is an array in what was to be pickled."""


class _ArrayRefuser(pickle.Pickler):
    """Stops at the first array, before its contents are copied."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, np.ndarray):
            raise _ArrayFoundError
        return NotImplemented
