"""The sweep: every calibration sample runs through the float model once, and every site is counted.

The worker threads share one session and, under a lock, the stream of samples; each has statistics of its own, and these
merge at the end. Merging is exact, so the result does not depend on who counted what. Inference and counting release
the GIL: while one thread infers, another counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import onnx_ir as ir

from detent.errors import DataError
from detent.graph.session import Runner, usable_cores
from detent.observe.counter import SiteCounter
from detent.observe.samples import PendingSample
from detent.observe.sources import Source
from detent.observe.statistics import Statistics, Vote, merge
from detent.progress import Progress, silent

STAGE = "calibrate"
IN_SAMPLE_KEPT = 16
MOST_WORKERS = 8  # each has statistics of its own, a quarter of a megabyte for each site


@dataclass
class Observation:
    """What the sweep saw: the statistics of each site, how many samples, and what to measure the result with.

    `runner` is the float model, ready to give its outputs and then every site that is neither output nor input.

    `measured_on` are the held-out samples; where the source held none out they are the first calibration samples, and
    `in_sample` says so.
    """

    statistics: Statistics
    runner: Runner
    samples: int = 0
    held_out: list[PendingSample] = field(default_factory=list)
    first: list[PendingSample] = field(default_factory=list)

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
) -> Observation:
    """Run all samples of `source` through `model` and count the values of `sites`.

    `vote` is asked about every sample alone, for the method that wants it. `threads`: 0 for all cores.
    """
    workers = threads or min(usable_cores(), MOST_WORKERS)
    if source.length is not None:
        workers = max(1, min(workers, source.length))
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    runner = Runner(model, outputs + [name for name in sites if name not in inputs and name not in outputs])
    shared = _Stream(source, progress)
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(_count_all, shared, SiteCounter(runner, sites, vote)) for _ in range(workers)]
        try:
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            shared.stop()  # also on Ctrl-C: the other workers end after the sample that they are at
        partial = [job.result() for job in jobs]
    merged = partial[0]
    for other in partial[1:]:
        merge(merged, other)
    if shared.counted == 0:
        raise DataError(f"There is nothing to calibrate with in {source.describe}: every sample was held out.")
    return Observation(merged, runner, shared.counted, shared.held_out, shared.first)


class _Stream:
    """The samples of a source, shared by the workers."""

    def __init__(self, source: Source, progress: Progress) -> None:
        self.held_out: list[PendingSample] = []
        self.first: list[PendingSample] = []
        self.counted = 0
        self._iterator: Iterator[PendingSample] = iter(source)
        self._lock = threading.Lock()
        self._stopped = False
        self._total = source.length
        self._done = 0
        self._progress = progress
        progress(STAGE, 0, self._total)

    def next(self) -> PendingSample | None:
        """The next sample to count; None at the end or after a stop. Held-out samples are set aside on the way."""
        with self._lock:
            while not self._stopped:
                pending = next(self._iterator, None)
                if pending is None:
                    return None
                if not pending.held_out:
                    self.counted += pending.size
                    if len(self.first) < IN_SAMPLE_KEPT:
                        self.first.append(pending)
                    return pending
                self.held_out.append(pending)
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


def _count_all(stream: _Stream, counter: SiteCounter) -> Statistics:
    """Count samples until there are no more."""
    try:
        while (pending := stream.next()) is not None:
            counter.count(pending.load())
            stream.finished_one()
    except BaseException:
        stream.stop()
        raise
    return counter.statistics
