"""Workers of any kind: processes on this machine, an executor of the user's, or a Dask cluster; and the sweep on them.

All kinds run shards through one loop over futures (`run_shards`). A kind says how the model and the work reach its
workers, how a shard is submitted, and what follows from a worker that was lost. Statistics merge exactly, so the result
does not depend on who counted what, how the data was divided, or what was counted again: it is that of `sweep`.

A process pool does not say which task killed a worker: it gives up all that were running. So those are suspects, and
with a new pool each of them runs alone. The innocent pass; the guilty one dies again and is named.
"""

from __future__ import annotations

import abc
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import onnx_ir as ir

from detent.errors import DataError, UsageError
from detent.graph.session import Runner, usable_cores
from detent.methods.method import Vote
from detent.observe import shards as sharding
from detent.observe.samples import Source
from detent.observe.statistics import Statistics, TensorStatistics, merge
from detent.observe.streams import ShardedSource
from detent.observe.sweep import IN_SAMPLE_KEPT, STAGE, Observation, fetched
from detent.progress import Progress, silent

MOST_DEATHS = 3  # how many workers may die of one shard before it is an error
# Windows cannot wait for more than 61 processes of a pool.
MOST_PROCESSES = 61 if sys.platform == "win32" else 1024


class Workers(abc.ABC):
    """Somewhere to work on shards: `count` of them at the same time, with `most_at_once` submitted.

    `task` does a shard; it is there while the workers have a model and a work.
    """

    count: int
    most_at_once = sys.maxsize
    task: sharding.DoShard

    @contextmanager
    def open(self, model: ir.Model, work: sharding.Work) -> Iterator[None]:
        """Give the workers a model and a work, within the block; by default in a folder that they can read."""
        with sharding.shared_folder(sharding.dump_work(work), model) as self.task:
            yield

    @abc.abstractmethod
    def submit(self, shard: sharding.Shard) -> Future[Any]:
        """Start a shard. Raise BrokenExecutor if the workers are to be replaced first."""

    @abc.abstractmethod
    def lost(self, shard: sharding.Shard, backlog: Backlog, error: BaseException) -> None:
        """Put a shard back whose worker was lost, or raise an error that names the cause."""

    def replace(self, backlog: Backlog) -> None:  # noqa: B027  (not every kind outlives a loss)
        """Make the workers usable again after a loss; no shard is running now."""

    def finished(self, running: Collection[Future[Any]]) -> Iterable[Future[Any]]:
        """Wait for some of the futures to be done."""
        return wait(running, return_when=FIRST_COMPLETED).done

    def explain(self, error: Exception, shard: sharding.Shard) -> Exception:  # noqa: ARG002  (for kinds that can say more)
        """Return what to raise for an error in a worker."""
        return error


def run_shards(workers: Workers, shards: Sequence[sharding.Shard]) -> Generator[tuple[sharding.Shard, Any], None, None]:
    """Yield all shards with their results, in any order. Shards that are lost with a worker are done again."""
    backlog = Backlog(shards, workers.most_at_once)
    while backlog.left:
        if not (yield from _run_until_lost(workers, backlog)):
            workers.replace(backlog)


def _run_until_lost(workers: Workers, backlog: Backlog) -> Generator[tuple[sharding.Shard, Any], None, bool]:
    """Run shards until all are done, or, after a loss, until none is running. Return whether all went well."""
    running: dict[Future[Any], sharding.Shard] = {}
    intact = True
    try:
        while running or (intact and backlog.left):
            try:
                while intact and (shard := backlog.next(len(running))) is not None:
                    running[workers.submit(shard)] = shard
                    backlog.started(shard)
            except BrokenExecutor:
                intact = False
            for future in workers.finished(running):
                shard = running.pop(future)
                try:
                    result = future.result()
                except (BrokenExecutor, CancelledError) as error:
                    intact = False
                    workers.lost(shard, backlog, error)
                    continue
                except Exception as error:
                    explained = workers.explain(error, shard)
                    if explained is error:
                        raise
                    raise explained from error
                backlog.finished(shard)
                yield shard, result
    finally:
        for future in running:
            future.cancel()
    return intact


