"""The things of a model that can be quantized alone: the constants of each layer together, and each activation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from detent.execute.probe import Array, Variant
from detent.graph.values import constant, values_of
from detent.plan.layout import Role, site_inputs
from detent.plan.plan import Plan
from detent.results.searched import ErrorSource


@dataclass(frozen=True, eq=False)
class QuantizedUnit:
    """What is quantized alone, as a variant of the float model, and the layer that it belongs to.

    `touches` are the layers that compute or read it: only where all of these are left float, it is. `original` are the
    numbers of its constants as they were. `elements` is how many numbers it has for one sample, and
    `operations` how many products its layer computes with them; of an activation, as many as it has numbers. What only
    the data tells, such as the size of an image of any size, counts as 1.
    """

    name: str
    layer: str
    variant: Variant
    touches: frozenset[str]
    original: Mapping[str, Array] = field(default_factory=dict)
    elements: int = 0
    operations: int = 0

    @property
    def is_weight(self) -> bool:
        """Whether it is the constants of a layer."""
        return bool(self.variant.constants)

    @property
    def source(self) -> ErrorSource:
        """What results say of it."""
        constants, activations = tuple(self.variant.constants), tuple(self.variant.rounding)
        return ErrorSource(self.name, self.layer, self.touches, constants, activations, self.elements, self.operations)


def quantized_units(model: ir.Model, plan: Plan) -> list[QuantizedUnit]:
    """All things, with the parameters of the plan: the constants first, then the activations, in graph order."""
    return [*_constants(model, plan), *_activations(model, plan)]


def all_quantized(name: str, things: Sequence[QuantizedUnit]) -> Variant:
    """The variant that has all things quantized."""
    constants = {key: array for thing in things for key, array in thing.variant.constants.items()}
    return Variant(name, constants, {key: params for each in things for key, params in each.variant.rounding.items()})


def left_float(things: Sequence[QuantizedUnit]) -> Iterator[Variant]:
    """For each layer, the variant of the quantized model that leaves it float; its name is the layer's."""
    for layer in dict.fromkeys(thing.layer for thing in things):
        freed = [thing for thing in things if thing.touches == {layer}]
        if freed:
            constants = {key: array for thing in freed for key, array in thing.original.items()}
            yield Variant(layer, constants, {key: None for thing in freed for key in thing.variant.rounding})


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
        stored = {name: _stored(plan, name, array) for name, array in arrays.items()}
        elements = sum(array.size for array in arrays.values())
        weights = max(arrays.values(), key=lambda array: array.size)
        yield QuantizedUnit(
            name=f"weights of {layer}",
            layer=layer,
            variant=Variant(f"weights of {layer}", stored),
            touches=frozenset(touches[layer]),
            original=arrays,
            elements=elements,
            operations=weights.size * _positions(output[layer]),
        )


def _stored(plan: Plan, name: str, array: Array) -> Array:
    numbers = plan.refined.get(name, array)
    return plan.of(name).stored(numbers) if name in plan.layout.sites else np.asarray(numbers)


def _positions(value: ir.Value) -> int:
    """How often a weight is used for one sample: the places of a feature map, or the rows of a matrix."""
    dims = [dim if isinstance(dim, int) else 1 for dim in value.shape or ()]
    producer = value.producer()
    maps = producer is not None and producer.op_type in ("Conv", "ConvTranspose")
    return math.prod(dims[2:] if maps else dims[1:-1])


def _activations(model: ir.Model, plan: Plan) -> Iterator[QuantizedUnit]:
    values = {str(value.name): value for value in values_of(model.graph)}
    for site in plan.layout.of_role(Role.ACTIVATION):
        value = values[site.value]
        nodes = [value.producer(), *(node for node, index in value.uses() if index in site_inputs(node))]
        quantized = [node for node in nodes if node is not None and plan.layout.quantizes(node)]
        dims = [dim if isinstance(dim, int) else 1 for dim in value.shape or ()]
        elements = math.prod(dims[1:])
        yield QuantizedUnit(
            name=f"activation {site.value}",
            layer=site.node,
            variant=Variant(f"activation {site.value}", rounding={site.value: plan.of(site.value)}),
            touches=frozenset(str(plan.layout.layer_of(node).name) for node in quantized),
            elements=elements,
            operations=elements,
        )
