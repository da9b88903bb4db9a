"""Work on samples in shards: what a task gets, how data is divided into tasks, and what a worker does with them.

Data stays where it is. A task carries row numbers; the description of the data, which is paths, preprocessing or a seed
but never an array, goes to each worker once, with the model. A worker loads both once and does shard after shard.
"""

from __future__ import annotations

import pickle
import tempfile
import threading
import uuid
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import onnx
import onnx_ir as ir

from detent.errors import ModelError, UsageError
from detent.graph.runtime import onnxruntime
from detent.graph.save import save
from detent.graph.session import Runner
from detent.methods.method import Vote
from detent.observe.samples import PendingSample, Source
from detent.observe.sources import RowSource
from detent.observe.statistics import Statistics
from detent.observe.statistics_file import pack, unpack
from detent.observe.store import FAST
from detent.observe.streams import SHARDS, ShardedSource
from detent.observe.sweep import SiteCounter, taps_of
from detent.version import __version__

SHARDS_PER_WORKER = 4  # so that the last worker to finish keeps the others waiting for a quarter of its work at most

LARGEST_SHARD = 32  # Samples. What a lost worker costs, and how often progress is seen.

Divisible = RowSource | ShardedSource
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One task. `groups` are the numbers and the rows of its samples.

    A shard reader has no rows; without any groups, it goes by `number` alone.
    """

    number: int
    name: str
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()


class Work(Protocol):
    """What all tasks share. It is pickled, and goes to each worker once, with the model."""

    @property
    def source(self) -> Divisible:
        """The data that shards are of."""

    def begin(self, model: ir.Model) -> DoShard:
        """Return, in a worker, what does a shard; it is called for one after another, in any number of threads."""


DoShard = Callable[[Shard], Any]

# Does all shards on workers that have the work already. Results come in any order; closing calls off the rest.
Run = Callable[[Sequence[Shard]], Generator[tuple[Shard, Any], None, None]]


def divisible(source: Source) -> Divisible:
    """Return the source, if its samples can be read elsewhere. Raise UsageError, with what to do instead, if not."""
    if isinstance(source, ShardedSource):
        return source
    if not isinstance(source, RowSource):
        raise UsageError(
            f"Other processes cannot read {source.describe}: a stream is in this process only. Save the samples as "
            ".npy or .npz files and give the path, or give an object with shard(index, count)."
        )
    if source.rows.in_memory:
        raise UsageError(
            f"Other processes cannot read {source.describe}: arrays in memory are not sent. Save them with np.save() "
            "or np.savez() and give the path."
        )
    return source


def dump_work(work: Work, dumps: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """Return the work as bytes. Raise UsageError for a source that holds what cannot be pickled."""
    try:
        return dumps(work)
    # pickle raises any of the three, depending on what the object holds.
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"Other processes cannot read {work.source.describe}: it cannot be pickled ({error}). "
            "Let it hold paths and plain values, and open files in shard()."
        ) from error


def divide(source: Divisible, workers: int) -> tuple[list[Shard], list[PendingSample]]:
    """Return the shards for this many workers, and what is known to be held out without reading anything.

    A reader's shards are its own; of rows there are several to a worker.
    """
    if isinstance(source, ShardedSource):
        return [Shard(index, f"the reader's shard {index}") for index in range(SHARDS)], []
    held_out, counted = [], []
    for index, (group, held) in enumerate(source.groups()):
        if held:
            held_out.append(source.sample(index, group, held))
        if not held or held_out[-1].counted:
            counted.append((index, group))
    shards = []
    for number, run in enumerate(_runs(counted, workers)):
        first, last = source.rows.origin(run[0][1][0]), source.rows.origin(run[-1][1][-1])
        shards.append(Shard(number, _name(first, last), tuple(run)))
    return shards, held_out


def divide_samples(source: Divisible, samples: Sequence[PendingSample], workers: int) -> list[Shard]:
    """Return shards of some samples of a source, in the order of the samples; several to a worker."""
    rows = {} if isinstance(source, ShardedSource) else {at: group for at, (group, _) in enumerate(source.groups())}
    shards = []
    for number, run in enumerate(_runs(samples, workers)):
        groups = tuple((pending.index, rows.get(pending.index, ())) for pending in run)
        shards.append(Shard(number, _name(run[0].origin, run[-1].origin), groups))
    return shards


def _runs(items: Sequence[T], workers: int) -> Iterator[Sequence[T]]:
    # Smaller shards would balance better, and each costs a message with the histograms of all sites.
    size = max(1, min(LARGEST_SHARD, len(items) // (workers * SHARDS_PER_WORKER)))
    return (items[start : start + size] for start in range(0, len(items), size))


def _name(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


def samples_of(source: Divisible, shard: Shard) -> Iterator[PendingSample]:
    """Return the samples of a shard, read where this is called."""
    if isinstance(source, ShardedSource):
        return source.chosen([at for at, _ in shard.groups]) if shard.groups else source.shard(shard.number)
    return (source.sample(index, group, held_out=False) for index, group in shard.groups)


MODEL_FILE, WORK_FILE = "model.onnx", "work.pickle"


def _versions() -> dict[str, str]:
    return {"detent": __version__, "onnxruntime": onnxruntime.__version__}


@dataclass(frozen=True)
class Ticket:
    """Which work a task belongs to, and the versions that it was made with.

    Every work has its own, even over the same model and files: between two of them the files may have changed.
    """

    work: str = field(default_factory=lambda: uuid.uuid4().hex)
    versions: Mapping[str, str] = field(default_factory=_versions)

    def check(self) -> None:
        """Raise UsageError in a worker that would compute with other code than the parent would."""
        installed = _versions()
        for package, wanted in self.versions.items():
            if wanted != (here := installed[package]):
                raise UsageError(
                    f"A worker has {package} {here}, but this machine has {wanted}: they would not "
                    "compute the same numbers. Install the same versions on all."
                )


class _LastWork:
    """The work that this process did last. One, because a model may take most of the memory."""

    def __init__(self) -> None:
        self.loads = 0
        self._ticket: Ticket | None = None
        self._loaded: DoShard | None = None
        self._lock = threading.Lock()

    def get(self, ticket: Ticket, load: Callable[[], DoShard]) -> DoShard:
        with self._lock:
            if self._loaded is None or self._ticket != ticket:
                # A worker process lives through several runs of a pool, each with another model.
                self._loaded = None  # before the next one takes its memory
                self._loaded = load()
                self._ticket = ticket
                self.loads += 1
            return self._loaded

    def forget(self) -> None:
        with self._lock:
            self._loaded = self._ticket = None


last_work = _LastWork()


def do_from_folder(folder: str, ticket: Ticket, shard: Shard) -> Any:
    """Return the result of a shard, with the model and the work in a folder that the parent made."""
    ticket.check()
    return last_work.get(ticket, lambda: _load_folder(Path(folder)))(shard)


def do_from_bytes(work: bytes, model: bytes, ticket: Ticket, shard: Shard) -> Any:
    """Return the result of a shard, with the model and the work as they were sent."""
    ticket.check()
    return last_work.get(ticket, lambda: _begin(work, _parse(model)))(shard)


@contextmanager
def shared_folder(work: bytes, model: ir.Model) -> Iterator[DoShard]:
    """Write the model and the work to a folder that exists within the block; TMPDIR says where. Yield the task."""
    # On Windows a worker that was just stopped may still have the file open; that must not hide the result.
    with tempfile.TemporaryDirectory(prefix="detent-", ignore_cleanup_errors=True) as folder:
        save(model, Path(folder) / MODEL_FILE)
        (Path(folder) / WORK_FILE).write_bytes(work)
        yield partial(do_from_folder, folder, Ticket())


def _begin(work: bytes, model: ir.Model) -> DoShard:
    begun: DoShard = pickle.loads(work).begin(model)
    return begun


def _load_folder(folder: Path) -> DoShard:
    try:
        return _begin((folder / WORK_FILE).read_bytes(), ir.load(folder / MODEL_FILE))
    except FileNotFoundError:
        raise ModelError(
            f"A worker cannot see the folder {folder} with the model. Workers on other machines need a folder that all "
            "share: set TMPDIR to one before you start."
        ) from None


def _parse(model: bytes) -> ir.Model:
    proto = onnx.ModelProto()
    proto.ParseFromString(model)
    return ir.from_proto(proto)


@dataclass(frozen=True)
class ShardCounts:
    """What came of a shard: compressed statistics, over how many samples, of how many feeds; and what it held out."""

    compressed: bytes
    samples: int
    feeds: int
    held_out: tuple[PendingSample, ...] = ()


@dataclass(frozen=True)
class Counting:
    """What all tasks of a sweep share."""

    sites: tuple[str, ...]
    source: Divisible
    vote: Vote | None

    def begin(self, model: ir.Model) -> DoShard:
        return partial(self._count, taps_of(model, self.sites).unordered)

    def _count(self, runner: Runner, shard: Shard) -> ShardCounts:
        # One counter for each shard, not for the worker: a shard that is done twice after a crash must not count twice.
        counter = SiteCounter(runner, self.sites, self.vote)
        samples = feeds = 0
        held_out = []
        for pending in samples_of(self.source, shard):
            feeds += 1
            if pending.held_out:
                held_out.append(pending)
                if not pending.counted:
                    continue
            counter.count(pending.load())
            samples += pending.size
        return ShardCounts(compress(counter.statistics), samples, feeds, tuple(held_out))


def compress(statistics: Statistics) -> bytes:
    """Return statistics as few bytes, to travel: a site is a few kilobytes instead of a hundred and more."""
    return zlib.compress(pack({}, statistics), FAST)


def decompress(compressed: bytes, shard: str) -> Statistics:
    """Return what `compress` was given, checked."""
    return unpack(zlib.decompress(compressed), f"What a worker sent for {shard}")[1]
