"""A quantized model back to float.

A constant behind a DequantizeLinear becomes the float numbers that its codes stand for: the weights stay those that
the quantized model computes with. A pair of QuantizeLinear and DequantizeLinear with the same parameters, or a fused
node, is only rounding and saturation of an activation: it is removed. So is a pair of Casts through bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.domains import settle_domains
from detent.convert.edits import original_name, remove_with_sources, substitute
from detent.convert.fused import evaluate_fused
from detent.convert.linear import Linear, linear_of
from detent.convert.operators import (
    computes_on_codes,
    dequantize_family,
    is_block_format,
    is_fix_neuron,
    quantize_family,
)
from detent.convert.step import Notes, Step
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant, is_standard, is_unused


@dataclass(frozen=True)
class ToFloat(Step):
    """Remove quantization. Operators on codes (QLinearConv and the like) are declined."""

    nothing: ClassVar[str] = "it is not quantized (no Q/DQ, FixNeuron, block format or bfloat16 Cast pair)."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        work = _ToFloat(model, notes)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if node.graph is not None:  # not removed with an earlier one
                    work.convert(graph, node)
            work.remove_quantizers(graph)
        settle_domains(model)
        return model


class _ToFloat:
    def __init__(self, model: ir.Model, notes: Notes) -> None:
        self._model = model
        self._notes = notes
        self._names = Names(model)

    def convert(self, graph: ir.Graph, node: ir.Node) -> None:
        """Convert one node, if it is one that dequantizes."""
        if dequantize_family(node):
            self._dequantize(graph, node)
        elif is_fix_neuron(node) or is_block_format(node):
            self._fused(graph, node)
        elif is_standard(node, "Cast") and node.attributes.get_int("to", 0) == ir.DataType.FLOAT:
            self._cast(graph, node)
        elif computes_on_codes(node):
            self._notes.decline(node, f"{node.op_type} computes on codes; only Q/DQ models can be converted")

    def remove_quantizers(self, graph: ir.Graph) -> None:
        """Remove what nothing reads any more; what else reads codes keeps its QuantizeLinear."""
        for node in tuple(graph):
            if not quantize_family(node) and not _to_bfloat16(node):
                continue
            if is_unused(node.outputs[0]):
                remove_with_sources(graph, node)
            elif quantize_family(node):
                self._notes.decline(node, f"its codes are read by {_readers(node.outputs[0])}")

    def _dequantize(self, graph: ir.Graph, node: ir.Node) -> None:
        linear, codes = linear_of(node), node.inputs[0]
        if linear is None or codes is None:
            self._notes.decline(node, "its scale or zero point is not constant")
            return
        stored = constant(codes)
        if stored is not None:
            self._store(graph, node, str(codes.name), linear.decode(stored))
            return
        quantize = codes.producer()
        if quantize is None or not quantize_family(quantize):
            kind = "are a graph input" if quantize is None else f"are computed by {quantize.op_type}"
            self._notes.decline(node, f"its codes {kind}")
            return
        self._pair(graph, node, linear, quantize)

    def _pair(self, graph: ir.Graph, node: ir.Node, linear: Linear, quantize: ir.Node) -> None:
        other, source = linear_of(quantize), quantize.inputs[0]
        if other is None or source is None or not linear.same_as(other):
            self._notes.decline(node, f"it and '{quantize.name}' have different scales or zero points: they rescale")
            return
        array = constant(source)
        if array is not None:
            self._store(graph, node, str(source.name), linear.decode(linear.encode(array)))
        else:
            substitute(graph, node, source, self._names)
            self._notes.changed(str(source.name), "no longer rounded (Q/DQ pair removed)")

    def _fused(self, graph: ir.Graph, node: ir.Node) -> None:
        source = node.inputs[0]
        if source is None:
            return
        if constant(source) is not None:
            self._store(graph, node, str(source.name), evaluate_fused(self._model, node))
        else:
            substitute(graph, node, source, self._names)
            self._notes.changed(str(source.name), f"no longer rounded ({node.op_type} removed)")

    def _cast(self, graph: ir.Graph, node: ir.Node) -> None:
        """A Cast to float: of a bfloat16 constant, or the second of a pair."""
        inner = node.inputs[0]
        array = constant(inner)
        if inner is not None and array is not None and array.dtype == ir.DataType.BFLOAT16.numpy():
            self._store(graph, node, str(inner.name), array.astype(np.float32))
            return
        first = None if inner is None else inner.producer()
        if first is None or not _to_bfloat16(first) or first.inputs[0] is None:
            return
        source = first.inputs[0]
        if source.dtype != ir.DataType.FLOAT:
            self._notes.decline(node, f"'{source.name}' is not known to be float32")
            return
        array = constant(source)
        if array is not None:
            self._store(graph, node, str(source.name), array.astype(ir.DataType.BFLOAT16.numpy()).astype(np.float32))
            return
        substitute(graph, node, source, self._names)
        self._notes.changed(str(source.name), "no longer rounded (Cast pair removed)")

    def _store(self, graph: ir.Graph, node: ir.Node, name: str, array: npt.NDArray[Any]) -> None:
        value = add_initializer(graph, original_name(name, self._names), array)
        substitute(graph, node, value, self._names)
        self._notes.changed(name, f"constant stored as {value.dtype}")


def _to_bfloat16(node: ir.Node) -> bool:
    return is_standard(node, "Cast") and node.attributes.get_int("to", 0) == ir.DataType.BFLOAT16


def _readers(value: ir.Value) -> str:
    kinds = sorted(
        {use.node.op_type for use in value.uses()} | ({"a graph output"} if value.is_graph_output() else set())
    )
    return ", ".join(kinds)
