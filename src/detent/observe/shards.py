"""Work on samples in shares that travel: what a task is told, and how the data is divided into tasks.

Data stays where it is. A task carries row numbers; the description of the data, which is paths, preprocessing or a seed
but never an array, goes to each worker once, with the model.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from detent.errors import UsageError
from detent.observe.samples import PendingSample
from detent.observe.shard_reader import SHARDS, ShardedSource
from detent.observe.sources import RowSource, Source

SHARDS_PER_WORKER = 4
"""So that the last worker to finish keeps the others waiting for a quarter of its work at most."""

LARGEST_SHARD = 32
"""Samples. What a lost worker costs, and how often progress is seen."""

Divisible = RowSource | ShardedSource
Dumps = Callable[[object], bytes]
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One task. `groups` are the numbers and the rows of its samples.

    A shard reader has no rows; without any groups, it goes by `number` alone.
    """

    number: int
    name: str
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()


class Result(Protocol):
    """What came of a shard."""

    @property
    def number(self) -> int:
        """The number of the shard."""


R = TypeVar("R", bound=Result)
R_co = TypeVar("R_co", bound=Result, covariant=True)


class Work(Protocol[R_co]):
    """What all tasks share. It is pickled, and goes to each worker once, with the model."""

    @property
    def source(self) -> Divisible:
        """The data that shards are of."""

    def begin(self, model: ir.Model) -> Callable[[Shard], R_co]:
        """In a worker: what does a shard, and is called for one after another, in any number of threads."""


Run = Callable[[Sequence[Shard]], Generator[R, None, None]]
"""Does all shards on workers that have the work already. Results come in any order; closing calls off the rest."""


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


def dump_work(work: Work[Result], dumps: Dumps = pickle.dumps) -> bytes:
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
    shards = [_shard(source, number, groups) for number, groups in enumerate(_runs(counted, workers))]
    return Division(shards, held_out)


def divide_samples(source: Divisible, samples: Sequence[PendingSample], workers: int) -> list[Shard]:
    """Shards of some samples of a source, in the order of the samples; several to a worker."""
    rows = {} if isinstance(source, ShardedSource) else {at: group for at, (group, _) in enumerate(source.groups())}
    shards = []
    for number, run in enumerate(_runs(samples, workers)):
        groups = tuple((pending.index, rows.get(pending.index, ())) for pending in run)
        shards.append(Shard(number, _name(run[0].origin, run[-1].origin), groups))
    return shards


def _runs(items: Sequence[T], workers: int) -> Iterator[Sequence[T]]:
    size = max(1, min(LARGEST_SHARD, len(items) // (workers * SHARDS_PER_WORKER)))
    return (items[start : start + size] for start in range(0, len(items), size))


def _shard(source: RowSource, number: int, groups: Sequence[tuple[int, tuple[int, ...]]]) -> Shard:
    first, last = source.rows.origin(groups[0][1][0]), source.rows.origin(groups[-1][1][-1])
    return Shard(number, _name(first, last), tuple(groups))


def _name(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


def samples_of(source: Divisible, shard: Shard) -> Iterator[PendingSample]:
    """The samples of a shard, read where this is called."""
    if isinstance(source, ShardedSource):
        return source.chosen([at for at, _ in shard.groups]) if shard.groups else source.shard(shard.number)
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
