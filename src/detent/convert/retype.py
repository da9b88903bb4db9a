"""All float32 values of a model to another float type, with Casts where an operator or the interface needs float32.

Every value that was float32 becomes `target`, in bodies of If and Loop too. Then, for each node that stays in float32
and for each input that has to be float32, a Cast back stands before it (one for all readers in a graph) and a Cast to
`target` behind what it makes. So every reader finds the type that it expects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.convert.narrowing import narrow
from detent.convert.operators import is_quantizing
from detent.convert.slots import Slot, input_slot, output_slot, stays_float
from detent.convert.step import Notes
from detent.errors import ModelError
from detent.graph.names import Names
from detent.graph.values import add_initializer, drop_if_unused
from detent.prepare import InlineFunctions
from detent.prepare.base import main_opset
from detent.prepare.infer_shapes import infer

_TYPE_ATTRIBUTES = ("to", "dtype")


@dataclass(frozen=True)
class Retyping:
    """What to convert to. `stays` names further nodes that have to compute in float32."""

    target: ir.DataType
    keep_io: bool
    clip: bool
    stays: Callable[[ir.Node], bool] = lambda _: False


def check_float_model(model: ir.Model) -> None:
    """Raise ModelError, naming a node, where the model is quantized."""
    for node in model.graph.all_nodes():
        if is_quantizing(node):
            raise ModelError(
                f"The model is quantized: node '{node.name}' is {node.op_type}. Convert it to float first: --to float."
            )


def prepare_types(model: ir.Model, notes: Notes) -> None:
    """Inline functions, make initializers of Constant nodes, infer types.

    ModelError where a value's type stays unknown or is no tensor.
    """
    check_float_model(model)
    inline = InlineFunctions()
    inline(model)
    notes.declined += inline.declined
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    reason = infer(model)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name and value.dtype is None:
                raise ModelError(
                    f"The type of '{value.name}' ({node.op_type} '{node.name}') cannot be inferred"
                    + (f": {reason}" if reason else ". Only tensors and operators of ONNX can be converted.")
                )


def retype(model: ir.Model, plan: Retyping, notes: Notes) -> None:
    """Convert the model in place. Types have to be known: see `prepare_types`."""
    work = _Retyper(model, plan, notes)
    graphs = tuple(model.graphs())
    nodes = [(graph, node) for graph in graphs for node in graph]
    staying = {node for _, node in nodes if plan.stays(node) or stays_float(node, work.opset, plan.target)}
    slots = [
        (graph, node, index, node in staying)
        for graph, node in nodes
        for index, value in enumerate(node.inputs)
        if value is not None and value.dtype == ir.DataType.FLOAT and work.needs_float(node, index, staying)
    ]
    made = [
        (graph, node, value)
        for graph, node in nodes
        for index, value in enumerate(node.outputs)
        if value.dtype == ir.DataType.FLOAT
        and value.name
        and (node in staying or output_slot(node, index, work.opset) is Slot.FIXED)
    ]
    work.change_types(graphs, staying)
    for graph, node, index, whole in slots:
        work.read_float(graph, node, index, keep_constant=not whole)
    for graph, node, value in made:
        work.write_float(graph, node, value)
    if plan.keep_io:
        work.keep_interface(model.graph)
    for node in sorted(staying, key=lambda node: str(node.name)):
        if any(value.dtype == ir.DataType.FLOAT for value in (*node.inputs, *node.outputs) if value is not None):
            notes.decline(node, f"{node.op_type} computes in float32, between Casts")


class _Retyper:
    def __init__(self, model: ir.Model, plan: Retyping, notes: Notes) -> None:
        self.opset = main_opset(model)
        self._plan = plan
        self._notes = notes
        self._names = Names(model)
        self._casts: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}
        self._originals: dict[ir.Value, ir.TensorProtocol] = {}

    def needs_float(self, node: ir.Node, index: int, staying: set[ir.Node]) -> bool:
        """Whether an input has to be float32."""
        return node in staying or input_slot(node, index, self.opset) is Slot.FIXED

    def change_types(self, graphs: tuple[ir.Graph, ...], staying: set[ir.Node]) -> None:
        """Convert constants, the types of values, and attributes that name or hold a type."""
        constants = zeros = 0
        for graph in graphs:
            for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
                if value.dtype == ir.DataType.FLOAT and not value.is_initializer():
                    value.type = ir.TensorType(self._plan.target)
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is not None and tensor.dtype == ir.DataType.FLOAT:
                    self._originals[value] = tensor
                    value.const_value = self._narrow(str(value.name), tensor)
                    value.type = ir.TensorType(self._plan.target)
                    constants += 1
                    zeros += int(np.count_nonzero(tensor.numpy())) - int(np.count_nonzero(value.const_value.numpy()))
            for node in graph:
                if node not in staying:
                    self._change_attributes(node)
        lost = f", {zeros} elements became 0" if zeros else ""
        self._notes.changed(
            "model", f"all float32 values became {self._plan.target.name} ({constants} constants{lost})"
        )

    def _narrow(self, name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return ir.Tensor(narrow(name, tensor.numpy(), self._plan.target, clip=self._plan.clip), name=tensor.name)

    def _change_attributes(self, node: ir.Node) -> None:
        for name, attribute in tuple(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.FLOAT:
                tensor = self._narrow(str(node.outputs[0].name), attribute.as_tensor())
                node.attributes[name] = ir.AttrTensor(name, tensor)
            elif name in _TYPE_ATTRIBUTES and attribute.value == ir.DataType.FLOAT:
                node.attributes[name] = ir.AttrInt64(name, int(self._plan.target))
        if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
            zero = ir.Tensor(np.zeros(1, self._plan.target.numpy()))
            node.attributes["value"] = ir.AttrTensor("value", zero)

    def read_float(self, graph: ir.Graph, node: ir.Node, index: int, *, keep_constant: bool) -> None:
        """Let an input read float32: a constant that has to be exact as it was, anything else through a Cast."""
        value = node.inputs[index]
        assert value is not None
        key = (graph, value)
        if key not in self._casts:
            if keep_constant and value in self._originals:
                name = self._names.fresh(f"{value.name}_float")
                self._casts[key] = add_initializer(graph, name, self._originals[value].numpy())
            else:
                cast = self._cast(value, ir.DataType.FLOAT, f"{value.name}_float")
                graph.insert_before(node, [cast])
                self._casts[key] = cast.outputs[0]
        node.replace_input_with(index, self._casts[key])
        drop_if_unused(value)

    def write_float(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
        """Put a Cast behind an output that is made in float32; the cast value takes the name."""
        name = str(value.name)
        cast = self._cast(value, self._plan.target, name)
        result = cast.outputs[0]
        value.replace_all_uses_with(result, replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        graph.insert_after(node, [cast])
        value.type, value.name = ir.TensorType(ir.DataType.FLOAT), self._names.fresh(f"{name}_float")
        result.name = name

    def keep_interface(self, graph: ir.Graph) -> None:
        """Float32 graph inputs and outputs, under their names, with Casts behind and before them."""
        for value in graph.inputs:
            if value.dtype == self._plan.target and not value.is_initializer():
                self._keep_input(graph, value)
        for index, value in enumerate(tuple(graph.outputs)):
            if value.dtype == self._plan.target:
                self._keep_output(graph, index, value)

    def _keep_input(self, graph: ir.Graph, value: ir.Value) -> None:
        value.type = ir.TensorType(ir.DataType.FLOAT)
        if not value.uses():
            return
        cast = self._cast(value, self._plan.target, f"{value.name}_{self._plan.target.name.lower()}")
        value.replace_all_uses_with(cast.outputs[0])
        cast.replace_input_with(0, value)
        graph.insert_before(next(iter(graph)), [cast])

    def _keep_output(self, graph: ir.Graph, index: int, value: ir.Value) -> None:
        name = str(value.name)
        if value.is_graph_input():
            return
        cast = self._cast(value, ir.DataType.FLOAT, name)
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]
        value.name = self._names.fresh(f"{name}_{self._plan.target.name.lower()}")
        cast.outputs[0].name = name

    def _cast(self, value: ir.Value, target: ir.DataType, name: str) -> ir.Node:
        node = ir.node("Cast", [value], {"to": int(target)}, name=self._names.fresh(f"{name}_Cast"))
        result = node.outputs[0]
        result.name = self._names.fresh(name)
        result.type, result.shape = ir.TensorType(target), value.shape
        return node
