"""Workers of any kind: processes on this machine, an executor of the user's, or a Dask cluster; and the sweep on them.

Statistics merge exactly, so the result does not depend on who counted what, how the data was divided, or what had to be
counted again because a worker was lost: it is that of `sweep`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, Protocol

import onnx_ir as ir

from detent.errors import DataError, UsageError
from detent.graph.session import Runner, usable_cores
from detent.methods.method import Vote
from detent.observe.counter import fetched
from detent.observe.processes import LocalProcesses
from detent.observe.shard_counts import Counting
from detent.observe.shard_reader import ShardedSource
from detent.observe.shards import R, Run, Shard, Work, divide, divisible, dump_work, first_samples
from detent.observe.sources import Source
from detent.observe.statistics import Statistics, TensorStatistics, merge
from detent.observe.sweep import IN_SAMPLE_KEPT, STAGE, Observation
from detent.observe.worker import Doing, do_from_folder, last_work, shared_folder
from detent.progress import Progress, silent


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
