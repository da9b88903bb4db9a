"""Variants of a model: one unit quantized alone, or one layer left float; and their errors on samples.

A unit consists of all constants of a layer, or of one activation. Errors are sums over samples. Floating-point sums
depend on their order, so each sample has sums of its own, and they are added in the order of the samples, wherever each
was computed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from detent.errors import ModelError
from detent.evaluation.fidelity import looks_like_scores
from detent.execute.probe import ITSELF, UNCHANGED, Array, Probe, Variant
from detent.graph.session import as_array
from detent.graph.values import constant, values_of
from detent.observe.samples import PendingSample, Sample
from detent.plan.layout import Role, site_inputs
from detent.plan.plan import Plan
from detent.results.paired import Floats
from detent.results.searched import ErrorSource
from detent.tasks.parts import OutputPart

EVERYTHING = "everything"  # the name of the variant in which all units are quantized

# What is varied: each unit is quantized alone in the float model, or each layer left float in the quantized one.
Experiment = Literal["quantized alone", "left float"]


@dataclass(frozen=True, eq=False)
class QuantizedUnit(ErrorSource):
    """A source of error, with the variant of the float model that quantizes it alone.

    `original` has the numbers of its constants before they were quantized.
    """

    variant: Variant = UNCHANGED
    original: Mapping[str, Array] = field(default_factory=dict)

    @property
    def source(self) -> ErrorSource:
        """The unit without its arrays."""
        return ErrorSource(*(getattr(self, item.name) for item in fields(ErrorSource)))


def quantized_units(model: ir.Model, plan: Plan) -> list[QuantizedUnit]:
    """Return all units, with the parameters of the plan: constants first, then activations, in graph order."""
    return [*_constants(model, plan), *_activations(model, plan)]


def all_quantized(name: str, units: Sequence[QuantizedUnit]) -> Variant:
    """Return the variant in which all these units are quantized."""
    constants = {key: array for unit in units for key, array in unit.variant.constants.items()}
    return Variant(name, constants, {key: params for unit in units for key, params in unit.variant.rounding.items()})


def left_float(units: Sequence[QuantizedUnit]) -> Iterator[Variant]:
    """Yield for each layer the variant of the quantized model that leaves it float, under the layer's name."""
    for layer in dict.fromkeys(unit.layer for unit in units):
        freed = [unit for unit in units if unit.touches == {layer}]
        if freed:
            constants = {key: array for unit in freed for key, array in unit.original.items()}
            yield Variant(layer, constants, {key: None for unit in freed for key in unit.variant.rounding})


def _constants(model: ir.Model, plan: Plan) -> Iterator[QuantizedUnit]:
    original: dict[str, dict[str, Array]] = {}
    touches: dict[str, set[str]] = {}
    output: dict[str, ir.Value] = {}
    for node in model.graph:
        if not plan.layout.quantizes(node):
            continue
        layer = str(plan.layout.layer_of(node).name)
        for index in sorted(site_inputs(node)):
            value = node.inputs[index] if index < len(node.inputs) else None
            array, name = constant(value), "" if value is None else str(value.name)
            if array is None or (name not in plan.layout.sites and name not in plan.refined):
                continue
            site = plan.layout.sites.get(name)
            owner = layer if site is None else site.node
            original.setdefault(owner, {})[name] = array
            touches.setdefault(owner, set()).add(layer)
            output.setdefault(owner, node.outputs[0])
    for layer, arrays in original.items():
        name = f"weights of {layer}"
        weights = max(arrays.values(), key=lambda array: array.size)
        yield QuantizedUnit(
            name,
            layer,
            frozenset(touches[layer]),
            constants=tuple(arrays),
            elements=sum(array.size for array in arrays.values()),
            operations=weights.size * _positions(output[layer]),
            variant=Variant(name, {key: _stored(plan, key, array) for key, array in arrays.items()}),
            original=arrays,
        )


def _stored(plan: Plan, name: str, array: Array) -> Array:
    numbers = plan.refined.get(name, array)
    return plan.of(name).stored(numbers) if name in plan.layout.sites else np.asarray(numbers)


def _positions(value: ir.Value) -> int:
    """Return how often a weight is used for one sample: the places of a feature map, or the rows of a matrix."""
    producer = value.producer()
    maps = producer is not None and producer.op_type in ("Conv", "ConvTranspose")
    return math.prod(_dims(value)[2:] if maps else _dims(value)[1:-1])


def _dims(value: ir.Value) -> list[int]:
    """Return the shape; a size that only the data tells is 1."""
    return [dim if isinstance(dim, int) else 1 for dim in value.shape or ()]


def _activations(model: ir.Model, plan: Plan) -> Iterator[QuantizedUnit]:
    values = {str(value.name): value for value in values_of(model.graph)}
    for site in plan.layout.of_role(Role.ACTIVATION):
        value = values[site.value]
        nodes = [value.producer(), *(node for node, index in value.uses() if index in site_inputs(node))]
        quantized = [node for node in nodes if node is not None and plan.layout.quantizes(node)]
        name, elements = f"activation {site.value}", math.prod(_dims(value)[1:])
        yield QuantizedUnit(
            name,
            site.node,
            frozenset(str(plan.layout.layer_of(node).name) for node in quantized),
            activations=(site.value,),
            elements=elements,
            operations=elements,
            variant=Variant(name, rounding={site.value: plan.of(site.value)}),
        )


