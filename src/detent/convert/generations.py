"""Standard Q/DQ to the operators of the reference tools' two generations, and from one generation to the other.

The operators bring model-local functions along, so that the result runs on plain onnxruntime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.convert.domains import settle_domains
from detent.convert.linear import linear_of
from detent.convert.operators import EXTENDED, Family, dequantize_family, is_fix_neuron, quantize_family, renamed
from detent.convert.rewriting import retarget, split_fix_neuron
from detent.convert.step import Notes, Step
from detent.graph.names import Names

_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16")


@dataclass(frozen=True)
class ToGeneration(Step):
    """Q/DQ of any domain and FixNeuron become the Q/DQ of one generation; other operators of the tools are renamed."""

    family: Family = EXTENDED
    nothing: ClassVar[str] = "it has no Q/DQ or FixNeuron of another kind."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        names = Names(model)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if is_fix_neuron(node):
                    split_fix_neuron(graph, node, self.family, names)
                    notes.changed(node, f"FixNeuron became {self.family.quantize} and {self.family.dequantize}")
                elif quantize_family(node) or dequantize_family(node):
                    self._convert(graph, node, names, notes)
                elif (name := renamed(node, self.family)) is not None:
                    notes.changed(node, f"{node.domain}::{node.op_type} became {self.family.domain}::{name}")
                    node.op_type, node.domain, node.overload = name, self.family.domain, ""
        settle_domains(model)
        return model

    def _convert(self, graph: ir.Graph, node: ir.Node, names: Names, notes: Notes) -> None:
        linear = linear_of(node)
        if node.domain == self.family.domain:
            return
        if linear is None:
            notes.decline(node, "its scale or zero point is not constant")
        elif linear.dtype.name not in _TYPES:
            notes.decline(node, f"{self.family.quantize} does not hold {linear.dtype.name}")
        elif linear.block_size:
            notes.decline(node, f"{self.family.quantize} has no blocks along an axis")
        else:
            old = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            retarget(graph, node, self.family, linear, names)
            notes.changed(node, f"{old} became {node.op_type}")
