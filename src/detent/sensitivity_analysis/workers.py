"""Measure samples in threads of this process, or on the workers of an executor.

Either way the sums of each sample come back in the order of the samples, so they add up to the same bits. A worker is
sent the model, the plan and the description of the data once, and builds the variants itself; a task is the numbers of
some samples, and its result the sums of each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir

from detent.graph.session import usable_cores
from detent.observe.executors import begun, workers_of
from detent.observe.samples import PendingSample, Source
from detent.observe.shards import Divisible, DoShard, Run, Shard, divide_samples, divisible, samples_of
from detent.plan.plan import Plan
from detent.sensitivity_analysis.variants import Experiment, Parts, VariantComparison, VariantErrors, quantized_units

MeasureSamples = Callable[[Sequence[PendingSample]], Generator[VariantErrors, None, None]]
"""Yields the sums of each sample in their order, whatever order they are computed in."""


@contextmanager
def on_threads(comparison: VariantComparison, threads: int) -> Iterator[MeasureSamples]:
    """Measure in this many threads within the block."""
    with ThreadPoolExecutor(threads) as pool:
        yield partial(_mapped, pool, comparison)


def _mapped(
    pool: ThreadPoolExecutor, comparison: VariantComparison, samples: Sequence[PendingSample]
) -> Generator[VariantErrors, None, None]:
    yield from pool.map(comparison, samples)


@dataclass(frozen=True, eq=False)
class SampleWorkers:
    """Workers to measure on, and the data, which they read themselves.

    `executor` is LocalProcesses, any concurrent.futures.Executor or a dask Client.
    """

    executor: Any
    source: Source

    @contextmanager
    def begin(
        self, experiment: Experiment, model: ir.Model, plan: Plan, parts: Parts, memory: int
    ) -> Iterator[MeasureSamples]:
        """Measure on the workers within the block. All workers on one machine share `memory` bytes.

        Raises UsageError for data that cannot be read elsewhere.
        """
        workers = workers_of(self.executor)
        # Nobody knows how many workers share a machine: if there are more than cores, most are on others.
        share = memory // min(workers.count, usable_cores())
        work = VariantWork(experiment, divisible(self.source), plan, parts, share)
        with begun(workers, model, work) as run:
            yield partial(_on_workers, run, work.source, workers.count)


@dataclass(frozen=True, eq=False)
class VariantWork:
    """What all tasks of a measurement share. `memory` is for the variants that one worker holds."""

    experiment: Experiment
    source: Divisible
    plan: Plan
    parts: Parts
    memory: int

    def begin(self, model: ir.Model) -> DoShard:
        """Return what measures a shard."""
        units = quantized_units(model, self.plan)
        comparison = VariantComparison.of(self.experiment, model, self.plan, units, self.parts, self.memory)
        return partial(self._measure, comparison)

    def _measure(self, comparison: VariantComparison, shard: Shard) -> tuple[VariantErrors, ...]:
        return tuple(map(comparison, samples_of(self.source, shard)))


def _on_workers(
    run: Run, source: Divisible, workers: int, samples: Sequence[PendingSample]
) -> Generator[VariantErrors, None, None]:
    early: dict[int, tuple[VariantErrors, ...]] = {}
    following = 0
    with closing(run(divide_samples(source, samples, workers))) as results:
        for shard, sums in results:
            early[shard.number] = sums
            while following in early:
                yield from early.pop(following)
                following += 1
