"""The sweep: run every calibration sample through the float model once, and count every activation site.

The worker threads share one session and, under a lock, the stream of samples; each has statistics of its own, and these
merge at the end. Merging is exact, so the result does not depend on who counted what. Inference and counting release
the GIL: while one thread infers, another counts.

A checkpoint keeps what an interrupted sweep had counted: the statistics of whole samples, and the indices of these. Now
and then the workers are asked to hand over what they have. They do so between two samples, so a sample is in it with
all its sites or not at all; a worker that fails within a sample loses what it counted since it last handed over.

A checkpoint belongs to one identity: this model, this data, these tensors, these votes. The next sweep of the same
identity counts only what is missing, and since merging is exact its result is that of one uninterrupted sweep, to the
byte. A checkpoint of anything else is ignored, and replaced. A stream has no identity: what it will give is unknown
before it is read. So streams are not checkpointed, unless `Checkpoint.data` names the data: that is the caller's
promise that every run gives the same items in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from detent.errors import DataError, DetentError
from detent.graph.session import DEFAULT_PROVIDERS, Runner, usable_cores
from detent.graph.taps import Taps, open_taps
from detent.graph.values import all_finite
from detent.methods.method import Vote
from detent.observe.samples import PendingSample, Sample, Source
from detent.observe.statistics import HistogramBank, NonFiniteError, Statistics, merge
from detent.observe.statistics_file import Header, StatisticsFile, pack, unpack
from detent.observe.store import CALIBRATION, CheckpointFile, Digest, fingerprint_of
from detent.progress import Progress, silent
from detent.version import __version__


def taps_of(model: ir.Model, sites: Sequence[str], providers: Sequence[str] = DEFAULT_PROVIDERS) -> Taps:
    """Return the model, ready to give its outputs and then every site that is neither output nor input.

    Count with the unordered runner of the two, and compare tensors with the ordered one.
    """
    return open_taps(model, fetched(model, sites), providers)


def fetched(model: ir.Model, sites: Sequence[str]) -> list[str]:
    """Return the model's outputs, and then every site that is neither output nor input."""
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    return outputs + [name for name in sites if name not in inputs and name not in outputs]


class NotFiniteError(DataError):
    """On the sample `origin` the float model computes NaN or infinity in these `sites`."""

    def __init__(self, origin: str, sites: Sequence[str]) -> None:
        super().__init__(origin, sites)
        self.origin, self.sites = origin, sites

    def __str__(self) -> str:
        return (
            f"On {self.origin} the float model itself computes NaN or infinity in tensor '{self.sites[0]}'. Check the "
            "sample and its preprocessing, or leave the nodes that compute and read it float with --exclude."
        )


class SiteCounter:
    """Counts the values of `sites`, sample after sample. For one thread; several may share the `runner`.

    The values of the runner may be in any order: see `taps_of`.
    """

    def __init__(self, runner: Runner, sites: Sequence[str], vote: Vote | None = None) -> None:
        self._sites = list(sites)
        self._runner = runner
        self._fetched = [name for name in sites if name in runner.outputs]
        self._bank = HistogramBank(len(self._sites))
        self._vote = vote

    @property
    def statistics(self) -> Statistics:
        """What was counted. It belongs to the caller: count with another one from now on."""
        return dict(zip(self._sites, self._bank.statistics, strict=True))

    def count(self, sample: Sample) -> None:
        """Run one sample and count every site. Raise NotFiniteError if some hold NaN or infinity."""
        number = {name: at for at, name in enumerate(self._sites)}
        try:
            for part in self._parts(sample):
                self._bank.add({number[name]: array for name, array in part.items()}, self._vote)
                part.clear()
        except NonFiniteError:
            broken = [name for part in self._parts(sample) for name, array in part.items() if not all_finite(array)]
            raise NotFiniteError(sample.origin, broken) from None

    def _parts(self, sample: Sample) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the sites' values section by section: each is in the cache, and gone before the next is computed."""
        yield {name: sample.feeds[name] for name in self._sites if name in sample.feeds}
        if self._fetched:
            yield from self._runner.parts(sample.feeds, sample.origin, self._fetched)


