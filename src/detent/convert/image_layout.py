"""Images as channels-last graph inputs.

An input [N, C, H, W] becomes [N, H, W, C], and a Transpose behind it gives the graph what it had. The names of inputs
and outputs stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.convert.step import Notes, Step
from detent.graph.names import Names

_TO_NCHW = (0, 3, 1, 2)
_TO_NHWC = (0, 2, 3, 1)


@dataclass(frozen=True)
class ChannelsLast(Step):
    """Transpose every 4-D graph input; with `outputs`, every 4-D graph output as well."""

    outputs: bool = False
    nothing: ClassVar[str] = "no graph input has four dimensions."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Insert the Transposes."""
        names = Names(model)
        for index, value in enumerate(tuple(model.graph.inputs)):
            if value.shape is None or len(value.shape) != 4:
                notes.decline(value, "it does not have four dimensions")
                continue
            _transpose_input(model.graph, index, value, names)
            notes.changed(str(model.graph.inputs[index].name), "input is NHWC now, with a Transpose behind it")
        for index, value in enumerate(tuple(model.graph.outputs) if self.outputs else ()):
            if value.shape is None or len(value.shape) != 4:
                notes.decline(value, "it does not have four dimensions")
                continue
            _transpose_output(model.graph, index, value, names)
            notes.changed(str(model.graph.outputs[index].name), "output is NHWC now, with a Transpose before it")
        return model


def _permuted(shape: ir.Shape | None, order: tuple[int, ...]) -> ir.Shape:
    assert shape is not None
    return ir.Shape([shape[axis] for axis in order])


def _transpose_input(graph: ir.Graph, index: int, value: ir.Value, names: Names) -> None:
    name, was_output = str(value.name), value.is_graph_output()
    new = ir.Value(name=name, type=value.type, shape=_permuted(value.shape, _TO_NHWC))
    node = ir.node("Transpose", [new], {"perm": list(_TO_NCHW)}, name=names.fresh(f"{name}_to_NCHW"))
    inner = node.outputs[0]
    inner.type, inner.shape = value.type, value.shape
    value.replace_all_uses_with(inner, replace_graph_outputs=was_output)
    inner.name = names.fresh(f"{name}_NCHW")
    graph.inputs[index] = new
    first = next(iter(graph), None)
    if first is None:
        graph.append(node)
    else:
        graph.insert_before(first, [node])


def _transpose_output(graph: ir.Graph, index: int, value: ir.Value, names: Names) -> None:
    name = str(value.name)
    node = ir.node("Transpose", [value], {"perm": list(_TO_NHWC)}, name=names.fresh(f"{name}_to_NHWC"))
    outer = node.outputs[0]
    outer.type, outer.shape = value.type, _permuted(value.shape, _TO_NHWC)
    graph.append(node)
    graph.outputs[index] = outer
    if not value.is_graph_input():
        value.name = names.fresh(f"{name}_NCHW")
    outer.name = name
