"""Walking a QDQ model and writing an integer operator in the place of every node that has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from detent.emit.qoperator import arithmetic, layers, movement
from detent.emit.qoperator.codes import Constant, DeclinedError, Operand, grid_of, is_dequantize, is_quantize
from detent.emit.qoperator.site import MICROSOFT, Operation, Result, Site
from detent.graph.values import bypass, is_standard, is_unused, remove_node, take_over
from detent.prepare.base import Change, Pass, main_opset
from detent.prepare.infer_shapes import InferShapes

Rule = Callable[[Site], Operation]

RULES: Mapping[str, Rule] = {
    "Conv": layers.conv,
    "MatMul": layers.matmul,
    "Gemm": layers.gemm,
    "Add": arithmetic.add,
    "Mul": arithmetic.mul,
    "Sigmoid": arithmetic.sigmoid,
    "LeakyRelu": arithmetic.leaky_relu,
    "AveragePool": arithmetic.average_pool,
    "GlobalAveragePool": arithmetic.global_average_pool,
    "ReduceMean": arithmetic.reduce_mean,
    "Softmax": arithmetic.softmax,
    "Where": arithmetic.where,
    "Concat": arithmetic.concat,
    "Relu": arithmetic.clip,
    "Clip": arithmetic.clip,
    "MaxPool": movement.max_pool,
    "Resize": movement.resize,
    "Pad": movement.pad,
    **dict.fromkeys(movement.MOVES, movement.move),
}


def to_qoperator(model: ir.Model) -> list[Change]:
    """Turn a QDQ model into QOperator form in place; returns a note, with the reason, for each node that was left.

    Ranks and types that other tools did not write into the model are inferred where they can be.
    """
    if any(value.shape is None for node in model.graph for value in node.outputs):
        InferShapes()(model)
    rewrite = ToQOperator()
    rewrite(model)
    return rewrite.declined


class ToQOperator(Pass):
    """Write integer operators in the place of DequantizeLinear, operator, QuantizeLinear.

    Cases:
    - every data input is dequantized and every output quantized: one integer operator on the codes, with the Relu and
      Clip nodes behind it, which cut off codes or are not needed at all;
    - codes that are dequantized and quantized again on the same grid are taken over;
    - an operator that asks for a shape or the place of the largest reads codes;
    - declined: an operator without an integer twin, and whatever its twin cannot hold; it keeps its nodes around it.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every node of the main graph that reads or gives quantized values."""
        opset = main_opset(model)
        _join_idle_pairs(model.graph)
        for node in list(model.graph):
            if node.graph is None or is_quantize(node) or is_dequantize(node) or not _is_quantized(node):
                continue
            site = Site(node, model.graph, opset)
            try:
                if is_standard(node, *movement.READS) and opset >= movement.READS[node.op_type]:
                    self._read(model, site)
                    continue
                operation, results = _rule(node)(site), site.results
            except DeclinedError as reason:
                self.decline(node, str(reason))
                continue
            self._write(model, node, operation, results)
        for node in reversed(list(model.graph)):
            if (is_dequantize(node) or is_quantize(node)) and is_unused(node.outputs[0]):
                remove_node(model.graph, node)
        if any(node.domain == MICROSOFT for node in model.graph):
            model.graph.opset_imports[MICROSOFT] = 1

    def _read(self, model: ir.Model, site: Site) -> None:
        """Let a node that gives no quantized value read codes."""
        node = site.node
        node.replace_input_with(0, self._value(model, node, site.input(0).whole().codes))
        self.changed(node, f"{node.op_type} reads codes")

    def _write(self, model: ir.Model, node: ir.Node, operation: Operation, results: list[Result]) -> None:
        """Put the operation in the place of the node and all that hangs on it."""
        graph, name = model.graph, node.name
        inputs = [self._value(model, node, operand) for operand in operation.inputs]
        while inputs[-1] is None:
            inputs.pop()
        new = ir.Node(operation.domain, operation.op_type, inputs, operation.attributes, num_outputs=len(results))
        graph.insert_before(node, [new])
        self.changed(node, f"{node.op_type} computes on codes: {new.op_type}")
        outputs = self._flatten(model, node, new.outputs[0]) if operation.flattened else new.outputs
        for codes, result in zip(outputs, results, strict=True):
            self._connect(model, node, codes, result)
            for obsolete in (*result.quantizers, *reversed(result.clips)):
                remove_node(graph, obsolete)
        remove_node(graph, node)
        new.name = name
        if is_standard(new, "Identity"):
            bypass(graph, new)

    def _flatten(self, model: ir.Model, node: ir.Node, codes: ir.Value) -> Sequence[ir.Value]:
        codes.name = self.fresh(model, node, "pooled_codes")
        flatten = ir.Node("", "Flatten", [codes], name=self.fresh(model, node, "flatten_codes"))
        model.graph.insert_before(node, [flatten])
        return flatten.outputs

    def _connect(self, model: ir.Model, node: ir.Node, codes: ir.Value, result: Result) -> None:
        """Let whoever read the codes that were quantized read these, cut off where the result was."""
        quantized, bounds = result.quantizers[0].outputs[0], result.code_bounds
        codes.type, codes.shape = ir.TensorType(result.grid.dtype), result.shape
        if bounds is not None:
            codes.name = self.fresh(model, node, "uncut_codes")
            low, high = (
                self.initializer(model, node, role, np.array(end, result.grid.dtype.numpy()))
                for role, end in zip(("lowest_code", "highest_code"), bounds, strict=True)
            )
            cut = ir.Node("", "Clip", [codes, low, high], name=self.fresh(model, node, "clip_codes"))
            model.graph.insert_before(node, [cut])
            codes = cut.outputs[0]
            codes.type, codes.shape = ir.TensorType(result.grid.dtype), result.shape
        for quantizer in result.quantizers[1:]:
            quantizer.outputs[0].replace_all_uses_with(quantized)
        take_over(quantized, codes)

    def _value(self, model: ir.Model, node: ir.Node, operand: Operand) -> ir.Value | None:
        if isinstance(operand, Constant):
            return self.initializer(model, node, operand.role, operand.array)
        return operand


def _rule(node: ir.Node) -> Rule:
    if node.domain != "" or node.op_type not in RULES:
        raise DeclinedError(f"there is no integer operator for {node.op_type}")
    return RULES[node.op_type]


def _is_quantized(node: ir.Node) -> bool:
    """Whether anything that the node reads or gives has codes."""
    reads = any(value is not None and is_dequantize(value.producer()) for value in node.inputs)
    return reads or any(is_quantize(use.node) for value in node.outputs for use in value.uses())


def _join_idle_pairs(graph: ir.Graph) -> None:
    """Codes that are dequantized and then quantized on the same grid come out as they were."""
    for node in list(graph):
        source = node.inputs[0] if is_quantize(node) else None
        before = None if source is None else source.producer()
        if before is None or not is_dequantize(before) or before.inputs[0] is None:
            continue
        try:
            same = grid_of(node).equals(grid_of(before))
        except DeclinedError:
            continue
        if same and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(before.inputs[0])
            remove_node(graph, node)
