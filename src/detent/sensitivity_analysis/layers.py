"""How much of the error at a model's outputs comes from each quantized layer, its weights and its activations apart.

With y what the float model answers, and y + e what it answers when one thing alone is quantized,

    error = mean over outputs of (sum e^2 / sum y^2)           sums over all samples

The weights of a layer, with its bias, are one such thing, and every activation that is rounded is one. The gain of a
layer is by how much the error of the quantized model falls when the layer alone is left float: its weights and bias,
and the activations that no other quantized node computes or reads.

Errors of things alone are much the same on any few samples. So samples are added until two halves of them rank the
things alike; `exact` takes all. Gains are not: with E the error of the whole model, 2 e.E - e^2 of it goes away, and
e.E is another on other samples. They are measured with `exact` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from detent.errors import DataError
from detent.evaluation.fidelity import looks_like_scores
from detent.execute.probe import UNCHANGED, Variant
from detent.graph.session import usable_cores
from detent.observe.samples import PendingSample
from detent.plan.plan import Plan
from detent.progress import Progress, silent
from detent.results.searched import LayerSensitivity, Sensitivity
from detent.sensitivity_analysis.units import QuantizedUnit, quantized_units
from detent.sensitivity_analysis.variants import EVERYTHING, Experiment, VariantComparison, VariantErrors
from detent.sensitivity_analysis.workers import MeasureSamples, SampleWorkers, on_threads

STAGE = "probe"

FEWEST = 4
SETTLED = 0.85
"""The rank correlation of two halves at which the samples are enough, of weights and of activations."""

INFERENCES = 18
"""Where many things are measured on a part of the samples, about so many inferences of all of them are computed."""


def sensitivity(
    model: ir.Model,
    plan: Plan,
    samples: Sequence[PendingSample],
    *,
    exact: bool = False,
    threads: int = 0,
    memory: int = 1 << 30,
    workers: SampleWorkers | None = None,
    progress: Progress = silent,
) -> Sensitivity:
    """Measure every layer of `model`, the float graph as it will be quantized, with the parameters of `plan`.

    Without `exact`, on as many of the samples as it takes, and without gains. About `memory` bytes are
    used for variants of the model. `workers` measure instead of threads; the samples are of their source.
    """
    if not samples:
        raise DataError("There are no samples to measure the sensitivity with. Give calibration data.")
    things = quantized_units(model, plan)
    cores = threads or usable_cores()

    def begin(experiment: Experiment) -> AbstractContextManager[MeasureSamples]:
        if workers is not None:
            return workers.begin(experiment, model, plan, memory)
        return on_threads(VariantComparison.of(experiment, model, plan, things, memory // cores), cores)

    with begin("quantized alone") as measure:
        walks = _Walks(measure, samples, progress)
        alone = walks.sums() if exact else walks.settled(things)
    if not alone.signal.any():
        raise DataError(
            f"The model answers 0 throughout on all {alone.samples} samples, so no layer can be told from another. "
            "Give samples in which it finds something."
        )
    gains = None
    if exact:
        with begin("left float") as measure:
            gains = _Walks(measure, samples, progress).sums()
    return summarize(model, plan, things, alone, gains)


def errors_of(
    model: ir.Model,
    plan: Plan,
    variants: Sequence[Variant],
    samples: Sequence[PendingSample],
    *,
    threads: int = 0,
    memory: int = 1 << 30,
    progress: Progress = silent,
) -> dict[str, float]:
    """The error of each variant of the float model, by its name, on all samples."""
    cores = threads or usable_cores()
    with on_threads(VariantComparison(model, plan, UNCHANGED, variants, memory // cores), cores) as measure:
        sums = _Walks(measure, samples, progress).sums()
    return {variant.name: sums.error(variant.name) for variant in variants}


def some_of(samples: Sequence[PendingSample], things: int) -> list[PendingSample]:
    """Evenly spaced samples: fewer, the more things there are to measure on each."""
    number = min(len(samples), max(FEWEST, len(samples) * INFERENCES // max(things, 1)))
    return [samples[index * len(samples) // number] for index in range(number)]


@dataclass(frozen=True, eq=False)
class _Walks:
    """Walks through a model on samples, and how each is measured."""

    measure: MeasureSamples
    samples: Sequence[PendingSample]
    progress: Progress

    def sums(self) -> VariantErrors:
        """The sums over all samples."""
        return reduce(VariantErrors.__add__, self._each(self.samples, 0))

    def settled(self, things: Sequence[QuantizedUnit]) -> VariantErrors:
        """The sums over as many samples as it takes to rank the things; each time twice as many."""
        spread = max(1, len(self.samples) // FEWEST)
        samples = [each for start in range(spread) for each in self.samples[start::spread]]
        kinds = [[thing.name for thing in things if thing.is_weight is kind] for kind in (True, False)]
        found: list[VariantErrors] = []
        while len(found) < len(samples):
            found += self._each(samples[len(found) : max(FEWEST, 2 * len(found))], len(found))
            if len(found) > 1 and min(_correlation(found[::2], found[1::2], kind) for kind in kinds) >= SETTLED:
                break
        return reduce(VariantErrors.__add__, found)

    def _each(self, samples: Sequence[PendingSample], before: int) -> list[VariantErrors]:
        """The sums of each sample, in their order."""
        self.progress(STAGE, before, len(self.samples))
        found = []
        with closing(self.measure(samples)) as results:
            for done, sums in enumerate(results, before + 1):
                found.append(sums)
                self.progress(STAGE, done, len(self.samples))
        return found


def _correlation(one: Sequence[VariantErrors], other: Sequence[VariantErrors], names: Sequence[str]) -> float:
    """The correlation of the ranks that two sets of samples give to the errors; 1 where there is nothing to rank."""
    halves = (reduce(VariantErrors.__add__, part) for part in (one, other))
    ranks = [np.argsort(np.argsort([half.error(name) for name in names])) for half in halves]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(names) > 1 else 1.0


def summarize(
    model: ir.Model,
    plan: Plan,
    things: Sequence[QuantizedUnit],
    sums: VariantErrors,
    gains: VariantErrors | None = None,
) -> Sensitivity:
    """The sums of things alone, and where they were measured of layers left float, as layers."""
    scores = looks_like_scores(model.graph.outputs[0])
    errors = {thing.name: sums.error(thing.name) for thing in things}
    total = sums.error(EVERYTHING)
    left = {} if gains is None else {name: total - gains.error(name) for name in gains.noise}
    layers = []
    for node in model.graph:
        own = [thing for thing in things if thing.layer == node.name]
        if not own:
            continue
        kinds = [[thing for thing in own if thing.is_weight], [thing for thing in own if not thing.is_weight]]
        weights, activations = (sum(errors[thing.name] for thing in kind) if kind else None for kind in kinds)
        counts = [max((sums.changed[thing.name] for thing in kind), default=0) for kind in kinds]
        layers.append(
            LayerSensitivity(
                node=str(node.name),
                op_type=node.op_type,
                members=_members(model, plan, node),
                weights=weights,
                activations=activations,
                gain=left.get(str(node.name)),
                changed=(counts[0], counts[1]) if scores else None,
                parameters=sum(thing.elements for thing in kinds[0]),
                operations=sum(thing.operations for thing in own),
            )
        )
    changed = sums.changed[EVERYTHING] if scores else None
    return Sensitivity(
        tuple(layers), tuple(unit.source for unit in things), errors, total, changed, sums.samples, gains is not None
    )


def _members(model: ir.Model, plan: Plan, node: ir.Node) -> tuple[str, ...]:
    fused = (each for each in model.graph if each is not node and plan.layout.quantizes(each))
    return str(node.name), *(str(each.name) for each in fused if plan.layout.layer_of(each) is node)
