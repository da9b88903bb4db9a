"""Where samples are measured: in threads of this process, or on the workers of an executor.

Either way the sums of each sample come back, in the order of the samples: so they add up to the same, to the bit.
A worker is sent the model, the plan and the description of the data once, and makes the variants itself; a task is the
numbers of some samples, and its result the sums of each.
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
from detent.observe.samples import PendingSample
from detent.observe.shards import Divisible, Run, Shard, divide_samples, divisible, samples_of
from detent.observe.sources import Source
from detent.plan.plan import Plan
from detent.sensitivity_analysis.units import quantized_units
from detent.sensitivity_analysis.variants import Comparing, Question, VariantErrors, ask

Measure = Callable[[Sequence[PendingSample]], Generator[VariantErrors, None, None]]
"""The sums of each sample, in their order, whatever order they are computed in."""


@contextmanager
def in_threads(comparing: Comparing, threads: int) -> Iterator[Measure]:
    """Measure in this many threads, for the time of the block."""
    with ThreadPoolExecutor(threads) as pool:
        yield partial(_mapped, pool, comparing)


def _mapped(
    pool: ThreadPoolExecutor, comparing: Comparing, samples: Sequence[PendingSample]
) -> Generator[VariantErrors, None, None]:
    yield from pool.map(comparing, samples)


@dataclass(frozen=True, eq=False)
class Spread:
    """Workers to measure on, and the data, which they read themselves.

    `executor` is LocalProcesses, any concurrent.futures.Executor or a dask Client.
    """

    executor: Any
    source: Source

    @contextmanager
    def begin(self, question: Question, model: ir.Model, plan: Plan, memory: int) -> Iterator[Measure]:
        """Measure on the workers, for the time of the block. `memory` is for all that are on one machine.

        Raises UsageError for data that cannot be read elsewhere.
        """
        workers = workers_of(self.executor)
        # Nobody knows how many share a machine: where there are more than cores, most are on others.
        share = memory // min(workers.count, usable_cores())
        probing = Probing(question, divisible(self.source), plan, share)
        with begun(workers, model, probing) as run:
            yield partial(_on_workers, run, probing.source, workers.count)


@dataclass(frozen=True, eq=False)
class ShardSums:
    """What came of a shard: the sums of each of its samples."""

    number: int
    sums: tuple[VariantErrors, ...]


@dataclass(frozen=True, eq=False)
class Probing:
    """What all tasks of a measurement share. `memory` is for the variants that one worker holds."""

    question: Question
    source: Divisible
    plan: Plan
    memory: int

    def begin(self, model: ir.Model) -> Callable[[Shard], ShardSums]:
        """What measures a shard."""
        return partial(
            self._measure, ask(self.question, model, self.plan, quantized_units(model, self.plan), self.memory)
        )

    def _measure(self, comparing: Comparing, shard: Shard) -> ShardSums:
        return ShardSums(shard.number, tuple(map(comparing, samples_of(self.source, shard))))


def _on_workers(
    run: Run[ShardSums], source: Divisible, workers: int, samples: Sequence[PendingSample]
) -> Generator[VariantErrors, None, None]:
    early: dict[int, tuple[VariantErrors, ...]] = {}
    following = 0
    with closing(run(divide_samples(source, samples, workers))) as results:
        for result in results:
            early[result.number] = result.sums
            while following in early:
                yield from early.pop(following)
                following += 1