STAGE = "calibrate"
IN_SAMPLE_KEPT = 16  # to measure on if none are held out
MOST_WORKERS = 8  # each has statistics of its own, an eighth of a megabyte for each site
SETTLE_SECONDS = 0.5  # from the request to hand over until the checkpoint is written: most samples end within it


@dataclass
class Observation:
    """What the sweep saw: the statistics of each site, how many samples, and what to measure the result with.

    `runner` is the float model, ready to give its outputs and then every site that is neither output nor input; None
    without samples at hand, because the statistics are from a file. `described` is a line about the data.

    `measured_on` are the held-out samples; where the source held none out they are the first calibration samples, and
    `in_sample` says so. `notes` is what a user should know about the checkpoint: continued, ignored, not written.
    """

    statistics: Statistics
    runner: Runner | None
    samples: int = 0
    described: str = ""
    held_out: list[PendingSample] = field(default_factory=list)
    first: list[PendingSample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def in_sample(self) -> bool:
        """Whether the result can only be measured on samples that it was calibrated with."""
        return not self.held_out

    @property
    def measured_on(self) -> list[PendingSample]:
        """The samples to measure the result with."""
        return sorted(self.held_out or self.first, key=lambda sample: sample.index)


def sweep(
    model: ir.Model,
    sites: Sequence[str],
    source: Source,
    *,
    vote: Vote | None = None,
    threads: int = 0,
    progress: Progress = silent,
    checkpoint: Checkpoint | None = None,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
) -> Observation:
    """Run all samples of `source` through `model` and count the values of `sites`.

    `vote` is asked about every sample alone, for the method that wants it. `threads`: 0 for all cores. With a
    `checkpoint`, an interrupted sweep leaves what it counted there, and the next one with the same model, data and
    sites continues from it; it is removed at the end. `providers` are the execution providers to compute on.
    """
    workers = threads or min(usable_cores(), MOST_WORKERS)
    if source.length is not None:
        workers = max(1, min(workers, source.length))
    if checkpoint is not None and (vote is None) != (checkpoint.votes_for == ""):
        raise ValueError("votes are checkpointed under the name of what they are for, and only votes are")
    keeper = None if checkpoint is None else SweepCheckpoint(checkpoint, model, source, sites, providers)
    before: tuple[Statistics, frozenset[int]] = ({}, frozenset()) if keeper is None else keeper.resume()
    taps = taps_of(model, sites, providers)
    shared = _Stream(source, progress, before[1])
    tally = _Tally(*before)
    try:
        with ThreadPoolExecutor(workers) as pool:
            new_counter = partial(SiteCounter, taps.unordered, sites, vote)
            try:
                jobs = [pool.submit(_count_all, shared, tally, new_counter) for _ in range(workers)]
                _supervise(jobs, tally, keeper)
            finally:
                shared.stop()  # also on Ctrl-C: the other workers end after the sample that they are at
        for job in jobs:
            job.result()
    except DetentError:
        # To run again needs other data or another model, so there is nothing to continue. A checkpoint that was written
        # already stays: the error may have been a disk that went away.
        raise
    except BaseException:
        if keeper is not None:
            tally.write(keeper)
        raise
    if shared.counted == 0:
        raise DataError(f"There is nothing to calibrate with in {source.describe}: every sample was held out.")
    notes = [] if keeper is None else keeper.remove()
    return Observation(
        tally.statistics, taps.ordered, shared.counted, source.describe, shared.held_out, shared.first, notes
    )


def recall(
    model: ir.Model,
    sites: Sequence[str],
    source: Source | None,
    file: StatisticsFile,
    *,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
) -> Observation:
    """Return the observation in `file`, without a sweep. `source`, if any, gives the samples to measure with.

    The file must fit: see `check_fits`.
    """
    statistics = {name: file.statistics[name] for name in sites}
    if source is None:
        return Observation(statistics, None, file.samples, file.description)
    seen = look(model, sites, source, providers=providers)
    return Observation(statistics, seen.runner, file.samples, file.description, seen.held_out, seen.first)


def look(
    model: ir.Model, sites: Sequence[str], source: Source, *, providers: Sequence[str] = DEFAULT_PROVIDERS
) -> Observation:
    """Return the samples to measure with, and no statistics: for formats that need none."""
    samples = _Stream(source, silent, frozenset())
    while samples.next() is not None:
        pass
    runner = taps_of(model, sites, providers).ordered
    return Observation({}, runner, 0, source.describe, samples.held_out, samples.first)


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
    """Return indices as the first and last of each run."""
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


def _supervise(jobs: Sequence[Future[None]], tally: _Tally, keeper: SweepCheckpoint | None) -> None:
    """Wait until all jobs are done or one has failed; meanwhile write checkpoints."""
    if keeper is None:
        wait(jobs, return_when=FIRST_EXCEPTION)
        return
    every = keeper.checkpoint.every
    while not _ended(jobs, every):
        tally.collect()
        if _ended(jobs, min(every, SETTLE_SECONDS)):
            return
        tally.write(keeper)


def _ended(jobs: Sequence[Future[None]], seconds: float) -> bool:
    ended, others = wait(jobs, seconds, FIRST_EXCEPTION)
    return not others or any(job.exception() is not None for job in ended)


class _Tally:
    """What the workers have handed over: whole samples only."""

    def __init__(self, statistics: Statistics, done: frozenset[int]) -> None:
        self.round = 0
        self.statistics = statistics
        self._done = set(done)
        self._lock = threading.Lock()

    def collect(self) -> None:
        """Ask every worker to hand over after the sample that it is at."""
        self.round += 1

    def take(self, statistics: Statistics, done: Sequence[int]) -> None:
        """Add the share of a worker, which counts with other statistics from now on."""
        with self._lock:
            if self.statistics:
                merge(self.statistics, statistics)
            else:
                self.statistics = statistics
            self._done.update(done)

    def write(self, keeper: SweepCheckpoint) -> None:
        """Write a checkpoint of what was handed over so far."""
        with self._lock:
            keeper.write(self.statistics, self._done)


class _Stream:
    """The samples of a source, shared by the workers. Those in `done` were counted by an earlier sweep."""

    def __init__(self, source: Source, progress: Progress, done: frozenset[int]) -> None:
        self.held_out: list[PendingSample] = []
        self.first: list[PendingSample] = []
        self.counted = 0
        self._iterator: Iterator[PendingSample] = iter(source)
        self._lock = threading.Lock()
        self._stopped = False
        self._total = source.length
        self._counted_before = done
        self._done = 0
        self._progress = progress
        progress(STAGE, 0, self._total)

    def next(self) -> PendingSample | None:
        """Return the next sample to count; None at the end or after a stop. Held-out samples are set aside."""
        with self._lock:
            while not self._stopped:
                pending = next(self._iterator, None)
                if pending is None:
                    return None
                if pending.held_out:
                    self.held_out.append(pending)
                if not pending.held_out or pending.counted:
                    self.counted += pending.size
                    if len(self.first) < IN_SAMPLE_KEPT and not pending.held_out:
                        self.first.append(pending)
                    if pending.index not in self._counted_before:
                        return pending
                self._advance()
            return None

    def finished_one(self) -> None:
        """Count a sample as done."""
        with self._lock:
            self._advance()

    def stop(self) -> None:
        """Let no worker begin another sample."""
        self._stopped = True

    def _advance(self) -> None:
        self._done += 1
        self._progress(STAGE, self._done, self._total)


def _count_all(stream: _Stream, tally: _Tally, new_counter: Callable[[], SiteCounter]) -> None:
    """Count samples until there are no more, and hand over at the end and when asked; never part of a sample."""
    counter, handed_over = new_counter(), tally.round
    done: list[int] = []
    within_sample = False
    try:
        while (pending := stream.next()) is not None:
            sample = pending.load()
            within_sample = True
            counter.count(sample)
            within_sample = False
            done.append(pending.index)
            stream.finished_one()
            if tally.round > handed_over:
                handed_over = tally.round
                tally.take(counter.statistics, done)
                counter, done = new_counter(), []
    except BaseException:
        stream.stop()
        raise
    finally:
        if not within_sample:
            tally.take(counter.statistics, done)
