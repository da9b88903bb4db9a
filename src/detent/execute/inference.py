"""Run models on named samples: in threads, with results in the order of the samples, and split into single samples.

Outputs are written into a new folder, which appears when it is complete or not at all, as .npy files under the names of
their samples:

    photos/cat/1.jpg  ->  out/cat/1.npy                 a model of one output
                          out/cat/1/boxes.npy  ...      of several
    data.npy, row 7   ->  out/data_7.npy

Arrays have the model's type and a batch axis of 1, so two such folders can be compared file by file.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, ModelError, OutputError
from detent.graph.save import output_errors, replace_file, scratch_folder
from detent.graph.session import usable_cores
from detent.observe.samples import Array, PendingSample, Source
from detent.observe.sources import RowSource

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2  # items submitted per thread: one in work, and one waiting, so that the thread never waits


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


@dataclass(frozen=True)
class OutputFolder:
    """A folder of outputs while it is written. `samples` maps the name of each file, in lower case, to its sample."""

    folder: Path
    samples: dict[str, str] = field(default_factory=dict)

    def save(self, outputs: Mapping[str, Array], sample: str) -> list[str]:
        """Write the outputs of one sample. Return the names of the files."""
        stem = _stem(sample)
        other = self.samples.setdefault(stem.lower(), sample)  # some file systems ignore case
        if other != sample:
            raise DataError(f"The outputs of {other} and {sample} would both be called {stem}.npy. Rename one of them.")
        single = len(outputs) == 1
        names = [""] if single else [f"/{name}" for name in _distinct(map(_safe, outputs))]
        files = {name: f"{stem}{end}.npy" for name, end in zip(outputs, names, strict=True)}
        for name, file in files.items():
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            # np.save to the file itself would not report a disk that is full at the last bytes.
            whole = io.BytesIO()
            np.save(whole, outputs[name], allow_pickle=False)
            path.write_bytes(whole.getbuffer())
        return list(files.values())


@contextmanager
def new_folder(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder that becomes `out` when the block ends; after an exception nothing is left of it.

    `out` must be new or empty: files of another run could be mistaken for results of this one. With `overwrite` it may
    hold files, and those with the same names are replaced.
    """
    filled = out.is_dir() and any(out.iterdir())
    if (out.exists() and not out.is_dir()) or (filled and not overwrite):
        raise OutputError(f"{out} exists and is not an empty folder. Name another one, or empty it.")
    with output_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(out) as scratch:
            results = scratch / out.name
            results.mkdir()
            yield results
            if not filled:
                if out.is_dir():
                    out.rmdir()  # Windows renames no folder onto another, not even onto an empty one
                replace_file(results, out)
                return
            for file in sorted(path for path in results.rglob("*") if path.is_file()):
                place = out / file.relative_to(results)
                place.parent.mkdir(exist_ok=True)
                replace_file(file, place)


def _stem(name: str) -> str:
    """Return the sample's name without its extension; the number of a row follows an underscore."""
    row = re.fullmatch(r"(.*)\[(\d+)\]", name)
    path, number = (row[1], f"_{row[2]}") if row else (name, "")
    return Path(path).with_suffix("").as_posix() + number


def _safe(name: str) -> str:
    """Return an output's name in characters that a file name can have."""
    return _unreserved(re.sub(r"[^\w.-]+", "_", name).strip("_") or "output")


_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(?=\.|$)")


def _unreserved(stem: str) -> str:
    """Return a file name that is not a Windows device: NUL.npy is the null device in any folder."""
    return _RESERVED.sub(r"\1_", stem, count=1) if _RESERVED.match(stem) else stem


_LONGEST_STEM = 180  # file systems allow 255 bytes, and a number and an extension follow


def file_stems(names: Sequence[str]) -> list[str]:
    """Return a file name without extension for each tensor; if two would be alike, the later one is numbered."""
    plain = (re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:_LONGEST_STEM] or "_" for name in names)
    return _distinct(map(_unreserved, plain))


def _distinct(stems: Iterable[str]) -> list[str]:
    used: set[str] = set()
    distinct = []
    for base in stems:
        stem, number = base, 1
        while stem.lower() in used:  # some file systems ignore case
            number += 1
            stem = f"{base}_{number}"
        used.add(stem.lower())
        distinct.append(stem)
    return distinct
