"""How much of the error at a model's outputs comes from each quantized layer, its weights and its activations apart.

With y what the float model answers, and y + e what it answers when one thing alone is quantized,

    error = mean over outputs of (sum e^2 / sum y^2)           sums over all samples

The weights of a layer, with its bias, are one such thing, and every activation that is rounded is one. The gain of a
layer is by how much the error of the quantized model falls when the layer alone is left float: its weights and bias,
and the activations that no other quantized node computes or reads.

All of it is measured (`exact`), or all but the gains, on fewer samples. Small errors add up as vectors, E = sum of e
for the whole model; then without some of them

    |E|^2 - |E - e|^2 = 2 e.E - |e|^2

of which e.E costs nothing to measure. Sums of samples add: whoever has measured others can add theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import DataError, ModelError
from detent.graph.session import usable_cores
from detent.measure.fidelity import looks_like_scores
from detent.measure.probe import ITSELF, Probe, Variant
from detent.measure.things import Thing, everything, left_float, things_of
from detent.observe.samples import PendingSample, Sample
from detent.plan.plan import Plan
from detent.progress import Progress, silent

STAGE = "probe"

FEWEST = 4
INFERENCES = 14
"""Without `exact`, things times samples is about this many inferences of all samples, of which half is computed."""


@dataclass(frozen=True)
class LayerSensitivity:
    """One layer: errors as noise power over signal power; None where it has nothing of the kind that is quantized.

    `changed` counts samples whose top answer is another with the layer's weights, and with its activations quantized;
    None where outputs are no class scores. `members` are the nodes that are computed with it, itself first.
    """

    node: str
    op_type: str
    members: tuple[str, ...]
    weights: float | None
    activations: float | None
    gain: float
    changed: tuple[int, int] | None
    parameters: int
    operations: int

    @property
    def error(self) -> float:
        """Of weights and activations together: noise powers add."""
        return (self.weights or 0.0) + (self.activations or 0.0)


@dataclass(frozen=True)
class Sensitivity:
    """Every layer in graph order, every thing that was quantized alone, and the error of the whole quantized model."""

    layers: tuple[LayerSensitivity, ...]
    things: tuple[Thing, ...]
    errors: Mapping[str, float]
    total: float
    changed: int | None
    samples: int
    exact: bool

    def worst_first(self) -> list[LayerSensitivity]:
        """The layers, those with the largest error first."""
        return sorted(self.layers, key=lambda layer: -layer.error)


def decibels(error: float) -> float:
    """An error in dB, relative to the signal: -20 is a hundredth of its power."""
    return 10 * math.log10(error) if error > 0 else -math.inf


def sensitivity(
    model: ir.Model,
    plan: Plan,
    samples: Sequence[PendingSample],
    *,
    exact: bool = False,
    threads: int = 0,
    memory: int = 1 << 30,
    progress: Progress = silent,
) -> Sensitivity:
    """Measure every layer of `model`, the float graph as it will be quantized, with the parameters of `plan`.

    Without `exact`, on some of the samples. About `memory` bytes are used for variants of the model.
    """
    if not samples:
        raise DataError("There are no samples to measure the sensitivity with. Give calibration data.")
    things = things_of(model, plan)
    chosen = samples if exact else _some(samples, len(things))
    probing = Probing(model, plan, things, exact=exact, memory=memory // (threads or usable_cores()))
    progress(STAGE, 0, len(chosen))
    measured = []
    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        for done, sums in enumerate(pool.map(probing, chosen), 1):
            measured.append(sums)
            progress(STAGE, done, len(chosen))
    return summarize(model, plan, things, reduce(Sums.__add__, measured), exact=exact)


def _some(samples: Sequence[PendingSample], things: int) -> list[PendingSample]:
    """Evenly spaced samples: fewer, the more things there are to measure on each."""
    number = min(len(samples), max(FEWEST, len(samples) * INFERENCES // max(things, 1)))
    return [samples[index * len(samples) // number] for index in range(number)]


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over samples, an entry for each output: of y^2, and by variant of e^2, of e.E, and of changed answers."""

    samples: int
    signal: Floats
    noise: Mapping[str, Floats]
    along: Mapping[str, Floats]
    changed: Mapping[str, int]

    def __add__(self, more: Sums) -> Sums:
        return Sums(
            self.samples + more.samples,
            self.signal + more.signal,
            {name: noise + more.noise[name] for name, noise in self.noise.items()},
            {name: along + more.along[name] for name, along in self.along.items()},
            {name: count + more.changed[name] for name, count in self.changed.items()},
        )

    def error(self, variant: str) -> float:
        """The noise power of a variant over the signal power; infinite where it has become NaN."""
        return self._relative(self.noise[variant])

    def gain(self, variant: str) -> float:
        """What the whole error is expected to lose without that of a variant."""
        return self._relative(2 * self.along[variant] - self.noise[variant])

    def _relative(self, power: Floats) -> float:
        there = self.signal > 0  # an output that is zero throughout has nothing to compare with
        mean = float((power[there] / self.signal[there]).mean()) if there.any() else 0.0
        return mean if math.isfinite(mean) else math.inf


EVERYTHING = "everything"


