"""Workers of any kind: processes on this machine, an executor of the user's, or a Dask cluster; and the sweep on them.

Statistics merge exactly, so the result does not depend on who counted what, how the data was divided, or what had to be
counted again because a worker was lost: it is that of `sweep`.

A process pool does not say which task killed a worker: it gives up all that were running. So those are suspects, and
with a new pool each of them runs alone. The innocent pass; the guilty one dies again and is named.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

import onnx_ir as ir

from detent.errors import DataError, UsageError
from detent.graph.session import Runner, usable_cores
from detent.methods.method import Vote
from detent.observe.shards import (
    Counting,
    Doing,
    R,
    Run,
    Shard,
    Work,
    divide,
    divisible,
    do_from_folder,
    dump_work,
    first_samples,
    last_work,
    shared_folder,
)
from detent.observe.sources import Source
from detent.observe.statistics import Statistics, TensorStatistics, merge
from detent.observe.streams import ShardedSource
from detent.observe.sweep import IN_SAMPLE_KEPT, STAGE, Observation, fetched
from detent.progress import Progress, silent

MOST_DEATHS = 3
"""How many workers may die of one shard before it is an error."""


class LocalProcesses:
    """`count` processes on this machine, each with one thread, started for one work. Give it as an executor."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise UsageError(f"--workers must be at least 1, not {count}.")
        self.count = count

    @contextmanager
    def begin(self, model: ir.Model, work: Work[R]) -> Iterator[Run[R]]:
        """Give the workers a work, for the time of the block: what does shards of it."""
        with shared_folder(dump_work(work), model) as (folder, ticket), ExitStack() as stack:
            pools = _Pools(self.count, stack)
            yield partial(self._run, pools, partial(do_from_folder, folder, ticket))

    def _run(self, pools: _Pools, doing: Doing, shards: Sequence[Shard]) -> Generator[Any, None, None]:
        backlog = _Backlog(shards, most_at_once=self.count + 1)  # one more, so that no worker waits for the next
        while backlog.left:
            yield from _run_until_broken(pools, doing, backlog)


def _run_until_broken(pools: _Pools, doing: Doing, backlog: _Backlog) -> Generator[Any, None, None]:
    """Work with one pool until all is done, or a worker dies and the pool with it."""
    running: dict[Future[Any], Shard] = {}
    pool = pools.current()
    try:
        while backlog.left:
            while (shard := backlog.next(len(running))) is not None:
                running[pool.submit(doing, shard)] = shard
                backlog.started(shard)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                result = future.result()
                backlog.finished(running.pop(future))
                yield result
    except BrokenProcessPool:
        pools.end()
        for future in wait(running).done:
            shard = running[future]
            if isinstance(future.exception(), BrokenProcessPool):
                backlog.died(shard)
            else:
                backlog.finished(shard)
                yield future.result()
    finally:
        for future in running:
            future.cancel()


class _Pools:
    """One pool of processes at a time: it stays from shards to shards, until it is broken or the stack unwinds."""

    def __init__(self, count: int, stack: ExitStack) -> None:
        self._count, self._stack = count, stack
        self._pool: ProcessPoolExecutor | None = None

    def current(self) -> ProcessPoolExecutor:
        """The pool; a new one where there is none."""
        if self._pool is None:
            self._pool = self._stack.enter_context(_pool(self._count))
        return self._pool

    def end(self) -> None:
        """End the pool."""
        self._stack.close()
        self._pool = None


class _Backlog:
    """The shards that are still to be done, and how often each was running when a worker died."""

    def __init__(self, shards: Iterable[Shard], most_at_once: int) -> None:
        self._waiting = deque(shards)
        self._suspects: list[Shard] = []
        self._deaths: Counter[int] = Counter()
        self._most_at_once = most_at_once
        self.left = len(self._waiting)

    def next(self, running: int) -> Shard | None:
        """The shard to start while `running` others are; None where there is none, or not now."""
        if self._suspects:
            return self._suspects[0] if running == 0 else None
        return self._waiting[0] if self._waiting and running < self._most_at_once else None

    def started(self, shard: Shard) -> None:
        """It runs. A suspect stays one until it is done, so that nothing starts beside it."""
        if shard not in self._suspects:
            self._waiting.popleft()

    def finished(self, shard: Shard) -> None:
        """It is done."""
        self.left -= 1
        if shard in self._suspects:
            self._suspects.remove(shard)

    def died(self, shard: Shard) -> None:
        """A worker died while it ran. Raises DataError where that is once too often."""
        self._deaths[shard.number] += 1
        if self._deaths[shard.number] >= MOST_DEATHS:
            raise DataError(
                f"{MOST_DEATHS} worker processes died while they worked on {shard.name}, the last ones with nothing "
                "beside it. Check these samples, and the memory (use fewer --workers). In a script of your own, call "
                'this under `if __name__ == "__main__":`.'
            ) from None
        if shard not in self._suspects:
            self._suspects.append(shard)


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose workers end with the block, or with this process, whatever they are doing."""
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
    """In a new worker: Ctrl-C is the parent's to handle, and no worker outlives the parent's end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_alive,), daemon=True).start()


