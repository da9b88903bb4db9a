"""Worker processes on this machine, and what happens when one of them dies.

A process pool does not say which task killed a worker: it gives up all that were running. So those are suspects, and
with a new pool each of them runs alone. The innocent pass; the guilty one dies again and is named.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import onnx_ir as ir

from detent.errors import DataError, UsageError
from detent.observe.shards import R, Run, Shard, Work, dump_work
from detent.observe.worker import Doing, do_from_folder, shared_folder

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
