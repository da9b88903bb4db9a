"""The sweep: every calibration sample runs through the float model once, and every site is counted.

The worker threads share one session and, under a lock, the stream of samples; each has histograms of its own, and these
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
from detent.observe.histogram import Histogram, NonFiniteError
from detent.observe.samples import PendingSample, Sample
from detent.observe.sources import Source
from detent.progress import Progress, silent

STAGE = "calibrate"
IN_SAMPLE_KEPT = 16
MOST_WORKERS = 8  # each has histograms of its own, a quarter of a megabyte for each site


@dataclass
class Observation:
    """What the sweep saw: a histogram for each site, how many samples, and what to measure the result with.

    `runner` is the float model, ready to give its outputs and then every site that is neither output nor input.

    `measured_on` are the held-out samples; where the source held none out they are the first calibration samples, and
    `in_sample` says so.
    """

    histograms: dict[str, Histogram]
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
    model: ir.Model, sites: Sequence[str], source: Source, *, threads: int = 0, progress: Progress = silent
) -> Observation:
    """Run all samples of `source` through `model` and count the values of `sites`. `threads`: 0 for all cores."""
    workers = threads or min(usable_cores(), MOST_WORKERS)
    if source.length is not None:
        workers = max(1, min(workers, source.length))
    inputs, outputs = ([str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    runner = Runner(model, outputs + [name for name in sites if name not in inputs and name not in outputs])
    shared = _Stream(source, progress)
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(_Worker(runner, sites, shared).run) for _ in range(workers)]
        try:
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            shared.stop()  # also on Ctrl-C: the other workers end after the sample that they are at
        partial = [job.result() for job in jobs]
    merged = partial[0]
    for other in partial[1:]:
        for name, histogram in other.items():
            merged[name].merge(histogram)
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


class _Worker:
    def __init__(self, runner: Runner, sites: Sequence[str], stream: _Stream) -> None:
        self._runner = runner
        self._fetched = [name for name in sites if name in runner.outputs]
        self._stream = stream
        self._histograms = {name: Histogram() for name in sites}

    def run(self) -> dict[str, Histogram]:
        """Count samples until there are no more."""
        try:
            while (pending := self._stream.next()) is not None:
                self._count(pending.load())
                self._stream.finished_one()
        except BaseException:
            self._stream.stop()
            raise
        return self._histograms

    def _count(self, sample: Sample) -> None:
        results = self._runner(sample.feeds, sample.origin, self._fetched) if self._fetched else []
        arrays = {**sample.feeds, **dict(zip(self._fetched, results, strict=True))}
        for name, histogram in self._histograms.items():
            try:
                histogram.add(arrays[name])
            except NonFiniteError:
                raise DataError(
                    f"On {sample.origin} the float model itself computes NaN or infinity in tensor '{name}'. "
                    "Check the sample and its preprocessing, or leave the nodes that compute and read it float "
                    "with --exclude."
                ) from None