def _end_with(parent_alive: Connection) -> None:
    parent_alive.poll(None)  # nothing is ever sent: this returns when the other end is closed
    os._exit(1)


class Workers(Protocol):
    """Somewhere to work on shards."""

    @property
    def count(self) -> int:
        """How many shards are worked on at the same time."""

    def begin(self, model: ir.Model, work: Work[R]) -> AbstractContextManager[Run[R]]:
        """Give the workers a work, for the time of the block: what does shards of it."""


def sweep_on(
    executor: Any,
    model: ir.Model,
    sites: Sequence[str],
    source: Source,
    *,
    vote: Vote | None = None,
    progress: Progress = silent,
) -> Observation:
    """What `sweep` does, on the workers of `executor`; the same statistics, byte for byte.

    `executor` is LocalProcesses, any concurrent.futures.Executor or a dask Client. `vote` must be picklable. Raises
    UsageError for data that cannot be read elsewhere, and what `sweep` raises.
    """
    workers = workers_of(executor)
    data = divisible(source)
    work = Counting(tuple(sites), data, vote)
    division = divide(data, workers.count)
    statistics: Statistics = {name: TensorStatistics() for name in sites}
    held_out, samples, done = division.held_out, 0, len(division.held_out)
    runner = None
    progress(STAGE, done, source.length)
    with begun(workers, model, work) as run, closing(run(division.shards)) as results:
        for result in results:
            merge(statistics, result.statistics)
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
    first = [] if held_out and isinstance(data, ShardedSource) else first_samples(data, IN_SAMPLE_KEPT)
    return Observation(statistics, runner, samples, source.describe, held_out, first)


@contextmanager
def begun(workers: Workers, model: ir.Model, work: Work[R]) -> Iterator[Run[R]]:
    """Workers that have a model and a work, for the time of the block: each loads them once, for all its shards."""
    try:
        with workers.begin(model, work) as run:
            yield run
    finally:
        last_work.forget()  # an executor of threads has loaded the model in this process


def workers_of(executor: Any) -> Workers:
    """The workers behind an executor. Raises UsageError for what is none."""
    if isinstance(executor, LocalProcesses):
        return executor
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
    """What --workers and --dask ask for, to give to `sweep_on`; None where neither is there."""
    if workers is not None and dask is not None:
        raise UsageError("--workers starts processes here and --dask uses a cluster: give one of them.")
    if dask is not None:
        from detent.observe.cluster import connect

        with connect(dask) as client:
            yield client
    else:
        yield None if workers is None else LocalProcesses(workers)


class ExecutorWorkers:
    """An executor that belongs to the user: it is never shut down here, and what breaks it is not tried again."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        # Nothing public says how many there are; threads and processes of the standard library know it.
        self.count: int = getattr(executor, "_max_workers", None) or usable_cores()

    @contextmanager
    def begin(self, model: ir.Model, work: Work[R]) -> Iterator[Run[R]]:
        """Give the workers a work, for the time of the block: what does shards of it."""
        with shared_folder(dump_work(work), model) as (folder, ticket):
            yield partial(self._run, partial(do_from_folder, folder, ticket))

    def _run(self, doing: Doing, shards: Sequence[Shard]) -> Generator[Any, None, None]:
        futures: set[Future[Any]] = set()
        try:
            futures.update(self._submit(doing, shards))
            for future in as_completed(list(futures)):
                yield future.result()
                futures.remove(future)  # and with it the result
        except BrokenExecutor as error:
            raise _broken(error, f" with {len(futures)} of {len(shards)} shards not done") from error
        finally:
            for future in futures:
                future.cancel()

    def _submit(self, doing: Doing, shards: Sequence[Shard]) -> list[Future[Any]]:
        try:
            return [self._executor.submit(doing, shard) for shard in shards]
        except RuntimeError as error:  # it was shut down, or is broken
            raise _broken(error, f" before any of {len(shards)} shards was done") from error


def _broken(error: Exception, when: str) -> UsageError:
    return UsageError(
        f"The executor broke{when} ({type(error).__name__}: {error}). Check its workers' memory and logs, and give a "
        "new one."
    )
