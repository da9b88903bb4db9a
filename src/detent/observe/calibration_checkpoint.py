"""A checkpoint: what an interrupted sweep had counted, so that the next one continues where it stopped.

It holds the statistics of whole samples and the indices of these samples, and it belongs to one identity: this model,
this data, these tensors, these votes. The next sweep of the same identity counts only the samples that are missing, and
since merging is exact its result is that of one uninterrupted sweep, to the byte. A checkpoint of anything else is
ignored, and replaced.

A stream has no identity: nobody knows what it will give before it is read, or whether a shuffling loader will give it
in the same order. So streams are not checkpointed, unless `Checkpoint.data` names the data: that is the caller's
promise that every run gives the same items in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path

import onnx_ir as ir

from detent.errors import DataError
from detent.observe.fingerprints import Digest, fingerprint_of
from detent.observe.samples import Source
from detent.observe.statistics import Statistics
from detent.observe.statistics_file import Header, pack, unpack
from detent.observe.store import CALIBRATION, CheckpointFile
from detent.version import __version__

_MOST_SAMPLES = 1 << 26
_DIFFERENCES = {
    "model": "another model, or the same one prepared in another way",
    "data": "other data",
    "sites": "other tensors",
    "providers": "another execution provider",
    "votes_for": "another method",
    "detent_version": "another version of Detent",
}


@dataclass(frozen=True)
class Checkpoint:
    """Where a sweep keeps what it has counted, and every how many seconds.

    `votes_for` names the method and grid of the sweep's votes. `data` names the data where it is a stream.
    """

    path: Path
    every: float = 10.0
    votes_for: str = ""
    data: str | None = None


@dataclass
class SweepCheckpoint:
    """Reads and writes the checkpoint of one sweep.

    The identity is worked out when it is first needed: a sweep that ends before its first checkpoint needs none.
    """

    checkpoint: Checkpoint
    model: ir.Model
    source: Source
    sites: Sequence[str]
    providers: Sequence[str]

    def __post_init__(self) -> None:
        self._file = CheckpointFile(self.checkpoint.path, CALIBRATION, "Calibration", "all samples are counted")

    @cached_property
    def _identity(self) -> dict[str, str] | None:
        data = self.source.fingerprint
        if data is None and self.checkpoint.data is not None:
            data = f"stream {self.checkpoint.data}"
        if data is None:
            return None
        sites = Digest()
        sites.add(*self.sites)
        return {
            "model": fingerprint_of(self.model),
            "data": data,
            "sites": sites.text,
            "providers": ", ".join(self.providers),
            "votes_for": self.checkpoint.votes_for,
            "detent_version": __version__,
        }

    def resume(self) -> tuple[Statistics, frozenset[int]]:
        """Return what an earlier sweep of the same identity left, and of which samples. OutputError: a foreign file."""
        found = self._file.read(unpack)
        if found is None:
            return {}, frozenset()
        header, statistics = found
        done = _indices(header.pop("done", None))
        reason = self._difference(header, done, statistics)
        if reason:
            self._file.ignore(reason)
            return {}, frozenset()
        path = self.checkpoint.path
        self._file.notes.append(f"Continued from the checkpoint {path}: {len(done)} samples were counted already.")
        return {name: statistics[name] for name in self.sites}, done

    def _difference(self, header: Header, done: Collection[int], statistics: Statistics) -> str:
        if self._identity is None:
            return "another run, and a stream cannot be continued"
        for key, difference in _DIFFERENCES.items():
            if header.get(key) != self._identity[key]:
                return difference
        return "" if done and set(statistics) == set(self.sites) else "no sample"

    def write(self, statistics: Statistics, done: Collection[int]) -> None:
        """Replace the checkpoint: these statistics are of the samples `done`, each with all its sites."""
        if done:
            self._file.write(partial(self._pack, statistics, done))

    def remove(self) -> list[str]:
        """Remove the checkpoint, because the sweep is complete, and return what the user should know."""
        self._file.remove()
        return self._file.notes

    def _pack(self, statistics: Statistics, done: Collection[int]) -> bytes:
        if self._identity is None:
            raise DataError(
                "A stream may give other samples, or another order, the next time. Give files or arrays instead."
            )
        return pack({**self._identity, "done": _ranges(done)}, statistics)


def _ranges(indices: Collection[int]) -> list[list[int]]:
    """Indices as first and last of each run."""
    runs = groupby(enumerate(sorted(indices)), key=lambda pair: pair[1] - pair[0])
    grouped = [[index for _, index in run] for _, run in runs]
    return [[run[0], run[-1]] for run in grouped]


def _indices(ranges: object) -> frozenset[int]:
    """Return the indices of runs in rising order; none if `ranges` is something else."""
    indices: set[int] = set()
    before = -1
    for run in ranges if isinstance(ranges, list) else []:
        plausible = isinstance(run, list) and len(run) == 2 and all(type(end) is int for end in run)
        if not plausible or not before < run[0] <= run[1] < _MOST_SAMPLES:
            return frozenset()
        indices.update(range(run[0], run[1] + 1))
        before = run[1]
    return frozenset(indices)
