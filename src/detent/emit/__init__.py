"""Write the plan into the graph: activations are rounded behind the node that computes them, constants are stored.

An activation x becomes x -> nodes -> its readers. A rounded graph output keeps its name; the value before rounding is
renamed. A weight or bias is encoded from float here, with the final parameters; a bias that stays float gets its
refined numbers. A graph input or weight that is also a graph output leaves the graph unrounded. Operators that ONNX
does not have get a function that defines them. An Identity that stands for a conversion between formats is removed: its
input is rounded to one and its output to the other. Float constants that hold the same numbers are stored once:
preparing gave each reader its own. `detent.emit.output_formats` says which nodes each format is written with.

In dynamic quantization only weights are stored as integers; activations get their scale while the model runs.

    x -> DynamicQuantizeLinear -> codes, scale, zero point
    codes -> ConvInteger or MatMulInteger (with the codes of the weight) -> Cast -> Mul by both scales -> Add the bias

An activation that several layers read is quantized once. The weight of a Gemm is stored as MatMulInteger reads it.
A table that Gather reads, such as word embeddings, is stored in codes, and the entries that are read are decoded:

    table of codes -> Gather -> DequantizeLinear (and Mul by the scales of the entries, if each has its own)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emit.output_formats import OUTPUT_FORMATS
from detent.graph.values import Names, bypass, constant, drop_if_unused, remove_node, take_over, values_of
from detent.numerics.formats import QuantParams, is_product_bias
from detent.plan.layout import Role, site_inputs
from detent.plan.plan import Plan
from detent.qdq.builder import GraphWriter
from detent.qdq.families import MICROSOFT
from detent.qdq.functions import add_functions
from detent.recipe.recipe import OutputFormat

Contents = tuple[tuple[int, ...], bytes]


def emit(
    model: ir.Model,
    plan: Plan,
    form: OutputFormat = "qdq",
    *,
    weight_pairs: bool = False,
    dedicated_pairs: bool = False,
) -> Mapping[str, str]:
    """Quantize `model` in place as planned. Return, for each activation site, the name of its rounded value.

    `weight_pairs` keeps constants in float and rounds them like activations, except 32-bit biases, which no operator
    quantizes to. `dedicated_pairs` rounds an activation separately for each of its readers.
    """
    emitter = _Emitter(model, plan, form, weight_pairs, dedicated_pairs)
    values = {str(value.name): value for value in values_of(model.graph)}
    rounded: dict[str, str] = {}
    for site in plan.layout.sites.values():
        if site.role is Role.ACTIVATION:
            rounded[site.value] = emitter.activation(values[site.value])
        else:
            emitter.constant(values[site.value])
    for name, numbers in plan.refined.items():
        if name not in plan.layout.sites:
            values[name].const_value = ir.tensor(numbers, name=name)
    _store_once([value for name, value in values.items() if name not in plan.layout.sites])
    for node in [node for node in model.graph if node.op_type == "Identity"]:
        if str(node.outputs[0].name) in plan.layout.sites:
            bypass(model.graph, node)
    if any(node.domain == MICROSOFT.domain for node in model.graph):
        model.graph.opset_imports[MICROSOFT.domain] = 1
    model.graph.sort()
    add_functions(model, overloads=True)
    return rounded


def _contents(array: npt.NDArray[Any]) -> Contents:
    """Return a key that is the same for arrays of one type that hold the same numbers."""
    return array.shape, hashlib.sha256(array.tobytes()).digest()


def _store_once(values: Iterable[ir.Value]) -> None:
    """Let all readers of float constants that hold the same numbers read the first of them."""
    first: dict[Contents, ir.Value] = {}
    for value in values:
        array = constant(value) if value.dtype == ir.DataType.FLOAT and value.is_initializer() else None
        if array is None or array.size < 2 or value.is_graph_input() or value.is_graph_output():
            continue
        same = first.setdefault(_contents(array), value)
        if same is not value:
            value.replace_all_uses_with(same)
            drop_if_unused(value)


class _Emitter:
    def __init__(
        self, model: ir.Model, plan: Plan, form: OutputFormat, weight_pairs: bool, dedicated_pairs: bool
    ) -> None:
        self._graph = model.graph
        self._plan = plan
        self._writer = GraphWriter(model.graph, Names(model))
        self._format = OUTPUT_FORMATS[form]
        self._weight_pairs, self._dedicated_pairs = weight_pairs, dedicated_pairs
        self._order = {node: index for index, node in enumerate(model.graph)}
        self._first = next(iter(model.graph))

    def activation(self, value: ir.Value) -> str:
        """Insert the nodes behind an activation; return the name of the value that its readers now read."""
        name, uses = str(value.name), tuple(value.uses())
        is_output = value.is_graph_output() and not value.is_graph_input()
        if not self._dedicated_pairs or len(uses) < 2:
            return self._round_for(name, value, uses, is_output)
        rounded = [self._round_for(name, value, (), True)] if is_output else []
        rounded += [self._round_for(name, value, [use], False) for use in uses]
        return rounded[0]

    def _round_for(self, name: str, value: ir.Value, uses: Sequence[tuple[ir.Node, int]], is_output: bool) -> str:
        """Round the site `name` for some of its readers, those in the bodies of an If or Loop included."""
        params = self._plan.of(name)
        nodes = self._format.writer(self._writer, params).activation(name, value, params)
        result = _finish(nodes, value)
        for node, index in uses:
            node.replace_input_with(index, result)
        if is_output:
            value.replace_all_uses_with(result, replace_graph_outputs=True)
            # The line above redirected the first node's own input too.
            nodes[0].replace_input_with(0, value)
            value.name, result.name = self._writer.names.fresh(f"{name}_QuantizeLinear_Input"), name
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._first, nodes)
        else:
            self._graph.insert_after(producer, nodes)
        return str(result.name)

    def constant(self, value: ir.Value) -> None:
        """Replace a float constant by codes and the nodes that decode them."""
        name, array = str(value.name), constant(value)
        assert array is not None, f"site '{name}' is not constant"
        params = self._plan.of(name)
        numbers = self._plan.refined.get(name, array).astype(np.float32, copy=False)
        writer = self._format.writer(self._writer, params)
        if self._weight_pairs and not is_product_bias(params.format):
            stored = self._writer.constant(f"{name}_float", numbers)
            nodes = writer.activation(name, stored, params)
        else:
            nodes = writer.constant(name, numbers, params)
        result = _finish(nodes, value)
        readers = [(node, index) for node, index in value.uses() if self._reads_codes(node, index)]
        self._graph.insert_before(min((node for node, _ in readers), key=self._order.__getitem__), nodes)
        for node, index in readers:
            node.replace_input_with(index, result)
        if not value.is_graph_output() and not value.uses():
            del self._graph.initializers[name]

    def _reads_codes(self, node: ir.Node, index: int) -> bool:
        """Return whether a node reads a constant as quantized data, unlike the bound of a Clip or the body of an If."""
        in_main_graph = node.graph is self._graph
        return in_main_graph and self._plan.layout.quantizes(node) and index in site_inputs(node)


def _finish(nodes: Sequence[ir.Node], like: ir.Value) -> ir.Value:
    """Return the output of the last node, with the type and shape of the value that it stands for."""
    result = nodes[-1].outputs[0]
    result.type, result.shape = like.type, like.shape
    return result


Quantized = tuple[ir.Value, ir.Value, ir.Value]


def emit_dynamic(model: ir.Model, plan: Plan) -> None:
    """Rewrite every planned layer of `model` in place."""
    emitter = _DynamicEmitter(GraphWriter(model.graph, Names(model)), plan)
    weights = {site.value: site for site in plan.layout.of_role(Role.WEIGHT)}
    for node in list(model.graph):
        looks_up = node.op_type == "Gather"
        weight = None if len(node.inputs) < 2 else node.inputs[0 if looks_up else 1]
        if weight is not None and str(weight.name) in weights and plan.layout.quantizes(node):
            emitter.table(node, weight) if looks_up else emitter.layer(node, weight)
    model.graph.sort()


class _DynamicEmitter:
    def __init__(self, writer: GraphWriter, plan: Plan) -> None:
        self._writer, self._plan = writer, plan
        self._quantized: dict[ir.Value, Quantized] = {}
        self._codes: dict[Contents, ir.Value] = {}

    def table(self, node: ir.Node, table: ir.Value) -> None:
        """Let a Gather read codes, and decode the entries behind it."""
        name, indices, axis = str(node.name), node.inputs[1], node.attributes.get_int("axis", 0)
        array, params = constant(table), self._plan.integers(str(table.name))
        assert array is not None and indices is not None, f"the table '{table.name}' is not constant"
        codes = self._store_once(f"{table.name}_quantized", params.encode(array).astype(params.format.dtype))
        read = self._append(node, "Gather", [codes, indices], f"{name}/codes", axis=axis)
        read.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(params.format.dtype)))
        # With a scale for each entry all zero points are equal.
        zero_point = params.zero_point.astype(params.format.dtype).reshape(-1)[0]
        own = params.axis is not None
        scale = np.asarray(1 if own else params.scale, np.float32).reshape(())
        decoding = [self._writer.constant(f"{table.name}_step", scale)]
        decoding.append(self._writer.constant(f"{table.name}_zero_point", np.asarray(zero_point)))
        result = self._append(node, "DequantizeLinear", [read, *decoding], f"{name}/decoded")
        if own:
            shape = [1] * array.ndim
            shape[axis] = -1
            scales = self._store_once(f"{table.name}_scale", params.scale.astype(np.float32).reshape(shape))
            read = self._append(node, "Gather", [scales, indices], f"{name}/scales", axis=axis)
            result = self._append(node, "Mul", [result, read], f"{name}/scaled")
        take_over(node.outputs[0], result)
        remove_node(self._writer.graph, node)

    def _store_once(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """Add a constant, or reuse one with the same numbers: preparing gave each reader its own table."""
        key = _contents(array)
        if key not in self._codes:
            self._codes[key] = self._writer.constant(name, array)
        return self._codes[key]

    def layer(self, node: ir.Node, weight: ir.Value) -> None:
        """Replace one layer by integer operators."""
        source, output, name = node.inputs[0], node.outputs[0], str(node.name)
        assert source is not None, f"layer '{name}' has no input"
        if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1:
            source = self._append(node, "Transpose", [source], f"{name}/transposed", perm=[1, 0])
        codes, scale, zero_point = self._quantize(node, source)
        params = self._plan.integers(str(weight.name))
        convolves = node.op_type == "Conv"
        inputs = [codes, *self._weight(node, weight, params, zero_point)]
        if convolves:
            product = self._append(node, "ConvInteger", inputs, name, **node.attributes)
        else:
            product = self._append(node, "MatMulInteger", inputs, name)
        product.type = ir.TensorType(ir.DataType.INT32)
        cast = self._append(node, "Cast", [product], f"{name}/cast", to=int(ir.DataType.FLOAT))
        scales = params.scale.astype(np.float32)
        if params.axis is not None:
            scales = scales.reshape(-1, *([1] * (len(weight.shape or ()) - 2))) if convolves else scales
        unit = self._append(node, "Mul", [scale, self._writer.constant(f"{weight.name}_scale", scales)], f"{name}/unit")
        result = self._append(node, "Mul", [cast, unit], f"{name}/scaled")
        bias = self._bias(node, convolves)
        if bias is not None:
            result = self._append(node, "Add", [result, bias], f"{name}/biased")
        take_over(output, result)
        remove_node(self._writer.graph, node)

    def _quantize(self, node: ir.Node, source: ir.Value) -> Quantized:
        if source not in self._quantized:
            name = f"{source.name}_DynamicQuantizeLinear"
            quantize = ir.node("DynamicQuantizeLinear", [source], num_outputs=3, name=self._writer.names.fresh(name))
            for value, ending in zip(quantize.outputs, ("quantized", "scale", "zero_point"), strict=True):
                value.name = self._writer.names.fresh(f"{source.name}_{ending}")
            self._writer.graph.insert_before(node, [quantize])
            codes, scale, zero_point = quantize.outputs
            self._quantized[source] = codes, scale, zero_point
        return self._quantized[source]

    def _weight(
        self, node: ir.Node, weight: ir.Value, params: QuantParams, zero_point: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the codes of the weight and both zero points, as the integer operators read them."""
        array = constant(weight)
        assert array is not None, f"the weight '{weight.name}' is not constant"
        codes = params.encode(array).astype(params.format.dtype)
        if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1:
            codes = np.ascontiguousarray(codes.T)
        zeros = params.zero_point.astype(params.format.dtype)
        if node.op_type == "Conv" and codes.dtype == np.int8:
            # Both counted from -128 on: before onnxruntime 1.24, ConvInteger reads uint8 alone.
            codes, zeros = (each.view(np.uint8) ^ np.uint8(128) for each in (codes, zeros))
        stored = self._writer.constant(f"{weight.name}_quantized", codes)
        if zeros.size and (zeros == zeros.flat[0]).all():
            zeros = zeros.reshape(-1)[0]  # onnxruntime's ConvInteger takes one for the whole weight only
        return stored, zero_point, self._writer.constant(f"{weight.name}_zero_point", np.asarray(zeros))

    def _bias(self, node: ir.Node, convolves: bool) -> ir.Value | None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        array = constant(bias)
        if bias is None or array is None or not convolves:
            return bias
        rank = len(node.outputs[0].shape or (0, 0, 0, 0))
        return self._writer.constant(f"{bias.name}_per_channel", array.reshape(-1, *([1] * (rank - 2))))

    def _append(self, before: ir.Node, op_type: str, inputs: list[ir.Value], name: str, **attributes: Any) -> ir.Value:
        node = self._writer.node(op_type, inputs, name, **attributes)
        self._writer.graph.insert_before(before, [node])
        return node.outputs[0]
