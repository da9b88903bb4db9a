"""Q/DQ between operators that a device computes as one.

On a path A -> QuantizeLinear -> DequantizeLinear -> B, B reads what A makes, without rounding in between. Others that
read the rounded value still do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.convert.domains import settle_domains
from detent.convert.edits import remove_with_sources
from detent.convert.linear import linear_of
from detent.convert.operators import dequantize_family, is_fix_neuron, quantize_family
from detent.convert.step import Notes, Step
from detent.errors import UsageError
from detent.graph.values import is_unused


@dataclass(frozen=True)
class WithoutQdqBetween(Step):
    """Remove Q/DQ between operators: `pairs` as `Conv/Relu+Mul/Add`, producer before consumer."""

    pairs: str = ""
    nothing: ClassVar[str] = "no Q/DQ stands between such operators."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Look at every consumer in all graphs."""
        pairs = set(_parse(self.pairs))
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                for index, value in enumerate(node.inputs):
                    source = _unrounded(value)
                    producer = None if source is None else source.producer()
                    if source is None or producer is None or (producer.op_type, node.op_type) not in pairs:
                        continue
                    node.replace_input_with(index, source)
                    notes.changed(source, f"not rounded between {producer.op_type} and {node.op_type}")
            _remove_unused(graph)
        settle_domains(model)
        return model


def _parse(text: str) -> Iterator[tuple[str, str]]:
    if not text:
        raise UsageError("without-qdq-between needs pairs of operators: without-qdq-between:pairs=Conv/Relu+Mul/Add.")
    for pair in text.split("+"):
        producer, separator, consumer = pair.partition("/")
        if not producer or not separator or not consumer or "/" in consumer:
            raise UsageError(f"'{pair}' is no pair of operators; expected PRODUCER/CONSUMER, such as Conv/Relu.")
        yield producer, consumer


def _unrounded(value: ir.Value | None) -> ir.Value | None:
    """What a value was before it was rounded; None where it is not rounded, or rescaled on the way."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if is_fix_neuron(node):
        return node.inputs[0]
    codes = node.inputs[0] if dequantize_family(node) else None
    quantize = None if codes is None else codes.producer()
    if quantize is None or not quantize_family(quantize):
        return None
    there, back = linear_of(quantize), linear_of(node)
    return quantize.inputs[0] if there is not None and back is not None and there.same_as(back) else None


def _remove_unused(graph: ir.Graph) -> None:
    """Remove rounding that nothing reads any more."""
    for node in reversed(tuple(graph)):
        rounds = quantize_family(node) or dequantize_family(node) or is_fix_neuron(node)
        if rounds and is_unused(node.outputs[0]):
            remove_with_sources(graph, node)
