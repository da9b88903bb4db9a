"""One plain form for what a model may say in several ways: functions inlined, half types widened, defaults written out.

InlineFunctions: a call of a function means its body with the parameters put in, so writing the body instead of the call
changes nothing. The other passes see only the main graph; what is inside a function they would miss.

HalfToFloat: every float16 and every bfloat16 number is a float32 number, so constants convert exactly. The operators
then compute in float32 what they computed in half precision: the same function, without the rounding after each of
them. All half types of a model are changed at once (constants, value types, types named by attributes), so that no
operator is left with one input of each kind.

WriteAttributes: a default that is written out means what it meant when it was absent. For `auto_pad` with input size n,
stride s and window k' = (k - 1) * dilation + 1 the standard says: SAME gives ceil(n / s) outputs, so the padding has to
be p = max((ceil(n / s) - 1) * s + k' - n, 0) in total, the odd one at the end for SAME_UPPER and at the start for
SAME_LOWER. VALID is a padding of zero. For ConvTranspose, SAME gives n * s outputs and p = k' + output_padding - s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from detent.graph.load import inline
from detent.graph.values import all_nodes, input_at, repair_names, shape_of, static_shape
from detent.prepare.base import OperatorPass, Pass, ints_attribute, main_opset


class InlineFunctions(Pass):
    """Inline all model-local functions, nested ones too.

    Cases:
    - a model without functions is left untouched;
    - a function written for another version of an operator set than the model's is declined;
    - a function that is called with a graph as an attribute is declined;
    - functions that call each other in a circle are a `ModelError`.
    """

    def run(self, model: ir.Model) -> None:
        if not model.functions:
            return
        before = {key: function.name for key, function in model.functions.items()}
        calls = [node for node in all_nodes(model) if node.op_identifier() in before]
        counts = Counter(node.op_identifier() for node in calls)
        kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        with_graphs = {
            node.op_identifier() for node in calls if any(each.type in kinds for each in node.attributes.values())
        }
        refused = set()
        for key, function in model.functions.items():
            reason = self._why_not(model, function, key in with_graphs)
            if reason is not None:
                refused.add(key)
                self.decline(f"{function.domain}::{function.name}", reason)
        # The call will be gone. Its results keep their names, and lead to what computes them.
        results = {node: [value.name for value in node.outputs] for node in calls if node.graph is model.graph}
        kept = set(model.graph)
        inline(model, "the model", but=refused)
        RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
        for key, name in before.items():
            if key not in refused:
                self.changed(f"{key[0]}::{name}", f"inlined ({counts[key]} calls)")
        repair_names(model)
        makers = {value.name: node for node in model.graph for value in node.outputs}
        for node, names in results.items():
            if node.graph is None:
                self.replaced(node, *_computing([makers[name] for name in names if name in makers], kept))

    @staticmethod
    def _why_not(model: ir.Model, function: ir.Function, has_graphs: bool) -> str | None:
        if has_graphs:
            return "it is called with a graph as an attribute"
        for domain, version in function.opset_imports.items():
            known = model.opset_imports.get(domain)
            if known is not None and known != version:
                return f"it is written for version {version} of domain '{domain}', the model for version {known}"
        return None


def _computing(nodes: Iterable[ir.Node], kept: Collection[ir.Node]) -> list[ir.Node]:
    """Return these nodes and all that lead to them, up to those that were there before."""
    found: dict[ir.Node, None] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found and node not in kept:
            found[node] = None
            pending += node.predecessors()
    return list(found)


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
        for value in (*model.graph.inputs, *model.graph.outputs):
            if value.dtype in _HALF:
                kind = "input" if value.is_graph_input() else "output"
                self.changed(str(value.name), f"graph {kind} changed from {value.dtype} to FLOAT")
        graphs = (*model.graphs(), *(function.graph for function in model.functions.values()))
        for node in (node for graph in graphs for node in graph):
            touched = [value for value in (*node.inputs, *node.outputs) if value is not None]
            if node.domain != "" and any(value.dtype in _HALF for value in touched):
                self.decline(node, f"{node.domain}::{node.op_type} now gets float32; make sure that it accepts it")
        converted = sum(_convert_graph(graph) for graph in graphs)
        if converted:
            self.changed("model", f"{converted} half-precision constants, values and attributes changed to FLOAT")


def _convert_graph(graph: ir.Graph) -> int:
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
    new = None if value.type is None else _convert_type(value.type)
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
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


_PER_AXIS = {"strides": 1, "dilations": 1, "output_padding": 0}
_SCALARS = {"group": 1, "ceil_mode": 0, "count_include_pad": 0, "storage_order": 0}


class WriteAttributes(OperatorPass):
    """Write out the attributes of Conv, ConvTranspose, MaxPool and AveragePool.

    Cases:
    - kernel_shape from the weight; strides, dilations, pads, output_padding, group, ceil_mode, count_include_pad and
      storage_order, as far as the operator has them in the model's opset;
    - the dilations of an AveragePool are taken away instead, if they are all 1;
    - auto_pad becomes pads: VALID always, SAME_UPPER and SAME_LOWER when the spatial shape is static;
    - declined: SAME without a static shape or with ceil_mode, ConvTranspose with output_shape, ConvTranspose with SAME
      and an odd padding (runtimes disagree which side gets the odd one), a weight of unknown shape.
    """

    operators = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        known = onnx.defs.get_schema(node.op_type, main_opset(model), "").attributes
        kernel = ints_attribute(node, "kernel_shape") or _kernel_of_weight(node)
        if kernel is None:
            return "the shape of its weight is not known"
        defaults: dict[str, int | list[int]] = {"kernel_shape": kernel}
        defaults |= {name: [fill] * len(kernel) for name, fill in _PER_AXIS.items()}
        defaults |= _SCALARS
        pads = _pads(node, kernel)
        if not isinstance(pads, str):
            defaults["pads"] = pads
            node.attributes.pop("auto_pad", None)
        if node.op_type == "AveragePool" and set(ints_attribute(node, "dilations") or [1]) == {1}:
            # onnxruntime has a pool on codes that does not know the attribute, and refuses the whole model over it.
            del defaults["dilations"]
            node.attributes.pop("dilations", None)
        written = [name for name in defaults if name in known and name not in node.attributes]
        for name in written:
            value = defaults[name]
            node.attributes[name] = ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrInt64s(name, value)
        if written:
            self.changed(node, f"wrote {', '.join(written)}")
        return pads if isinstance(pads, str) else None


def _kernel_of_weight(node: ir.Node) -> list[int] | None:
    shape = shape_of(input_at(node, 1))
    if shape is None:
        return None
    kernel = [size for size in shape[2:] if size is not None]
    return kernel if len(kernel) == len(shape) - 2 else None


def _pads(node: ir.Node, kernel: list[int]) -> list[int] | str:
    """Return the explicit padding, all starts before all ends, or the reason why it is not known."""
    mode = node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET"
    if ints_attribute(node, "output_shape"):
        return "its padding follows from output_shape"
    if mode == "NOTSET":
        return ints_attribute(node, "pads") or [0] * (2 * len(kernel))
    if mode == "VALID":
        return [0] * (2 * len(kernel))
    if node.attributes.get_int("ceil_mode", 0):
        return f"auto_pad {mode} together with ceil_mode"
    totals = _same_totals(node, kernel)
    if isinstance(totals, str):
        return totals
    small = [total // 2 for total in totals]
    large = [total - half for total, half in zip(totals, small, strict=True)]
    if node.op_type == "ConvTranspose" and small != large:
        return f"auto_pad {mode} with an odd padding, which runtimes place differently"
    return small + large if mode == "SAME_UPPER" else large + small


def _same_totals(node: ir.Node, kernel: list[int]) -> list[int] | str:
    """Return the padding per spatial axis, both sides together, that SAME asks for."""
    ones = [1] * len(kernel)
    strides, dilations = ints_attribute(node, "strides") or ones, ints_attribute(node, "dilations") or ones
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose":
        extra = ints_attribute(node, "output_padding") or [0] * len(kernel)
        totals = [w + e - s for w, e, s in zip(windows, extra, strides, strict=True)]
        return totals if min(totals) >= 0 else "auto_pad with a stride that is larger than the window"
    shape = static_shape(node.inputs[0])
    sizes = [] if shape is None else [size for size in shape[2:] if size is not None]
    if len(sizes) != len(kernel):
        return "auto_pad needs a static height and width"
    return [max((-(-n // s) - 1) * s + w - n, 0) for n, s, w in zip(sizes, strides, windows, strict=True)]
