"""Find the units of a model that can be quantized alone: the constants of each layer together, and each activation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import onnx_ir as ir

from detent.execute.probe import UNCHANGED, Array, Variant
from detent.graph.values import constant, values_of
from detent.plan.layout import Role, site_inputs
from detent.plan.plan import Plan
from detent.results.searched import ErrorSource


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
