"""What is looked at: a float network, the device, and which of its values have codes (or will have).

Multiplications that are no part of the network: they say by how much the device's own result is off.

An average or a HardSigmoid that the device computes with k / 2^m in the place of a fraction is followed, in the file,
by a Mul with a constant close to 1, which has no codes of its own. The device has no such node.

A float model for a device: what will become of it once it is quantized for it.

The model is prepared and laid out as `detent quantize` does it, with the recipe of the device; nothing is calibrated.
What is wrong with the model as it is, and not any more after that, is a note that names the step that mends it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from detent.devices.device import Device
from detent.errors import DetentError
from detent.graph.load import MINIMUM_OPSET
from detent.graph.opset import raise_opset
from detent.graph.values import (
    constant_scalar,
    is_constant,
    is_standard,
    remove_node,
    static_shape,
    take_over,
    tensor_of,
)
from detent.plan.layout import Layout, bias_input, data_inputs
from detent.plan.mixed import arrange
from detent.plan.operators import is_fused_edge, operator_of
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.prepare.base import Change
from detent.qdq.families import OperatorName
from detent.qdq.float_network import ValueCodes
from detent.recipe.file import find_recipe
from detent.recipe.recipe import FUSABLE_ACTIVATIONS
from detent.results.checked import MODEL, Finding

_NEUTRAL = ("Identity", "Dropout")
"""Gone before anything is computed: a conversion between codes, or nothing at all."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A float network for a device.

    `coded` are the values that have codes. Where the model is quantized, `codes` says which; where it is not yet,
    `reasons` says why a node will stay float. `written` are the operators on codes that nodes are in the file.
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
        """The nodes whose results are constants, which are computed once and not on the device."""
        found: set[ir.Node] = set()
        for node in self.model.graph:
            present = [value for value in node.inputs if value is not None]
            known = is_standard(node, "Shape", "Size") and all(is_fixed(value) for value in present)
            if known or all(tensor_of(value) is not None or value.producer() in found for value in present):
                found.add(node)
        return frozenset(found)

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """The nodes that something has to compute, in topological order."""
        return [node for node in self.model.graph if node not in self.folded and not is_neutral(node)]

    def is_coded(self, value: ir.Value) -> bool:
        """Whether a value has codes, or only moves values that have."""
        if str(value.name) in self.coded:
            return True
        producer = value.producer()
        if producer is None or not (operator_of(producer).moves_data or is_neutral(producer)):
            return False
        source = producer.inputs[0] if producer.inputs else None
        return source is not None and self.is_coded(source)

    def uncoded(self, node: ir.Node) -> Iterator[tuple[str, ir.Value]]:
        """The float data of a node that has no codes, with what it is to the node; fused edges need none."""
        for value in data_inputs(node):
            if not self.is_coded(value) and not _is_inside(value, node) and value.producer() not in self.folded:
                yield ("constant" if is_constant(value) else "input"), value
        for value in node.outputs:
            if not value.name or value.dtype != ir.DataType.FLOAT or self.is_coded(value):
                continue
            consumers = value.consumers()
            if len(consumers) != 1 or value.is_graph_output() or not _is_inside(value, consumers[0]):
                yield "result", value

    def roles(self, node: ir.Node) -> Iterator[tuple[str, ir.Value, ValueCodes]]:
        """The values around a node that have codes: activations, weights and the bias."""
        bias = bias_input(node)
        for value in (*node.inputs, *node.outputs):
            codes = None if value is None else self.codes.get(str(value.name))
            if value is None or codes is None:
                continue
            role = "biases" if value is bias else "weights" if is_constant(value) else "activations"
            yield role, value, codes


def is_neutral(node: ir.Node) -> bool:
    """Whether a node computes nothing."""
    return is_standard(node, *_NEUTRAL)


def _is_inside(value: ir.Value, consumer: ir.Node) -> bool:
    """Whether a value exists only between two nodes that the device computes at once."""
    producer = value.producer()
    alone = producer is not None and len(value.uses()) == 1 and not value.is_graph_output()
    return (
        alone
        and producer is not None
        and consumer.inputs[0] is value
        and is_fused_edge(producer, consumer, FUSABLE_ACTIVATIONS)
    )


def is_fixed(value: ir.Value) -> bool:
    """Whether every size of a value is known."""
    shape = static_shape(value)
    return shape is not None and None not in shape


_SIMULATED = ("AveragePool", "GlobalAveragePool", "HardSigmoid", "ReduceMean")
_CLOSE = 0.05


def drop_device_factors(model: ir.Model, coded: Collection[str]) -> None:
    """Take these multiplications out of a model, in place; `coded` are the values with codes."""
    for node in tuple(model.graph):
        source = node.inputs[0] if _is_factor(node, coded) else None
        if source is not None:
            take_over(node.outputs[0], source)  # under the product's name, which is the one that has codes
            remove_node(model.graph, node)


def _is_factor(node: ir.Node, coded: Collection[str]) -> bool:
    if not is_standard(node, "Mul"):
        return False
    source, factor = node.inputs[0], node.inputs[1]
    if source is None or factor is None or str(factor.name) in coded or str(source.name) in coded:
        return False
    producer, number = source.producer(), constant_scalar(node, 1)
    close = number is not None and abs(number - 1.0) < _CLOSE
    return close and producer is not None and is_standard(producer, *_SIMULATED) and len(source.uses()) == 1


ANNOTATIONS = ("InferShapes",)


def prepared_subject(model: ir.Model, device: Device, source: str) -> tuple[Subject, list[Change], list[Finding]]:
    """The model as it will be before it is calibrated, what was changed, and why that failed where it did.

    `model` is changed.
    """
    recipe = find_recipe(device.recipe)
    try:
        model = raise_opset(model, MINIMUM_OPSET, source)
        changes = prepare(model, default_passes(None, [make() for make in device.preparations], recipe.without))
        layout = arrange(model, Selection(), recipe)
        passes = [step(layout.quantizes) for step in device.substitutions]
        changes += prepare(model, passes)
    except DetentError as error:
        failed = Finding("error", MODEL, "", "it cannot be quantized", str(error), "see `detent quantize --dry-run`")
        return Subject(model, device, (), quantized=False), [], [failed]
    return laid_out(model, device, layout), changes, []


def laid_out(model: ir.Model, device: Device, layout: Layout) -> Subject:
    """A prepared float model with what will be quantized of it."""
    reasons = {name: each.reason for name, each in layout.decisions.items() if not each.quantized}
    return Subject(model, device, frozenset(layout.sites), reasons=reasons, quantized=False)


def mended(before: Sequence[Finding], after: Sequence[Finding], changes: Sequence[Change]) -> Iterator[Finding]:
    """The findings on the model as it is that are gone once it is prepared, as notes that say what mends them."""
    still = {(finding.node, finding.what) for finding in after}
    by: dict[str, str] = {}
    for change in changes:
        if change.by not in ANNOTATIONS:
            by[change.node] = change.by
    for finding in before:
        if finding.level != "note" and (finding.node, finding.what) not in still:
            step = f" ({by[finding.node]})" if finding.node in by else ""
            yield replace(finding, level="note", fix=f"`detent quantize` mends it{step}")
