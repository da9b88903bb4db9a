"""Rounding to bfloat16 inside a float32 model: of weights as they are stored, of activations by a pair of Casts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.convert.narrowing import narrow
from detent.convert.slots import Slot, input_slot
from detent.convert.step import Notes
from detent.graph.names import Names
from detent.prepare.base import main_opset

_BFLOAT16 = ir.DataType.BFLOAT16


def round_weights(model: ir.Model, notes: Notes, *, clip: bool) -> None:
    """Round every float32 initializer that is read as data to bfloat16, and store it as float32."""
    opset = main_opset(model)
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype != ir.DataType.FLOAT or not _data_uses(value, opset):
                continue
            old = tensor.numpy()
            new = narrow(str(value.name), old, _BFLOAT16, clip=clip).astype(np.float32)
            if not np.array_equal(old, new, equal_nan=True):
                value.const_value = ir.Tensor(new, name=tensor.name)
                notes.changed(value, "rounded to bfloat16")


def add_cast_pairs(model: ir.Model, notes: Notes, *, clip: bool) -> None:
    """Store weights as bfloat16 behind a Cast, and put a pair of Casts behind every other float32 value."""
    work = _CastPairs(model, notes)
    for graph in tuple(model.graphs()):
        first = next(iter(graph), None)
        outputs = [value for node in graph for value in node.outputs if not _is_rounded(node)]
        for value in tuple(graph.initializers.values()):
            if first is not None and value.dtype == ir.DataType.FLOAT and not value.is_graph_input():
                work.weight(graph, first, value, clip=clip)
        sources = graph.inputs if graph is model.graph else ()
        for value in (*sources, *outputs):
            if first is not None and value.dtype == ir.DataType.FLOAT and value.name:
                work.activation(graph, first, value)


class _CastPairs:
    def __init__(self, model: ir.Model, notes: Notes) -> None:
        self._opset = main_opset(model)
        self._names = Names(model)
        self._notes = notes

    def weight(self, graph: ir.Graph, first: ir.Node, value: ir.Value, *, clip: bool) -> None:
        """A constant as bfloat16 behind a Cast; inputs whose type is fixed keep the float32 one."""
        uses, tensor = _data_uses(value, self._opset), value.const_value
        if not uses or tensor is None:
            return
        name = str(value.name)
        stored = ir.Tensor(narrow(name, tensor.numpy(), _BFLOAT16, clip=clip))
        narrowed = ir.Value(
            name=self._names.fresh(f"{name}_bfloat16"),
            type=ir.TensorType(_BFLOAT16),
            shape=value.shape,
            const_value=stored,
        )
        graph.register_initializer(narrowed)
        cast = self._cast(narrowed, ir.DataType.FLOAT, f"{name}_float", value.shape)
        graph.insert_before(first, [cast])
        for node, index in uses:
            node.replace_input_with(index, cast.outputs[0])
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
        self._notes.changed(value, "constant stored as bfloat16, behind a Cast")

    def activation(self, graph: ir.Graph, first: ir.Node, value: ir.Value) -> None:
        """A pair of Casts behind a value; the name of a graph output goes to what the pair makes."""
        uses = _data_uses(value, self._opset)
        is_output = value.is_graph_output() and not value.is_graph_input()
        if not uses and not is_output:
            return
        name = str(value.name)
        down = self._cast(value, _BFLOAT16, f"{name}_bfloat16", value.shape)
        up = self._cast(down.outputs[0], ir.DataType.FLOAT, f"{name}_rounded", value.shape)
        for node, index in uses:
            node.replace_input_with(index, up.outputs[0])
        producer = value.producer()
        if producer is None:
            graph.insert_before(first, [down, up])
        else:
            graph.insert_after(producer, [down, up])
        if is_output:
            assert value.graph is not None
            outputs = value.graph.outputs
            outputs[list(outputs).index(value)] = up.outputs[0]
            value.name, up.outputs[0].name = up.outputs[0].name, name
        self._notes.changed(name, "rounded to bfloat16 by a pair of Casts")

    def _cast(self, value: ir.Value, target: ir.DataType, name: str, shape: ir.Shape | None) -> ir.Node:
        node = ir.node("Cast", [value], {"to": int(target)}, name=self._names.fresh(f"{name}_Cast"))
        result = node.outputs[0]
        result.name, result.type, result.shape = self._names.fresh(name), ir.TensorType(target), shape
        return node


def _data_uses(value: ir.Value, opset: int) -> list[tuple[ir.Node, int]]:
    """Where a value is read as data: not as a parameter that has to be float32, nor to be cast to bfloat16 anyway."""
    return [
        (use.node, use.idx)
        for use in value.uses()
        if input_slot(use.node, use.idx, opset) is Slot.FREE and not _casts_down(use.node)
    ]


def _casts_down(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) == _BFLOAT16


def _is_rounded(node: ir.Node) -> bool:
    """Whether a node is a Cast from bfloat16: what it makes is rounded already."""
    source = node.inputs[0] if node.op_type == "Cast" and node.inputs else None
    return source is not None and source.dtype == _BFLOAT16
