"""Work on many items in threads, with results in the order of the items and only a few of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from detent.errors import ModelError
from detent.graph.session import usable_cores
from detent.observe.samples import Array, PendingSample
from detent.observe.sources import RowSource, Source

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2
"""Items in work for each thread: one that it works on, and one that waits, so that it need not."""


def map_in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int = 0
) -> Iterator[tuple[Item, Result]]:
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


@dataclass(frozen=True)
class Batch:
    """Samples of one inference. `labels` is None where the data has none."""

    pending: PendingSample
    names: Sequence[str]
    labels: npt.NDArray[np.int64] | None = None


def named_samples(source: Source) -> Iterator[Batch]:
    """The samples of a pass with their names: of files and rows, else numbers in their order."""
    if isinstance(source, RowSource):
        for pending, (rows, _) in zip(source, source.groups(), strict=True):
            yield Batch(pending, [source.rows.origin(row) for row in rows])
        return
    first = 0
    for pending in source:
        yield Batch(pending, [f"{number:05d}" for number in range(first, first + pending.size)])
        first += pending.size


def rows_of(outputs: Mapping[str, Array], at: int, size: int, origin: str) -> dict[str, Array]:
    """The outputs of sample `at` of a batch of `size`, with a batch axis of one."""
    if size == 1:
        return dict(outputs)
    for name, array in outputs.items():
        if array.shape[:1] != (size,):
            raise _not_rows(name, array, size, origin)
    return {name: array[at : at + 1] for name, array in outputs.items()}


def _not_rows(name: str, array: Any, size: int, origin: str) -> ModelError:
    return ModelError(
        f"Output '{name}' has the shape {list(array.shape)} for the {size} samples {origin}: not one row for each. "
        "Use a batch of 1."
    )
