"""QOperator: operators that compute on codes (QLinearConv and the like) instead of Q, DQ and float operators.

    to_qoperator(model)     # a QDQ model, in place; returns why each node that is left was left

An integer operator does what the operator between its DequantizeLinear and QuantizeLinear nodes does: it takes the same
codes, works exactly or in float32 where they do, and rounds once at the end. So both forms answer alike, but for a code
next door here and there, if float32 falls on the other side of a tie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from detent.emit.coded_node import (
    CodedNode,
    DeclinedError,
    NewConstant,
    Operand,
    Operation,
    QuantizedResult,
    grid_of,
)
from detent.emit.qoperator_rules import READS, rule_of
from detent.graph.values import bypass, is_standard, is_unused, remove_node, take_over
from detent.prepare.base import Change, Pass, main_opset
from detent.prepare.shapes import InferShapes
from detent.qdq.families import MICROSOFT, is_native_dequantize, is_native_quantize
from detent.qdq.reader import dequantized


def to_qoperator(model: ir.Model) -> list[Change]:
    """Turn a QDQ model into QOperator form in place; returns a note, with the reason, for each node that was left.

    Ranks and types that other tools did not write into the model are inferred if possible.
    """
    if any(value.shape is None for node in model.graph for value in node.outputs):
        InferShapes()(model)
    rewrite = ToQOperator()
    rewrite(model)
    return rewrite.declined


class ToQOperator(Pass):
    """Write integer operators instead of DequantizeLinear, operator, QuantizeLinear.

    Cases:
    - every data input is dequantized and every output quantized: one integer operator on the codes, with the Relu and
      Clip nodes behind it, which cut off codes or are not needed at all;
    - codes that are dequantized and quantized again with the same scale are taken over;
    - an operator that asks for a shape or the index of the largest element reads codes;
    - declined: an operator without an integer twin, and whatever its twin cannot hold; it keeps its Q/DQ.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every node of the main graph that reads or gives quantized values."""
        opset = main_opset(model)
        _join_idle_pairs(model.graph)
        for node in list(model.graph):
            if node.graph is None or is_native_quantize(node) or is_native_dequantize(node) or not _is_quantized(node):
                continue
            coded = CodedNode(node, model.graph, opset)
            try:
                if is_standard(node, *READS) and opset >= READS[node.op_type]:
                    self._read(model, coded)
                    continue
                operation, results = rule_of(node)(coded), coded.results
            except DeclinedError as reason:
                self.decline(node, str(reason))
                continue
            self._write(model, node, operation, results)
        for node in reversed(list(model.graph)):
            if (is_native_dequantize(node) or is_native_quantize(node)) and is_unused(node.outputs[0]):
                remove_node(model.graph, node)
        if any(node.domain == MICROSOFT.domain for node in model.graph):
            model.graph.opset_imports[MICROSOFT.domain] = 1

    def _read(self, model: ir.Model, coded: CodedNode) -> None:
        """Let a node that gives no quantized value read codes."""
        node = coded.node
        node.replace_input_with(0, self._value(model, node, coded.input(0).whole().codes))
        self.changed(node, f"{node.op_type} reads codes")

    def _write(self, model: ir.Model, node: ir.Node, operation: Operation, results: list[QuantizedResult]) -> None:
        """Replace the node, with its Q/DQ and clips, by the operation."""
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

    def _connect(self, model: ir.Model, node: ir.Node, codes: ir.Value, result: QuantizedResult) -> None:
        """Let readers of the quantized result read these codes, cut off as the result was."""
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
        if isinstance(operand, NewConstant):
            return self.initializer(model, node, operand.role, operand.array)
        return operand


def _is_quantized(node: ir.Node) -> bool:
    """Return whether anything that the node reads or writes has codes."""
    reads = any(value is not None and is_native_dequantize(value.producer()) for value in node.inputs)
    return reads or any(is_native_quantize(use.node) for value in node.outputs for use in value.uses())


def _join_idle_pairs(graph: ir.Graph) -> None:
    """Remove pairs that dequantize codes and quantize them to the same codes."""
    for node in list(graph):
        source = node.inputs[0] if is_native_quantize(node) else None
        before = None if source is None else dequantized(source.producer())
        if before is None or not is_native_dequantize(before.node):
            continue
        try:
            same = grid_of(node).equals(grid_of(before.node))
        except DeclinedError:
            continue
        if same and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(before.codes)
            remove_node(graph, node)
