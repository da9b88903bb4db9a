"""float16 and float32: the whole model in another precision.

float16 computes what the model computed, with every number rounded to 11 bits. If onnxruntime has no float16 kernel
for an operator on the CPU it computes in float32 by itself. float32 undoes it: each half-precision number is exactly a
float32 number.

All float32 values become the other type, in bodies of If and Loop too. Then, for each node that stays in float32 and
for each input that has to be float32, a Cast back stands before it (one for all readers in a graph) and a Cast to the
other type behind what it makes. So every reader finds the type that it expects.

The operator's schema says what may change. An input or output is fixed if the schema writes tensor(float) itself, as
for the scales of Resize. A node stays in float32 as a whole if one of its type parameters does not have the other
type, if its operator is not ONNX's own, and if its attributes rather than its inputs decide the type of what it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from detent.convert.step import ConversionNotes, ConversionStep, cast_node
from detent.errors import ModelError
from detent.graph.values import Names, add_initializer, bypass, drop_if_unused, is_standard
from detent.prepare import HalfToFloat, InlineFunctions
from detent.prepare.base import main_opset
from detent.prepare.shapes import infer
from detent.qdq.families import is_quantizing
from detent.qdq.reader import largest_of


@dataclass(frozen=True)
class ToFloat16(ConversionStep):
    """All float32 values to float16; with `keep_io`, inputs and outputs stay float32.

    A weight beyond 65504 is an error, or with `clip` becomes 65504.
    """

    keep_io: bool = True
    clip: bool = False
    nothing: ClassVar[str] = "it has no float32 values."

    def apply(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        """Convert all graphs of the model."""
        prepare_types(model, notes)
        if has_float(model):
            retype(model, Retyping(ir.DataType.FLOAT16, self.keep_io, self.clip), notes)
        return model


@dataclass(frozen=True)
class ToFloat32(ConversionStep):
    """All float16 and bfloat16 values to float32, inputs and outputs too; Casts that are left without effect go."""

    nothing: ClassVar[str] = "it has no float16 or bfloat16 values."

    def apply(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        """Convert all graphs of the model."""
        notes.run(HalfToFloat(), model)
        if not notes.changes:
            return model
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if not is_standard(node, "Cast") or node.attributes.get_int("to", 0) != ir.DataType.FLOAT:
                    continue
                source = node.inputs[0]
                if source is not None and source.dtype == ir.DataType.FLOAT and bypass(graph, node) is None:
                    notes.changed(node, "Cast from float32 to float32 removed")
        return model


def has_float(model: ir.Model) -> bool:
    """Return whether anything in the model is float32 and could be converted."""
    return any(
        value.dtype == ir.DataType.FLOAT
        for graph in model.graphs()
        for value in (*graph.initializers.values(), *(value for node in graph for value in node.outputs))
    )


_TYPE_ATTRIBUTES = ("to", "dtype")


@dataclass(frozen=True)
class Retyping:
    """The type to convert to. `stays` tells further nodes that have to compute in float32."""

    dtype: ir.DataType
    keep_io: bool
    clip: bool
    stays: Callable[[ir.Node], bool] = lambda _: False


def prepare_types(model: ir.Model, notes: ConversionNotes) -> None:
    """Inline functions, make initializers of Constant nodes, infer types.

    Raises:
        ModelError: The model is quantized, or the type of a value stays unknown or is not a tensor.
    """
    for node in model.graph.all_nodes():
        if is_quantizing(node):
            raise ModelError(
                f"The model is quantized: node '{node.name}' is {node.op_type}. Convert it to float first: --to float."
            )
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


def retype(model: ir.Model, target: Retyping, notes: ConversionNotes) -> None:
    """Convert the model in place. Types have to be known: see `prepare_types`."""
    work = _Retyper(model, target, notes)
    graphs = tuple(model.graphs())
    nodes = [(graph, node) for graph in graphs for node in graph]
    staying = {node for _, node in nodes if target.stays(node) or stays_float(node, work.opset, target.dtype)}
    fixed = [
        (graph, node, index, node in staying)
        for graph, node in nodes
        for index, value in enumerate(node.inputs)
        if value is not None and value.dtype == ir.DataType.FLOAT
        if node in staying or is_fixed_input(node, index, work.opset)
    ]
    made = [
        (graph, node, value)
        for graph, node in nodes
        for index, value in enumerate(node.outputs)
        if value.dtype == ir.DataType.FLOAT and value.name
        if node in staying or is_fixed_output(node, index, work.opset)
    ]
    work.change_types(graphs, staying)
    for graph, node, index, whole in fixed:
        work.read_float(graph, node, index, keep_constant=not whole)
    for graph, node, value in made:
        work.write_float(graph, node, value)
    if target.keep_io:
        work.keep_interface(model.graph)
    for node in sorted(staying, key=lambda node: str(node.name)):
        if any(value.dtype == ir.DataType.FLOAT for value in (*node.inputs, *node.outputs) if value is not None):
            notes.decline(node, f"{node.op_type} computes in float32, between Casts")


class _Retyper:
    def __init__(self, model: ir.Model, target: Retyping, notes: ConversionNotes) -> None:
        self.opset = main_opset(model)
        self._target = target
        self._notes = notes
        self._names = Names(model)
        self._casts: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}
        self._originals: dict[ir.Value, ir.TensorProtocol] = {}

    def change_types(self, graphs: tuple[ir.Graph, ...], staying: set[ir.Node]) -> None:
        """Convert constants, the types of values, and attributes that name or hold a type."""
        constants = zeros = 0
        for graph in graphs:
            for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
                if value.dtype == ir.DataType.FLOAT and not value.is_initializer():
                    value.type = ir.TensorType(self._target.dtype)
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is not None and tensor.dtype == ir.DataType.FLOAT:
                    self._originals[value] = tensor
                    value.const_value = self._narrow(str(value.name), tensor)
                    value.type = ir.TensorType(self._target.dtype)
                    constants += 1
                    zeros += int(np.count_nonzero(tensor.numpy())) - int(np.count_nonzero(value.const_value.numpy()))
            for node in graph:
                if node not in staying:
                    self._change_attributes(node)
        lost = f", {zeros} elements became 0" if zeros else ""
        self._notes.changed(
            "model", f"all float32 values became {self._target.dtype.name} ({constants} constants{lost})"
        )

    def _narrow(self, name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return ir.Tensor(narrow(name, tensor.numpy(), self._target.dtype, clip=self._target.clip), name=tensor.name)

    def _change_attributes(self, node: ir.Node) -> None:
        for name, attribute in tuple(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.FLOAT:
                tensor = self._narrow(str(node.outputs[0].name), attribute.as_tensor())
                node.attributes[name] = ir.AttrTensor(name, tensor)
            elif name in _TYPE_ATTRIBUTES and attribute.value == ir.DataType.FLOAT:
                node.attributes[name] = ir.AttrInt64(name, int(self._target.dtype))
        if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
            zero = ir.Tensor(np.zeros(1, self._target.dtype.numpy()))
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
                cast = cast_node(self._names, value, ir.DataType.FLOAT, f"{value.name}_float")
                graph.insert_before(node, [cast])
                self._casts[key] = cast.outputs[0]
        node.replace_input_with(index, self._casts[key])
        drop_if_unused(value)

    def write_float(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
        """Put a Cast behind an output that is made in float32; the cast value takes the name."""
        name = str(value.name)
        cast = cast_node(self._names, value, self._target.dtype, name)
        result = cast.outputs[0]
        value.replace_all_uses_with(result, replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        graph.insert_after(node, [cast])
        value.type, value.name = ir.TensorType(ir.DataType.FLOAT), self._names.fresh(f"{name}_float")
        result.name = name

    def keep_interface(self, graph: ir.Graph) -> None:
        """Float32 graph inputs and outputs, under their names, with Casts behind and before them."""
        for value in graph.inputs:
            if value.dtype == self._target.dtype and not value.is_initializer():
                self._keep_input(graph, value)
        for index, value in enumerate(tuple(graph.outputs)):
            if value.dtype == self._target.dtype:
                self._keep_output(graph, index, value)

    def _keep_input(self, graph: ir.Graph, value: ir.Value) -> None:
        value.type = ir.TensorType(ir.DataType.FLOAT)
        if not value.uses():
            return
        cast = cast_node(self._names, value, self._target.dtype, f"{value.name}_{self._target.dtype.name.lower()}")
        value.replace_all_uses_with(cast.outputs[0])
        cast.replace_input_with(0, value)
        graph.insert_before(next(iter(graph)), [cast])

    def _keep_output(self, graph: ir.Graph, index: int, value: ir.Value) -> None:
        name = str(value.name)
        if value.is_graph_input():
            return
        cast = cast_node(self._names, value, ir.DataType.FLOAT, name)
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]
        value.name = self._names.fresh(f"{name}_{self._target.dtype.name.lower()}")
        cast.outputs[0].name = name


_FIXED = "tensor(float)"
_CARRIERS = ("If", "Loop", "Scan")
"""Operators that take any type: the graphs inside decide."""

_MAKERS = (
    *("Bernoulli", "BlackmanWindow", "EyeLike", "HammingWindow", "HannWindow", "MelWeightMatrix", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
)
"""Operators whose attributes decide the type of what they make."""


def stays_float(node: ir.Node, opset: int, target: ir.DataType) -> bool:
    """Return whether a node cannot compute in another type."""
    if node.domain != "" or node.op_type in _MAKERS:
        return True
    if node.op_type in _CARRIERS:
        return False
    if node.op_type == "Constant":
        return "value" not in node.attributes
    schema = _schema(node.op_type, opset)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    name = f"tensor({target.name.lower()})"
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            if value is None or value.dtype != ir.DataType.FLOAT:
                continue
            kind = _formal(formals, index)
            if kind in allowed and name not in allowed[kind]:
                return True
    return False


def is_fixed_input(node: ir.Node, index: int, opset: int) -> bool:
    """Return whether an input has to be float32."""
    return _is_typed(node) and _formal(_schema(node.op_type, opset).inputs, index) == _FIXED


def is_fixed_output(node: ir.Node, index: int, opset: int) -> bool:
    """Return whether an output is float32 in any case."""
    return _is_typed(node) and _formal(_schema(node.op_type, opset).outputs, index) == _FIXED


def _is_typed(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type not in _CARRIERS


@lru_cache(maxsize=512)
def _schema(op_type: str, opset: int) -> Any:
    return onnx.defs.get_schema(op_type, opset, "")


def _formal(formals: Any, index: int) -> str:
    """Return the type of a formal parameter; the last one may be variadic."""
    return str(formals[min(index, len(formals) - 1)].type_str)


def narrow(name: str, array: npt.NDArray[Any], target: ir.DataType, *, clip: bool) -> npt.NDArray[Any]:
    """Round an array half to even to another type. A number that would become infinite is clipped, or an error."""
    dtype = target.numpy()
    with np.errstate(over="ignore"):
        narrowed: npt.NDArray[Any] = array.astype(dtype)
    lost = np.isfinite(array) & ~np.isfinite(narrowed.astype(np.float32))
    if not lost.any():
        return narrowed
    largest = largest_of(dtype)
    if not clip:
        raise ModelError(
            f"'{name}' holds {float(array[lost][0]):g}, and {target.name.lower()} ends at {largest:g}. Convert with "
            "clip=true to use the largest number instead, or keep the model in float32 or bfloat16."
        )
    return array.clip(-largest, largest).astype(dtype)
