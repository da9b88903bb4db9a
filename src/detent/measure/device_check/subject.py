"""What is looked at: a float network, the device, and which of its values have codes (or will have)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from detent.emit.functions import Operator
from detent.graph.values import is_constant, is_standard, static_shape, tensor_of
from detent.measure.reading import Codes
from detent.plan.layout import bias_input, data_inputs
from detent.plan.operators import is_fused_edge, operator_of
from detent.recipe import FUSABLE_ACTIVATIONS
from detent.targets.support import Device

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
    codes: Mapping[str, Codes] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    quantized: bool = True
    written: Mapping[str, Operator] = field(default_factory=dict)

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

    def roles(self, node: ir.Node) -> Iterator[tuple[str, ir.Value, Codes]]:
        """The values around a node that have codes: activations, weights and the bias."""
        bias = bias_input(node)
        for value in (*node.inputs, *node.outputs):
            codes = None if value is None else self.codes.get(str(value.name))
            if value is None or codes is None:
                continue
            role = "bias" if value is bias else "weights" if is_constant(value) else "activations"
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
