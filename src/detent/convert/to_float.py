"""Without quantization: the whole model back to float, or no rounding between chosen operators.

A constant behind a DequantizeLinear becomes the float numbers that its codes stand for: the weights stay those that
the quantized model computes with. A pair of QuantizeLinear and DequantizeLinear with the same parameters, or a fused
node, is only rounding and saturation of an activation: it is removed. So is a pair of Casts through bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.step import GraphEdit, NodeStep
from detent.errors import UsageError
from detent.graph.session import Runner
from detent.graph.values import Names, add_initializer, constant, is_standard, is_unused
from detent.qdq.families import (
    computes_on_codes,
    dequantize_family,
    is_block_format,
    is_fix_neuron,
    quantize_family,
)
from detent.qdq.functions import add_functions
from detent.qdq.reader import Dequantized, dequantized, params_of

Array = npt.NDArray[Any]
_BFLOAT16 = ir.DataType.BFLOAT16


@dataclass(frozen=True)
class ToFloat(NodeStep):
    """Remove quantization. Operators on codes (QLinearConv and the like) are declined."""

    nothing: ClassVar[str] = "it is not quantized (no Q/DQ, FixNeuron, block format or bfloat16 Cast pair)."

    def visit(self, edit: GraphEdit, node: ir.Node) -> None:
        """Convert a node that gives float numbers of codes."""
        read = dequantized(node)
        if read is not None:
            self._dequantize(edit, node, read)
        elif is_fix_neuron(node) or is_block_format(node):
            source = node.inputs[0]
            if source is not None:
                rounded = None if constant(source) is None else _evaluate(edit.model, node)
                _take_out(edit, node, source, rounded, f"{node.op_type} removed")
        elif is_standard(node, "Cast") and node.attributes.get_int("to", 0) == ir.DataType.FLOAT:
            self._cast(edit, node)
        elif computes_on_codes(node):
            edit.notes.decline(node, f"{node.op_type} computes on codes; only Q/DQ models can be converted")

    def clean_up(self, edit: GraphEdit) -> None:
        """Remove what nothing reads any more; a QuantizeLinear whose codes something else reads stays."""
        for node in tuple(edit.graph):
            quantizes = quantize_family(node) is not None
            if (quantizes or _casts_down(node)) and is_unused(node.outputs[0]):
                edit.remove(node)
            elif quantizes:
                edit.notes.decline(node, f"its codes are read by {_readers(node.outputs[0])}")

    def _dequantize(self, edit: GraphEdit, node: ir.Node, read: Dequantized) -> None:
        params, notes = read.params, edit.notes
        if params is None:
            notes.decline(node, "its scale or zero point is not constant")
        elif read.stored is not None:
            _store(edit, node, str(read.codes.name), params.decode(read.stored))
        elif read.quantize is None:
            producer = read.codes.producer()
            kind = "are a graph input" if producer is None else f"are computed by {producer.op_type}"
            notes.decline(node, f"its codes {kind}")
        elif read.source is None or not read.only_rounds:
            notes.decline(node, f"it and '{read.quantize.name}' have different scales or zero points: they rescale")
        else:
            array = constant(read.source)
            rounded = None if array is None else params.decode(params.encode(array))
            _take_out(edit, node, read.source, rounded, "Q/DQ pair removed")

    def _cast(self, edit: GraphEdit, node: ir.Node) -> None:
        """Take out a Cast to float: of a bfloat16 constant, or the second of a pair."""
        inner = node.inputs[0]
        array = constant(inner)
        if inner is not None and array is not None and array.dtype == _BFLOAT16.numpy():
            _store(edit, node, str(inner.name), array.astype(np.float32))
            return
        first = None if inner is None else inner.producer()
        if first is None or not _casts_down(first) or first.inputs[0] is None:
            return
        source = first.inputs[0]
        if source.dtype != ir.DataType.FLOAT:
            edit.notes.decline(node, f"'{source.name}' is not known to be float32")
            return
        array = constant(source)
        rounded = None if array is None else array.astype(_BFLOAT16.numpy()).astype(np.float32)
        _take_out(edit, node, source, rounded, "Cast pair removed")


def _take_out(edit: GraphEdit, node: ir.Node, source: ir.Value, rounded: Array | None, how: str) -> None:
    """Let readers of a rounded value read its source, or what that was rounded to if it is constant."""
    if rounded is not None:
        _store(edit, node, str(source.name), rounded)
        return
    edit.substitute(node, source)
    edit.notes.changed(str(source.name), f"no longer rounded ({how})")


def _store(edit: GraphEdit, node: ir.Node, name: str, array: Array) -> None:
    value = add_initializer(edit.graph, edit.original_name(name), array)
    edit.substitute(node, value)
    edit.notes.changed(name, f"constant stored as {value.dtype}")


def _casts_down(node: ir.Node) -> bool:
    return is_standard(node, "Cast") and node.attributes.get_int("to", 0) == _BFLOAT16


def _readers(value: ir.Value) -> str:
    kinds = {use.node.op_type for use in value.uses()} | ({"a graph output"} if value.is_graph_output() else set())
    return ", ".join(sorted(kinds))


def _evaluate(model: ir.Model, node: ir.Node) -> Array:
    """Return what a fused node makes of its constant input. A block format is computed by its function."""
    source = constant(node.inputs[0])
    assert source is not None
    params = params_of(node) if is_fix_neuron(node) else None
    if params is not None:
        return params.decode(params.encode(source))
    feed = ir.Value(
        name=Names(model).fresh("fused_input"), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(source.shape)
    )
    alone = ir.Node(node.domain, node.op_type, [feed], list(node.attributes.values()), overload=node.overload)
    result = alone.outputs[0]
    result.name, result.type, result.shape = "fused_output", feed.type, feed.shape
    graph = ir.Graph([feed], [result], nodes=[alone], opset_imports=dict(model.opset_imports), name="alone")
    single = ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))
    add_functions(single)
    return Runner(single)({str(feed.name): source.astype(np.float32)})[0]


@dataclass(frozen=True)
class WithoutQdqBetween(NodeStep):
    """Remove Q/DQ between operators that a device computes as one: `pairs` as `Conv/Relu+Mul/Add`.

    On a path A -> QuantizeLinear -> DequantizeLinear -> B, B reads what A makes, without rounding in between. Others
    that read the rounded value still do.
    """

    pairs: str = ""
    nothing: ClassVar[str] = "no Q/DQ stands between such operators."

    def visit(self, edit: GraphEdit, node: ir.Node) -> None:
        """Let a consumer read what its producer makes."""
        pairs = set(_parse_pairs(self.pairs))
        for index, value in enumerate(node.inputs):
            source = _unrounded(value)
            producer = None if source is None else source.producer()
            if source is None or producer is None or (producer.op_type, node.op_type) not in pairs:
                continue
            node.replace_input_with(index, source)
            edit.notes.changed(source, f"not rounded between {producer.op_type} and {node.op_type}")

    def clean_up(self, edit: GraphEdit) -> None:
        """Remove rounding that nothing reads any more."""
        for node in reversed(tuple(edit.graph)):
            rounds = quantize_family(node) or dequantize_family(node) or is_fix_neuron(node)
            if rounds and is_unused(node.outputs[0]):
                edit.remove(node)


def _parse_pairs(text: str) -> Iterator[tuple[str, str]]:
    if not text:
        raise UsageError("without-qdq-between needs pairs of operators: without-qdq-between:pairs=Conv/Relu+Mul/Add.")
    for pair in text.split("+"):
        producer, separator, consumer = pair.partition("/")
        if not producer or not separator or not consumer or "/" in consumer:
            raise UsageError(f"'{pair}' is not a pair of operators; expected PRODUCER/CONSUMER, such as Conv/Relu.")
        yield producer, consumer


def _unrounded(value: ir.Value | None) -> ir.Value | None:
    """Return what a value was before it was rounded; None if it is not rounded, or rescaled on the way."""
    node = None if value is None else value.producer()
    if node is not None and is_fix_neuron(node):
        return node.inputs[0]
    read = dequantized(node)
    return read.source if read is not None and read.only_rounds else None