class Probing:
    """One sample after another through the float model and its variants, and where it is asked for the quantized one's.

    It may be called in any number of threads.
    """

    def __init__(self, model: ir.Model, plan: Plan, things: Sequence[Thing], *, exact: bool, memory: int) -> None:
        whole = everything(EVERYTHING, things)
        self._float = Probe(model, plan.layout)
        self._outputs = self._measurable(model)
        self._first = str(model.graph.outputs[0].name)
        self._scores = looks_like_scores(model.graph.outputs[0]) and self._first in self._float.outputs
        self._variants = [whole, *(thing.variant for thing in things)]
        self._left = list(left_float(things)) if exact else []
        self._quantized = Probe(model, plan.layout, whole) if exact else None
        self._memory = memory

    def _measurable(self, model: ir.Model) -> list[int]:
        """Which of the outputs can be measured at: those of floats."""
        types = {str(value.name): value.dtype for value in model.graph.outputs}
        found = [index for index, name in enumerate(self._float.outputs) if types[name] == ir.DataType.FLOAT]
        if not found:
            raise ModelError("The model has no output of float numbers at which errors could be measured.")
        return found

    def __call__(self, pending: PendingSample) -> Sums:
        """The sums of one sample."""
        sample = pending.load()
        together = max(1, self._memory // max(self._float.footprint(sample), 1))
        answers = self._answers(self._float, sample, self._variants, together)
        _, expected = next(answers)
        sums = _Collecting(pending.size, [np.asarray(expected[index], np.float64) for index in self._outputs])
        for name, found in answers:
            sums.add(name, [found[index] for index in self._outputs], self._another(expected, found))
        if self._quantized is not None:
            others = self._answers(self._quantized, sample, self._left, together)
            next(others)  # that of the quantized model itself, which is known already
            for name, found in others:
                sums.add(name, [found[index] for index in self._outputs], self._another(expected, found))
        return sums.total()

    @staticmethod
    def _answers(
        probe: Probe, sample: Sample, variants: Sequence[Variant], together: int
    ) -> Iterator[tuple[str, list[Any]]]:
        """What the model and the variants answer, the model first; so many at a time that there is memory for them."""
        for start in range(0, len(variants), together):
            answers = probe(sample, variants[start : start + together])
            itself = answers.pop(ITSELF)
            if start == 0:
                yield ITSELF, itself
            yield from answers.items()

    def _another(self, expected: Sequence[Any], found: Sequence[Any]) -> int:
        """How many of the samples have another top answer."""
        if not self._scores:
            return 0
        index = self._float.outputs.index(self._first)
        return int((expected[index].argmax(-1) != found[index].argmax(-1)).sum())


class _Collecting:
    """The sums of one sample, as its variants come in; the one of everything comes first."""

    def __init__(self, size: int, expected: Sequence[Floats]) -> None:
        self._size, self._expected = size, expected
        self._whole: list[Floats] = []
        self._noise: dict[str, Floats] = {}
        self._along: dict[str, Floats] = {}
        self._changed: dict[str, int] = {}

    def add(self, name: str, found: Iterable[npt.NDArray[Any]], changed: int) -> None:
        # An answer of another shape, where the data decides the shape, is no answer: the error is all of the signal.
        errors = [y - x if y.shape == x.shape else -x for x, y in zip(self._expected, found, strict=True)]
        if name == EVERYTHING:
            self._whole = errors
        self._noise[name] = np.array([np.vdot(error, error) for error in errors])
        self._along[name] = np.array([np.vdot(error, all_) for error, all_ in zip(errors, self._whole, strict=True)])
        self._changed[name] = changed

    def total(self) -> Sums:
        signal = np.array([np.vdot(x, x) for x in self._expected])
        return Sums(self._size, signal, self._noise, self._along, self._changed)


def summarize(model: ir.Model, plan: Plan, things: Sequence[Thing], sums: Sums, *, exact: bool) -> Sensitivity:
    """The sums as layers."""
    scores = looks_like_scores(model.graph.outputs[0])
    errors = {thing.name: sums.error(thing.name) for thing in things}
    total = sums.error(EVERYTHING)
    layers = []
    for node in model.graph:
        own = [thing for thing in things if thing.layer == node.name]
        if not own:
            continue
        kinds = [[thing for thing in own if thing.is_weight], [thing for thing in own if not thing.is_weight]]
        freed = [thing for thing in things if thing.touches == {str(node.name)}]
        gain = sum(sums.gain(thing.name) for thing in freed)
        if exact:
            gain = total - sums.error(str(node.name)) if freed else 0.0
        weights, activations = (sum(errors[thing.name] for thing in kind) if kind else None for kind in kinds)
        counts = [max((sums.changed[thing.name] for thing in kind), default=0) for kind in kinds]
        layers.append(
            LayerSensitivity(
                node=str(node.name),
                op_type=node.op_type,
                members=_members(model, plan, node),
                weights=weights,
                activations=activations,
                gain=gain,
                changed=(counts[0], counts[1]) if scores else None,
                parameters=sum(thing.elements for thing in kinds[0]),
                operations=sum(thing.operations for thing in own),
            )
        )
    changed = sums.changed[EVERYTHING] if scores else None
    return Sensitivity(tuple(layers), tuple(things), errors, total, changed, sums.samples, exact)


def _members(model: ir.Model, plan: Plan, node: ir.Node) -> tuple[str, ...]:
    fused = (each for each in model.graph if each is not node and plan.layout.quantizes(each))
    return str(node.name), *(str(each.name) for each in fused if plan.layout.layer_of(each) is node)