class Backlog:
    """The shards that are still to be done, and how often each was running when a worker died."""

    def __init__(self, shards: Iterable[sharding.Shard], most_at_once: int) -> None:
        self._waiting = deque(shards)
        self._suspects: list[sharding.Shard] = []
        self._deaths: Counter[int] = Counter()
        self._most_at_once = most_at_once
        self._total = self.left = len(self._waiting)

    def __str__(self) -> str:
        return f"{self.left} of {self._total} shards not done"

    def next(self, running: int) -> sharding.Shard | None:
        """Return the shard to start while `running` others are; None if there is none, or not now."""
        if self._suspects:
            return self._suspects[0] if running == 0 else None
        return self._waiting[0] if self._waiting and running < self._most_at_once else None

    def started(self, shard: sharding.Shard) -> None:
        """Note that it runs. A suspect stays one until it is done, so that nothing starts beside it."""
        if shard not in self._suspects:
            self._waiting.popleft()

    def finished(self, shard: sharding.Shard) -> None:
        """Note that it is done."""
        self.left -= 1
        if shard in self._suspects:
            self._suspects.remove(shard)

    def again(self, shard: sharding.Shard) -> None:
        """Do a shard again that was lost through no fault of its own."""
        self._waiting.append(shard)

    def died(self, shard: sharding.Shard) -> None:
        """Note that a worker died while it ran. Raise DataError if that is once too often."""
        self._deaths[shard.number] += 1
        if self._deaths[shard.number] >= MOST_DEATHS:
            raise DataError(
                f"{MOST_DEATHS} worker processes died while they worked on {shard.name}, the last ones with nothing "
                "beside it. Check these samples, and the memory (use fewer --workers). In a script of your own, call "
                'this under `if __name__ == "__main__":`.'
            ) from None
        if shard not in self._suspects:
            self._suspects.append(shard)


class LocalProcesses(Workers):
    """`count` processes on this machine, each with one thread, started for one work. Give it as an executor.

    One process pool at a time stays from shards to shards, until it is broken or the work is done.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise UsageError(f"--workers must be at least 1, not {count}.")
        if count > MOST_PROCESSES:
            raise UsageError(f"--workers {count}: Windows waits for at most {MOST_PROCESSES} processes at a time.")
        self.count = count
        self.most_at_once = count + 1  # one more, so that no worker waits for the next
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def open(self, model: ir.Model, work: sharding.Work) -> Iterator[None]:
        """Give the processes a model and a work, within the block."""
        with super().open(model, work), ExitStack() as self._stack:
            yield

    def submit(self, shard: sharding.Shard) -> Future[Any]:
        """Start a shard, and the processes if there are none."""
        if self._pool is None:
            self._pool = self._stack.enter_context(_pool(self.count))
        return self._pool.submit(self.task, shard)

    def lost(self, shard: sharding.Shard, backlog: Backlog, error: BaseException) -> None:  # noqa: ARG002
        """Suspect the shard. Raise DataError if it killed too many workers."""
        backlog.died(shard)

    def replace(self, backlog: Backlog) -> None:  # noqa: ARG002
        """End what is left of the pool."""
        self._stack.close()
        self._pool = None


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool whose workers end with the block, or with this process, whatever they are doing."""
    if multiprocessing.current_process().daemon:  # Python refuses to start others there, by an assertion
        raise UsageError(
            "--workers starts processes, which a worker of a multiprocessing.Pool may not do. Leave it out, or use "
            "concurrent.futures.ProcessPoolExecutor in place of the Pool."
        )
    context = multiprocessing.get_context("spawn")
    alive, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, initializer=_begin_worker, initargs=(alive,))
    try:
        yield pool
        pool.shutdown()
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        alive.close()


