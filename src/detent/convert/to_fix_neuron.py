"""Q/DQ pairs to FixNeuron, one node that rounds to codes and back.

FixNeuron has one scale and a zero point of int8, and codes of 8 or 16 bits. Unsigned codes are shifted by half their
range, which leaves the numbers that they stand for. A constant behind DQ becomes the float numbers of its codes behind
a FixNeuron: rounding them again changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from detent.convert.domains import settle_domains
from detent.convert.edits import original_name, remove_with_sources, substitute
from detent.convert.linear import Linear, code_range, linear_of
from detent.convert.operators import dequantize_family, quantize_family
from detent.convert.step import Notes, Step
from detent.emit.functions import FIX_NEURON
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant, is_unused

_WIDTHS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}


@dataclass(frozen=True)
class ToFixNeuron(Step):
    """Pairs with one scale and 8 or 16 bits; others are declined."""

    nothing: ClassVar[str] = "it has no Q/DQ pair of 8 or 16 bits with one scale."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        names = Names(model)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if dequantize_family(node):
                    _convert(graph, node, names, notes)
            for node in tuple(graph):
                if quantize_family(node) and is_unused(node.outputs[0]):
                    remove_with_sources(graph, node)
        settle_domains(model)
        return model


def _convert(graph: ir.Graph, node: ir.Node, names: Names, notes: Notes) -> None:
    linear, codes = linear_of(node), node.inputs[0]
    if linear is None or codes is None:
        notes.decline(node, "its scale or zero point is not constant")
        return
    reason = _why_not(linear)
    if reason is not None:
        notes.decline(node, reason)
        return
    stored, quantize = constant(codes), codes.producer()
    if stored is not None:
        source = add_initializer(graph, original_name(str(codes.name), names), linear.decode(stored))
    else:
        other = linear_of(quantize) if quantize is not None and quantize_family(quantize) else None
        if quantize is None or other is None or not linear.same_as(other) or quantize.inputs[0] is None:
            notes.decline(node, "its codes do not come from a QuantizeLinear with the same parameters")
            return
        source = quantize.inputs[0]
    _insert(graph, node, source, linear, names)
    notes.changed(node, "became FixNeuron")


def _why_not(linear: Linear) -> str | None:
    if linear.dtype.name not in _WIDTHS:
        return f"FixNeuron has no codes of type {linear.dtype.name}"
    if not linear.per_tensor:
        return "FixNeuron has one scale, not one for each channel"
    return None if abs(_zero_point(linear)) <= code_range(np.dtype(np.int8))[1] else "its zero point does not fit int8"


def _zero_point(linear: Linear) -> int:
    """The zero point of signed codes."""
    low, _ = code_range(linear.dtype)
    return int(linear.zero_point.reshape(-1)[0]) - (0 if low else 1 << (_WIDTHS[linear.dtype.name] - 1))


def _insert(graph: ir.Graph, node: ir.Node, source: ir.Value, linear: Linear, names: Names) -> None:
    base = str(source.name)
    scale = add_initializer(graph, names.fresh(f"{base}_scale"), linear.scale.reshape(()))
    zero_point = np.array(_zero_point(linear), np.int8)
    fused = ir.node(
        FIX_NEURON.name,
        [source, scale, add_initializer(graph, names.fresh(f"{base}_zero_point"), zero_point)],
        {"bit_width": str(_WIDTHS[linear.dtype.name])},
        domain=FIX_NEURON.domain,
        name=names.fresh(f"{base}_FixNeuron"),
    )
    result = fused.outputs[0]
    result.name = names.fresh(f"{base}_FixNeuron_Output")
    result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
    graph.insert_before(node, [fused])
    substitute(graph, node, result, names)
