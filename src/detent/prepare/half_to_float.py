"""A float16 or bfloat16 model becomes a float32 model.

Every float16 and every bfloat16 number is a float32 number, so constants convert exactly. The operators then compute
in float32 what they computed in half precision: the same function, without the rounding after each of them. All half
types of a model are changed at once (constants, value types, types named by attributes), so that no operator is left
with one input of each kind.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.prepare.base import Pass

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision")


class HalfToFloat(Pass):
    """Replace float16 and bfloat16 by float32 everywhere.

    Cases:
    - initializers and tensors in attributes (Constant, ConstantOfShape) get a new float32 tensor;
    - types of values, graph inputs and graph outputs, sequences and optionals of them too;
    - attributes that name a type: Cast(to=FLOAT16) becomes Cast(to=FLOAT);
    - bodies of If and Loop and model-local functions are converted with the rest;
    - a node of a foreign domain is converted too, and declined as a warning that its float32 form has to exist;
    - a model without half types is left untouched.
    """

    def run(self, model: ir.Model) -> None:
        """Convert the graph, its subgraphs and the functions."""
        for value in (*model.graph.inputs, *model.graph.outputs):
            if value.dtype in _HALF:
                kind = "input" if value.is_graph_input() else "output"
                self.changed(str(value.name), f"graph {kind} changed from {value.dtype} to FLOAT")
        graphs = (*model.graphs(), *(function.graph for function in model.functions.values()))
        for graph in graphs:
            self._point_out_foreign(graph)
        converted = sum(_convert_graph(graph) for graph in graphs)
        if converted:
            self.changed("model", f"{converted} half-precision constants, values and attributes changed to FLOAT")

    def _point_out_foreign(self, graph: ir.Graph) -> None:
        for node in graph:
            touched = [value for value in (*node.inputs, *node.outputs) if value is not None]
            if node.domain != "" and any(value.dtype in _HALF for value in touched):
                self.decline(node, f"{node.domain}::{node.op_type} now gets float32; make sure that it accepts it")


def _convert_graph(graph: ir.Graph) -> int:
    """Convert what a graph holds; return how many things were changed."""
    count = sum(_convert_value(value) for value in (*graph.inputs, *graph.outputs))
    for value in tuple(graph.initializers.values()):
        tensor = value.const_value
        if tensor is not None and tensor.dtype in _HALF:
            value.const_value = _widen(tensor)
            value.type = ir.TensorType(ir.DataType.FLOAT)
            count += 1
    for node in graph:
        count += sum(_convert_value(value) for value in node.outputs)
        count += _convert_attributes(node)
    return count


def _convert_value(value: ir.Value) -> int:
    """Change the type of a value; return how many were changed."""
    if value.type is None:
        return 0
    new = _convert_type(value.type)
    if new is None:
        return 0
    value.type = new
    return 1


def _convert_type(old: ir.TypeProtocol) -> ir.TypeProtocol | None:
    """Return the type with float32 instead of half, or None if there is no half in it."""
    if isinstance(old, ir.TensorType):
        return ir.TensorType(ir.DataType.FLOAT, denotation=old.denotation) if old.dtype in _HALF else None
    if isinstance(old, (ir.SequenceType, ir.OptionalType)):
        inner = _convert_type(old.elem_type)
        return None if inner is None else type(old)(inner, denotation=old.denotation)
    return None


def _convert_attributes(node: ir.Node) -> int:
    """Change tensors and named types in the attributes of a node; return how many were changed."""
    count = 0
    for name, attribute in tuple(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _HALF:
            node.attributes[name] = ir.AttrTensor(name, _widen(attribute.value))
            count += 1
        elif name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.as_int() in _HALF:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
            count += 1
    return count


def _widen(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a new float32 tensor with the same numbers."""
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)
