"""Run models on named samples: in threads, with results in the order of the samples, and split into single samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from detent.errors import ModelError
from detent.graph.session import usable_cores
from detent.observe.samples import Array, PendingSample, Source
from detent.observe.sources import RowSource

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2  # items submitted per thread: one in work, and one that waits so that the thread never does


def map_in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int = 0
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in the order of the items, with only a few of them in memory.

    `threads` 0: one per core. An exception of `work` is raised when its item's turn comes.
    """
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


@dataclass(frozen=True)
class Batch:
    """The samples of one inference, with their names and, if the data has any, their labels."""

    pending: PendingSample
    names: Sequence[str]
    labels: npt.NDArray[np.int64] | None = None

    def split(self, outputs: Mapping[str, Array]) -> list[dict[str, Array]]:
        """Return the outputs of each sample, with a batch axis of one. Raise ModelError if they are not rows."""
        size = len(self.names)
        if size == 1:
            return [dict(outputs)]
        for name, array in outputs.items():
            if array.shape[:1] != (size,):
                raise ModelError(
                    f"Output '{name}' has the shape {list(array.shape)} for the {size} samples {self.pending.origin}: "
                    "not one row for each. Use a batch of 1."
                )
        return [{name: array[at : at + 1] for name, array in outputs.items()} for at in range(size)]


def named_batches(source: Source) -> Iterator[Batch]:
    """Yield the batches of a pass: samples are named after their file and row, else numbered."""
    if isinstance(source, RowSource):
        for pending, (rows, _) in zip(source, source.groups(), strict=True):
            yield Batch(pending, [source.rows.origin(row) for row in rows])
        return
    first = 0
    for pending in source:
        yield Batch(pending, [f"{number:05d}" for number in range(first, first + pending.size)])
        first += pending.size
