"""The view that the rules have of a model: a float network, the device, and which values have codes (or will have).

Before the check a model is changed in two ways. A shifting device computes averages and HardSigmoid with k / 2^m
instead of a fraction, and a file for it simulates the error by a Mul with a constant close to 1 that has no codes of
its own. The device has no such node, so it is taken out.

A float model is prepared and laid out as `detent quantize` does it, with the recipe of the device; nothing is
calibrated. A finding that this makes obsolete becomes a note, which names the step that fixes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from detent.devices.device import Device
from detent.errors import DetentError
from detent.graph import values
from detent.graph.load import MINIMUM_OPSET, raise_opset
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.numerics.interface import Params
from detent.plan.layout import Decision, Layout, Role, Site, bias_input, data_inputs
from detent.plan.mixed import arrange
from detent.plan.operators import is_fused_edge, operator_of
from detent.plan.plan import Plan
from detent.plan.postprocessing import find_postprocessing
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.prepare.base import Change
from detent.qdq.families import OperatorName
from detent.qdq.float_network import ValueCodes
from detent.recipe.file import find_recipe
from detent.recipe.recipe import FUSABLE_ACTIVATIONS
from detent.results.checked import MODEL, Finding

_NEUTRAL = ("Identity", "Dropout")  # at most a conversion between codes: a compiler removes them
_ROLES = {role.plural: role for role in Role}
_CORRECTED = ("AveragePool", "GlobalAveragePool", "HardSigmoid", "ReduceMean")
_CLOSE_TO_ONE = 0.05  # factors that make up for the device's approximations are this near to 1


@dataclass(frozen=True, eq=False)
class CheckedNetwork:
    """A float network for a device.

    `coded` are the values that have codes. If the model is quantized, `codes` says which codes; if not, `reasons` says
    why a node will stay float. `written` maps nodes to the operators on codes that the file has in their place.
    """

    model: ir.Model
    device: Device
    coded: Collection[str]
    codes: Mapping[str, ValueCodes] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    quantized: bool = True
    written: Mapping[str, OperatorName] = field(default_factory=dict)

    @cached_property
    def folded(self) -> frozenset[ir.Node]:
        """Return the nodes whose results are constants, which are computed once and not on the device."""
        found: set[ir.Node] = set()
        for node in self.model.graph:
            present = values.read_values(node)  # also what a Loop's body takes from outside
            known = values.is_standard(node, "Shape", "Size") and all(is_fixed(value) for value in present)
            if known or all(values.tensor_of(value) is not None or value.producer() in found for value in present):
                found.add(node)
        return frozenset(found)

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """Return the nodes that something has to compute, in topological order."""
        return [node for node in self.model.graph if node not in self.folded and not is_neutral(node)]

    @cached_property
    def open_inputs(self) -> list[ir.Value]:
        """Return the inputs with a size that is not fixed, other than the batch."""
        shapes = {value: values.static_shape(value) for value in self.model.graph.inputs}
        return [value for value, shape in shapes.items() if shape is None or None in shape[1:]]

    @cached_property
    def open_batch(self) -> list[ir.Value]:
        """Return the inputs whose batch alone is not fixed."""
        return [value for value in self.model.graph.inputs if not is_fixed(value) and value not in self.open_inputs]

    @cached_property
    def activation_types(self) -> frozenset[str]:
        return frozenset(
            codes.dtype for node in self.nodes for role, _, codes in self.roles(node) if role == "activations"
        )

    def is_coded(self, value: ir.Value) -> bool:
        """Return whether a value has codes, or is made by moving a value that has."""
        if str(value.name) in self.coded:
            return True
        producer = value.producer()
        if producer is None or not (operator_of(producer).moves_data or is_neutral(producer)):
            return False
        source = producer.inputs[0] if producer.inputs else None
        return source is not None and self.is_coded(source)

    def uncoded(self, node: ir.Node) -> Iterator[tuple[str, ir.Value]]:
        """Yield the float data around a node that has no codes, and its role there; data inside a fusion needs none."""
        for value in data_inputs(node):
            if not self.is_coded(value) and not _is_inside(value, node) and value.producer() not in self.folded:
                yield ("constant" if values.is_constant(value) else "input"), value
        for value in node.outputs:
            if not value.name or value.dtype != ir.DataType.FLOAT or self.is_coded(value):
                continue
            if not any(_is_inside(value, consumer) for consumer in value.consumers()):
                yield "result", value

    def roles(self, node: ir.Node) -> Iterator[tuple[str, ir.Value, ValueCodes]]:
        """Yield the values around a node that have codes: activations, weights and the bias."""
        bias = bias_input(node)
        for value in (*node.inputs, *node.outputs):
            codes = None if value is None else self.codes.get(str(value.name))
            if value is None or codes is None:
                continue
            role = "biases" if value is bias else "weights" if values.is_constant(value) else "activations"
            yield role, value, codes

    def plan(self) -> Plan:
        """Return a plan with the positions of a file; a node is quantized in it if all its tensors have one."""
        decisions: dict[str, Decision] = {}
        sites: dict[str, Site] = {}
        params: dict[str, Params] = {}
        for node in self.nodes:
            roles = list(self.roles(node))
            declines = operator_of(node).declines
            shifted = bool(roles) and all(codes.position is not None for _, _, codes in roles)
            shifted = shifted and (declines is None or declines(node) is None)
            decisions[str(node.name)] = Decision(str(node.name), node.op_type, shifted, "read from the file")
            for role, value, codes in roles:
                name = str(value.name)
                if codes.position is not None and name not in sites:
                    sites[name] = Site(name, _ROLES[role], str(node.name))
                    params[name] = QuantParams.at(IntegerFormat(codes.dtype, scale="power_of_two"), codes.position)
        return Plan(Layout(sites=sites, decisions=decisions), params)


def is_neutral(node: ir.Node) -> bool:
    return values.is_standard(node, *_NEUTRAL)


def _is_inside(value: ir.Value, consumer: ir.Node) -> bool:
    """Return whether a value exists only between two nodes that the device computes at once."""
    producer = value.producer()
    if producer is None or len(value.uses()) != 1 or value.is_graph_output():
        return False
    return consumer.inputs[0] is value and is_fused_edge(producer, consumer, FUSABLE_ACTIVATIONS)


def is_fixed(value: ir.Value) -> bool:
    """Return whether every size of a value is known."""
    shape = values.static_shape(value)
    return shape is not None and None not in shape


def drop_device_factors(model: ir.Model, coded: Collection[str]) -> None:
    """Remove the multiplications that simulate a device's constants, in place; `coded` are the values with codes."""
    for node in tuple(model.graph):
        source = node.inputs[0] if _is_factor(node, coded) else None
        if source is not None:
            values.take_over(node.outputs[0], source)  # under the product's name, which is the one that has codes
            values.remove_node(model.graph, node)


