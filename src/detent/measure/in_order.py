"""Work on many items in threads, with results in the order of the items and only a few of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from detent.graph.session import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2
"""Items in work for each thread: one that it works on, and one that waits, so that it need not."""


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int = 0) -> Iterator[tuple[Item, Result]]:
    """Each item with its result. `threads` 0: one per core. What `work` raises is raised here, in its turn."""
    workers = threads or usable_cores()
    pending: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                pending.append((item, pool.submit(work, item)))
                if len(pending) == AHEAD * workers:
                    first, future = pending.popleft()
                    yield first, future.result()
            while pending:
                first, future = pending.popleft()
                yield first, future.result()
        finally:
            for _, future in pending:
                future.cancel()
