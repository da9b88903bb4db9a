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
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

import onnx_ir as ir

from detent.errors import DataError, OutputError
from detent.graph.save import write_bytes
from detent.observe.fingerprints import Digest, fingerprint_of
from detent.observe.sources import Source
from detent.observe.statistics import Statistics
from detent.observe.statistics_file import Header, pack, unpack
from detent.observe.store import FileKind, NotThisKindError, read_sealed, seal
from detent.version import __version__

CHECKPOINT = FileKind("checkpoint", b"\x89DetentCkpnt\r\n\x1a\n", 1)
_FAST = 1  # zlib's level: it is written while others work, and thrown away in the end
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


@dataclass(frozen=True)
class Counted:
    """The statistics of whole samples, and the indices of these."""

    statistics: Statistics
    done: frozenset[int]


@dataclass
class Keeper:
    """Reads and writes the checkpoint of one sweep. `notes` collects what the user should know about it.

    The identity is worked out when it is first needed: a sweep that ends before its first checkpoint needs none.
    """

    checkpoint: Checkpoint
    model: ir.Model
    source: Source
    sites: Sequence[str]
    providers: Sequence[str]
    notes: list[str] = field(default_factory=list)
    _given_up: bool = False

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

    def resume(self) -> Counted | None:
        """What an earlier sweep of the same identity left, if any. Raises OutputError where a foreign file is there."""
        path = self.checkpoint.path
        if not path.exists():
            return None
        try:
            header, statistics = unpack(read_sealed(path, CHECKPOINT), str(path))
        except NotThisKindError as error:
            raise OutputError(f"{error} It is in the way of one: move it, or give another output.") from error
        except DataError as error:
            self.notes.append(f"The checkpoint of an earlier run is of no use, so all samples are counted. {error}")
            return None
        done = _indices(header.pop("done", None))
        reason = self._difference(header, done, statistics)
        if reason:
            self.notes.append(f"The checkpoint {path} is of {reason}: it is ignored, and all samples are counted.")
            return None
        self.notes.append(f"Continued from the checkpoint {path}: {len(done)} samples were counted already.")
        return Counted({name: statistics[name] for name in self.sites}, done)

    def _difference(self, header: Header, done: Collection[int], statistics: Statistics) -> str:
        if self._identity is None:
            return "another run, and a stream cannot be continued"
        for key, difference in _DIFFERENCES.items():
            if header.get(key) != self._identity[key]:
                return difference
        return "" if done and set(statistics) == set(self.sites) else "no sample"

    def write(self, counted: Counted) -> None:
        """Replace the checkpoint. Where that cannot be done, say so once and let the sweep go on without."""
        if self._given_up or not counted.done:
            return
        try:
            if self._identity is None:
                raise DataError(
                    "A stream may give other samples, or another order, the next time. Give files or arrays instead."
                )
            header = {**self._identity, "done": _ranges(counted.done)}
            write_bytes(seal(CHECKPOINT, pack(header, counted.statistics), _FAST), self.checkpoint.path)
        except (DataError, OutputError) as error:
            self._given_up = True
            self.notes.append(f"Calibration could not have been continued after an interruption. {error}")

    def remove(self) -> None:
        """The sweep is complete: the checkpoint, its own or one that was ignored, has no more use."""
        try:
            self.checkpoint.path.unlink(missing_ok=True)
        except OSError as error:
            self.notes.append(f"Cannot remove the checkpoint {self.checkpoint.path}: {error.strerror}.")


def _ranges(indices: Collection[int]) -> list[list[int]]:
    """Indices as first and last of each run."""
    runs = groupby(enumerate(sorted(indices)), key=lambda pair: pair[1] - pair[0])
    grouped = [[index for _, index in run] for _, run in runs]
    return [[run[0], run[-1]] for run in grouped]


def _indices(ranges: object) -> frozenset[int]:
    """The indices of runs in rising order; none where that is not what `ranges` is."""
    indices: set[int] = set()
    before = -1
    for run in ranges if isinstance(ranges, list) else []:
        plausible = isinstance(run, list) and len(run) == 2 and all(type(end) is int for end in run)
        if not plausible or not before < run[0] <= run[1] < _MOST_SAMPLES:
            return frozenset()
        indices.update(range(run[0], run[1] + 1))
        before = run[1]
    return frozenset(indices)