def _begin_worker(parent_alive: Connection) -> None:
    """Leave Ctrl-C to the parent, in a new worker, and let no worker outlive the parent's end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_alive,), daemon=True).start()


def _end_with(parent_alive: Connection) -> None:
    parent_alive.poll(None)  # nothing is ever sent: this returns when the other end is closed
    os._exit(1)


def sweep_on(
    executor: Any,
    model: ir.Model,
    sites: Sequence[str],
    source: Source,
    *,
    vote: Vote | None = None,
    progress: Progress = silent,
) -> Observation:
    """Do what `sweep` does, on the workers of `executor`; the same statistics, byte for byte.

    `executor` is LocalProcesses, any concurrent.futures.Executor or a dask Client. `vote` must be picklable. Raise
    UsageError for data that cannot be read elsewhere, and what `sweep` raises.
    """
    workers = workers_of(executor)
    data = sharding.divisible(source)
    work = sharding.Counting(tuple(sites), data, vote)
    shards, held_out = sharding.divide(data, workers.count)
    statistics: Statistics = {name: TensorStatistics() for name in sites}
    samples, done = 0, len(held_out)
    runner = None
    progress(STAGE, done, source.length)
    with begun(workers, model, work) as run, closing(run(shards)) as results:
        for shard, result in results:
            merge(statistics, sharding.decompress(result.compressed, shard.name))
            held_out.extend(result.held_out)
            samples += result.samples
            done += result.feeds
            progress(STAGE, done, source.length)
            if runner is None:  # not before the model is on its way: so this takes none of the workers' time
                runner = Runner(model, fetched(model, sites))
    if samples == 0 or runner is None:
        reason = "every sample was held out" if held_out else "it has no samples"
        raise DataError(f"There is nothing to calibrate with in {source.describe}: {reason}.")
    held_out.sort(key=lambda pending: pending.index)
    # What a shard reader reads is read again here, so only where there is nothing else to measure with.
    first = [] if held_out and isinstance(data, ShardedSource) else data.peek(IN_SAMPLE_KEPT)
    return Observation(statistics, runner, samples, source.describe, held_out, first)


@contextmanager
def begun(workers: Workers, model: ir.Model, work: sharding.Work) -> Iterator[sharding.Run]:
    """Give workers a model and a work, within the block: each loads them once, for all its shards."""
    try:
        with workers.open(model, work):
            yield partial(run_shards, workers)
    finally:
        sharding.last_work.forget()  # an executor of threads has loaded the model in this process


def workers_of(executor: Any) -> Workers:
    """Return the workers of an executor. Raise UsageError if it is something else."""
    if isinstance(executor, LocalProcesses):
        return copy(executor)  # each work has a pool of its own
    if isinstance(executor, Executor):
        return ExecutorWorkers(executor)
    # A client exists only where its package was imported, so nobody else pays for the import.
    if "distributed" in sys.modules and isinstance(executor, sys.modules["distributed"].Client):
        from detent.observe.cluster import ClusterWorkers

        return ClusterWorkers(executor)
    raise UsageError(
        f"executor: expected a concurrent.futures.Executor or a dask.distributed.Client, "
        f"found {type(executor).__name__}."
    )


@contextmanager
def open_executor(workers: int | None = None, dask: str | None = None) -> Iterator[Any]:
    """Open what --workers or --dask asks for, to give to `sweep_on`; None without either."""
    if workers is not None and dask is not None:
        raise UsageError("--workers starts processes here and --dask uses a cluster: give one of them.")
    if dask is not None:
        from detent.observe.cluster import connect

        with connect(dask) as client:
            yield client
    else:
        yield None if workers is None else LocalProcesses(workers)


class ExecutorWorkers(Workers):
    """An executor that belongs to the user: it is never shut down here, and what breaks it is not tried again."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        # Nothing public says how many there are; threads and processes of the standard library know it.
        self.count = getattr(executor, "_max_workers", None) or usable_cores()

    def submit(self, shard: sharding.Shard) -> Future[Any]:
        """Start a shard. Raise UsageError if the executor was shut down or is broken."""
        try:
            return self._executor.submit(self.task, shard)
        except RuntimeError as error:
            raise _broken(error, f"at {shard.name}") from error

    def lost(self, shard: sharding.Shard, backlog: Backlog, error: BaseException) -> None:  # noqa: ARG002
        """Raise UsageError: the executor is not replaced here."""
        raise _broken(error, f"with {backlog}") from error


def _broken(error: BaseException, when: str) -> UsageError:
    return UsageError(
        f"The executor broke {when} ({type(error).__name__}: {error}). Check its workers' memory and logs, and give a "
        "new one."
    )
