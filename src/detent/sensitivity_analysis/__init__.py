"""Measure how much of the error at a model's outputs each quantized layer causes, by its weights and activations.

With y the outputs of the float model, and y + e its outputs when one unit alone is quantized,

    error = at the worst part of any output: sum e^2 / sum y^2           sums over all samples

Outputs are joined from parts (tasks/parts.py): an error in the boxes of a detector, of 0..640, cannot be compared with
one in its scores, of 0..1. Noise powers add within a part, so the errors of a layer are those at its worst part.

The weights of a layer, with its bias, are one unit, and so is every activation that is rounded. The gain of a layer is
the decrease of the quantized model's error when the layer alone is left float: its weights and bias, and the
activations that no other quantized node computes or reads.

The errors of single units are similar on any few samples. So samples are added until two halves of them rank the units
alike; `exact` takes all. Gains are not: with E the error of the whole model, leaving a unit float removes
2 e.E - e^2, and e.E changes from sample to sample. They are measured with `exact` only.

Samples are measured in threads of this process, or on the workers of an executor. Either way the sums of each sample
come back in the order of the samples, so they add up to the same bits. A worker receives the model, the plan and the
description of the data once, and builds the variants itself; a task consists of the numbers of some samples, and its
result of the sums of each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from detent.errors import DataError
from detent.evaluation.fidelity import looks_like_scores
from detent.execute.probe import UNCHANGED, Probe, Variant
from detent.graph.session import usable_cores
from detent.observe.executors import begun, workers_of
from detent.observe.samples import PendingSample, Source
from detent.observe.shards import Divisible, DoShard, Run, Shard, divide_samples, divisible, samples_of
from detent.plan.plan import Plan
from detent.progress import Progress, silent
from detent.results.searched import LayerSensitivity, PartErrors, Sensitivity
from detent.sensitivity_analysis.variants import (
    EVERYTHING,
    Experiment,
    Parts,
    QuantizedUnit,
    VariantComparison,
    VariantErrors,
    part_names,
    quantized_units,
)
from detent.tasks.parts import output_parts

# Yields the sums of each sample in their order, whatever order they are computed in.
MeasureSamples = Callable[[Sequence[PendingSample]], Generator[VariantErrors, None, None]]


@contextmanager
def on_threads(compare: Callable[[PendingSample], VariantErrors], threads: int) -> Iterator[MeasureSamples]:
    """Measure in this many threads within the block."""
    with ThreadPoolExecutor(threads) as pool:

        def measure(samples: Sequence[PendingSample]) -> Generator[VariantErrors, None, None]:
            yield from pool.map(compare, samples)

        yield measure


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
            # Workers finish in any order, but float sums depend on the order: early results wait.
            while following in early:
                yield from early.pop(following)
                following += 1


STAGE = "probe"

FEWEST = 4
SETTLED = 0.85  # the rank correlation of two halves, of weights and of activations, at which the samples are enough

# Many variants are measured on a part of the samples, at the cost of about this many inferences of each sample.
INFERENCES = 18


def sensitivity(
    model: ir.Model,
    plan: Plan,
    samples: Sequence[PendingSample],
    *,
    parts: Parts | None = None,
    exact: bool = False,
    threads: int = 0,
    memory: int = 1 << 30,
    workers: SampleWorkers | None = None,
    progress: Progress = silent,
) -> Sensitivity:
    """Measure every layer of `model`, the float graph as it will be quantized, with the parameters of `plan`.

    `parts` are what its outputs are joined from; None: as far as the graph tells. Without `exact`, use as many
    of the samples as it takes, and measure no gains. Variants of the model take about `memory` bytes. `workers`
    measure instead of threads; the samples are of their source.
    """
    if not samples:
        raise DataError("There are no samples to measure the sensitivity with. Give calibration data.")
    units = quantized_units(model, plan)
    cores = threads or usable_cores()
    divided = output_parts(model.graph) if parts is None else parts

    def begin(experiment: Experiment) -> AbstractContextManager[MeasureSamples]:
        if workers is not None:
            return workers.begin(experiment, model, plan, divided, memory)
        return on_threads(VariantComparison.of(experiment, model, plan, units, divided, memory // cores), cores)

    with begin("quantized alone") as measure:
        measurement = _Measurement(measure, samples, progress)
        alone = measurement.sums() if exact else measurement.settled(units)
    _check_answers(alone)
    gains = None
    if exact:
        with begin("left float") as measure:
            gains = _Measurement(measure, samples, progress).sums()
    return summarize(model, plan, units, part_names(model, divided), alone, gains)


def errors_of(
    model: ir.Model,
    plan: Plan,
    variants: Sequence[Variant],
    samples: Sequence[PendingSample],
    *,
    parts: Parts | None,
    threads: int = 0,
    memory: int = 1 << 30,
    progress: Progress = silent,
    probe: Probe | None = None,
) -> dict[str, float]:
    """Return the error of each variant of the float model on all samples, by its name.

    It is the error at the worst of the `parts`; with None, the mean over whole outputs. Callers that measure several
    times can pass a `probe` of the model, to reuse its sessions.
    """
    cores = threads or usable_cores()
    probe = Probe(model, plan.layout) if probe is None else probe
    # With fewer samples than cores, each sample is measured by several of them.
    shares = max(1, min(len(variants), cores // len(samples)))
    comparisons = [
        VariantComparison(model, plan, UNCHANGED, variants[share::shares], parts or {}, memory // cores, probe)
        for share in range(shares)
    ]
    with ThreadPoolExecutor(cores) as pool:

        def compare(sample: PendingSample) -> VariantErrors:
            found = [pool.submit(comparison, sample) for comparison in comparisons]
            return reduce(VariantErrors.__or__, (each.result() for each in found))

        with on_threads(compare, cores) as run:
            sums = _Measurement(run, samples, progress).sums()
    _check_answers(sums)
    error = sums.mean_error if parts is None else sums.error
    return {variant.name: error(variant.name) for variant in variants}


class SilentModelError(DataError):
    """The float model answers with 0, or with no rows, on all samples."""


def _check_answers(sums: VariantErrors) -> None:
    """Raise SilentModelError if the float model answers with nothing that an error could be compared with."""
    if not sums.signal.any():
        raise SilentModelError(
            f"The model answers with 0, or with no rows, on all {sums.samples} samples, so layers cannot be told "
            "apart. Give samples in which it finds something."
        )


def evenly_spaced(samples: Sequence[PendingSample], variants: int) -> list[PendingSample]:
    """Choose samples: fewer, the more variants are to be measured on each."""
    number = min(len(samples), max(FEWEST, len(samples) * INFERENCES // max(variants, 1)))
    return [samples[index * len(samples) // number] for index in range(number)]


@dataclass(frozen=True, eq=False)
class _Measurement:
    """Samples, and how each is measured."""

    measure: MeasureSamples
    samples: Sequence[PendingSample]
    progress: Progress

    def sums(self) -> VariantErrors:
        return reduce(VariantErrors.__add__, self._each(self.samples, 0))

    def settled(self, units: Sequence[QuantizedUnit]) -> VariantErrors:
        """Add the sums of as many samples as it takes to rank the units; each time twice as many."""
        spread = max(1, len(self.samples) // FEWEST)
        samples = [each for start in range(spread) for each in self.samples[start::spread]]
        kinds = [[unit.name for unit in units if unit.is_weight is kind] for kind in (True, False)]
        found: list[VariantErrors] = []
        while len(found) < len(samples):
            found += self._each(samples[len(found) : max(FEWEST, 2 * len(found))], len(found))
            if len(found) > 1 and min(_correlation(found[::2], found[1::2], kind) for kind in kinds) >= SETTLED:
                break
        return reduce(VariantErrors.__add__, found)

    def _each(self, samples: Sequence[PendingSample], before: int) -> list[VariantErrors]:
        """Measure each sample, in their order."""
        self.progress(STAGE, before, len(self.samples))
        found = []
        with closing(self.measure(samples)) as results:
            for done, sums in enumerate(results, before + 1):
                found.append(sums)
                self.progress(STAGE, done, len(self.samples))
        return found


def _correlation(one: Sequence[VariantErrors], other: Sequence[VariantErrors], names: Sequence[str]) -> float:
    """Return the rank correlation of the errors on two sets of samples; 1 if there is nothing to rank."""
    halves = (reduce(VariantErrors.__add__, part) for part in (one, other))
    ranks = [np.argsort(np.argsort([half.error(name) for name in names])) for half in halves]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(names) > 1 else 1.0


def summarize(
    model: ir.Model,
    plan: Plan,
    units: Sequence[QuantizedUnit],
    parts: Sequence[str],
    sums: VariantErrors,
    gains: VariantErrors | None = None,
) -> Sensitivity:
    """Return the errors of layers from the sums of units quantized alone and, if measured, of layers left float."""
    scores = looks_like_scores(model.graph.outputs[0])
    errors = {unit.name: sums.errors(unit.name) for unit in units}
    total = sums.error(EVERYTHING)
    left = {} if gains is None else {name: total - gains.error(name) for name in gains.noise}

    def error(kind: Sequence[QuantizedUnit], part: int) -> float | None:
        return float(sum(errors[unit.name][part] for unit in kind)) if kind else None

    def most_changed(kind: Sequence[QuantizedUnit]) -> int:
        return max((sums.changed[unit.name] for unit in kind), default=0)

    layers = []
    for node in model.graph:
        own = [unit for unit in units if unit.layer == node.name]
        if not own:
            continue
        weights, activations = ([unit for unit in own if unit.is_weight is kind] for kind in (True, False))
        worst = int(np.argmax(sum(errors[unit.name] for unit in own)))
        layers.append(
            LayerSensitivity(
                node=str(node.name),
                op_type=node.op_type,
                members=_members(model, plan, node),
                weights=error(weights, worst),
                activations=error(activations, worst),
                gain=left.get(str(node.name)),
                changed=(most_changed(weights), most_changed(activations)) if scores else None,
                parameters=sum(unit.elements for unit in weights),
                operations=sum(unit.operations for unit in own),
                part=parts[worst],
            )
        )
    changed = sums.changed[EVERYTHING] if scores else None
    return Sensitivity(
        tuple(layers),
        tuple(unit.source for unit in units),
        {name: float(each.max()) for name, each in errors.items()},
        total,
        changed,
        sums.samples,
        gains is not None,
        PartErrors(
            tuple(parts),
            tuple(sums.errors(EVERYTHING).tolist()),
            {name: tuple(each.tolist()) for name, each in errors.items()},
        ),
    )


def _members(model: ir.Model, plan: Plan, node: ir.Node) -> tuple[str, ...]:
    fused = (each for each in model.graph if each is not node and plan.layout.quantizes(each))
    return str(node.name), *(str(each.name) for each in fused if plan.layout.layer_of(each) is node)