def _is_factor(node: ir.Node, coded: Collection[str]) -> bool:
    if not values.is_standard(node, "Mul"):
        return False
    source, factor = node.inputs[0], node.inputs[1]
    if source is None or factor is None or str(factor.name) in coded or str(source.name) in coded:
        return False
    producer, number = source.producer(), values.constant_scalar(node, 1)
    close = number is not None and abs(number - 1.0) < _CLOSE_TO_ONE
    return close and producer is not None and values.is_standard(producer, *_CORRECTED) and len(source.uses()) == 1


def quantized_later(model: ir.Model, device: Device, source: str) -> tuple[CheckedNetwork, list[Change], list[Finding]]:
    """Prepare a float model, in place, as quantizing does. Return it, the changes, and a finding if that failed."""
    recipe = find_recipe(device.recipe)
    try:
        model = raise_opset(model, MINIMUM_OPSET, source)
        passes = default_passes(None, [make() for make in device.preparations], recipe.without, fix_batch=True)
        changes = prepare(model, passes)
        layout = arrange(model, Selection(), recipe, tail=find_postprocessing(model.graph))
        steps = [step(layout) for step in device.substitutions]
        changes += prepare(model, steps)
        for step in steps:
            layout = step.laid_out(layout)
    except DetentError as error:
        failed = Finding("error", MODEL, "", "it cannot be quantized", str(error), "see `detent quantize --dry-run`")
        return CheckedNetwork(model, device, (), quantized=False), [], [failed]
    return laid_out(model, device, layout), changes, []


def laid_out(model: ir.Model, device: Device, layout: Layout) -> CheckedNetwork:
    """Return a prepared float model, with codes where the layout has sites."""
    reasons = {name: each.reason for name, each in layout.decisions.items() if not each.quantized}
    return CheckedNetwork(model, device, frozenset(layout.sites), reasons=reasons, quantized=False)


def mended(before: Sequence[Finding], after: Sequence[Finding], changes: Sequence[Change]) -> Iterator[Finding]:
    """Yield findings that are gone once the model is prepared, as notes that name the step that fixes them."""
    still = {(finding.node, finding.what) for finding in after}
    by: dict[str, str] = {}
    for change in changes:
        if change.by != "InferShapes":
            by[change.node] = change.by
    for finding in before:
        if finding.level != "note" and (finding.node, finding.what) not in still:
            step = f" ({by[finding.node]})" if finding.node in by else ""
            yield replace(finding, level="note", fix=f"`detent quantize` fixes it{step}")