@dataclass(frozen=True, eq=False)
class VariantErrors:
    """Sums over samples, with an entry for each part of each output: of y^2, and by variant of e^2.

    `changed` counts, by variant, the answers that differ.
    """

    samples: int
    signal: Floats
    noise: Mapping[str, Floats]
    changed: Mapping[str, int]

    def __add__(self, more: VariantErrors) -> VariantErrors:
        return VariantErrors(
            self.samples + more.samples,
            self.signal + more.signal,
            {name: noise + more.noise[name] for name, noise in self.noise.items()},
            {name: count + more.changed[name] for name, count in self.changed.items()},
        )

    def __or__(self, others: VariantErrors) -> VariantErrors:
        """Return the sums of these variants and of other ones, over the same samples."""
        return replace(self, noise={**self.noise, **others.noise}, changed={**self.changed, **others.changed})

    def errors(self, variant: str) -> Floats:
        """Return the noise power of a variant over the signal power of each part; infinite if it is not a number.

        It is 0 for a part that is zero throughout: there is nothing to compare with.
        """
        noise = self.noise[variant]
        ratios = np.divide(noise, self.signal, out=np.zeros_like(noise), where=self.signal > 0)
        return np.where(np.isfinite(ratios), ratios, np.inf)

    def error(self, variant: str) -> float:
        return float(self.errors(variant).max(initial=0.0))

    def mean_error(self, variant: str) -> float:
        """Return the mean over the parts that are not zero throughout."""
        there = self.signal > 0
        return float(self.errors(variant)[there].mean()) if there.any() else 0.0


Parts = Mapping[str, Sequence[OutputPart]]  # what outputs are joined from, by name. One that is not in it is one thing.

_WHOLE = (None,)


def part_names(model: ir.Model, parts: Parts) -> list[str]:
    """Return the name of each entry of the sums; "" for a single output that has no parts."""
    outputs = [str(value.name) for value in model.graph.outputs if value.dtype == ir.DataType.FLOAT]
    several = len(outputs) > 1
    names = []
    for output in outputs:
        of = f" of '{output}'" if several else ""
        names += [f"'{part.label}'{of}" for part in parts.get(output, ())] or [f"'{output}'" if several else ""]
    return names


class VariantComparison:
    """Variants of a base against the float model, on one sample after another, in any number of threads."""

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        base: Variant,
        variants: Sequence[Variant],
        parts: Parts,
        memory: int = 1 << 30,
        probe: Probe | None = None,
    ) -> None:
        """Prepare to run `variants` of `base`, with about `memory` bytes for their values.

        `probe` is an existing one of the float model, to reuse its sessions.
        """
        self._float = Probe(model, plan.layout) if probe is None else probe
        self._varied = self._float if base is UNCHANGED else Probe(model, plan.layout, base)
        self._variants, self._memory = variants, memory
        self._together: int | None = None
        self._lock = threading.Lock()
        types = {str(value.name): value.dtype for value in model.graph.outputs}
        self._parts = [
            (self._float.outputs.index(name), part)
            for name, dtype in types.items()
            if dtype == ir.DataType.FLOAT
            for part in parts.get(name) or _WHOLE
        ]
        if not self._parts:
            raise ModelError("The model has no output of float numbers at which errors could be measured.")
        first = model.graph.outputs[0]
        self._scores = self._float.outputs.index(str(first.name)) if looks_like_scores(first) else None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        model: ir.Model,
        plan: Plan,
        units: Sequence[QuantizedUnit],
        parts: Parts,
        memory: int,
    ) -> VariantComparison:
        whole = all_quantized(EVERYTHING, units)
        if experiment == "left float":
            return cls(model, plan, whole, list(left_float(units)), parts, memory)
        return cls(model, plan, UNCHANGED, [whole, *(unit.variant for unit in units)], parts, memory)

    def __call__(self, pending: PendingSample) -> VariantErrors:
        sample = pending.load()
        answers = self._answers(sample)
        itself = next(answers)
        expected = itself[1] if self._varied is self._float else self._float(sample)[ITSELF]
        truth = [part.astype(np.float64) for part in self._of_parts(expected)]
        noise: dict[str, Floats] = {}
        changed: dict[str, int] = {}
        for name, found in chain([itself], answers):
            # The shape of an output may depend on the data. An output of another shape is all error.
            pairs = zip(truth, self._of_parts(found), strict=True)
            errors = [y - x if y.shape == x.shape else x for x, y in pairs]
            noise[name] = np.array([np.vdot(error, error) for error in errors])
            changed[name] = self._count_changed(expected, found)
        return VariantErrors(pending.size, np.array([np.vdot(x, x) for x in truth]), noise, changed)

    def _of_parts(self, outputs: Sequence[Any]) -> Iterator[Any]:
        for index, part in self._parts:
            whole = as_array(self._float.outputs[index], outputs[index])
            yield whole if part is None else part.of(whole)

    def _answers(self, sample: Sample) -> Iterator[tuple[str, list[Any]]]:
        """Yield the outputs of the base, then of the variants; as many are run together as fit into memory."""
        together = self._fitting(sample)
        for start in range(0, max(len(self._variants), 1), together):
            answers = self._varied(sample, self._variants[start : start + together])
            itself = answers.pop(ITSELF)
            if start == 0:
                yield ITSELF, itself
            yield from answers.items()

    def _fitting(self, sample: Sample) -> int:
        """Return how many variants fit into memory: measured on the first sample, for all."""
        with self._lock:
            if self._together is None:
                self._together = max(1, self._memory // max(self._varied.footprint(sample), 1))
            return self._together

    def _count_changed(self, expected: Sequence[Any], found: Sequence[Any]) -> int:
        if self._scores is None:
            return 0
        before, after = expected[self._scores], found[self._scores]
        if before.shape != after.shape:
            return len(before)  # rows that depend on the data: whose answer is whose is not known
        return int((before.argmax(-1) != after.argmax(-1)).sum())
