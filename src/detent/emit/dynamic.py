"""Dynamic quantization: weights are stored as integers, and activations get their scale while the model runs.

    x -> DynamicQuantizeLinear -> codes, scale, zero point
    codes -> ConvInteger or MatMulInteger (with the codes of the weight) -> Cast -> Mul by both scales -> Add the bias

An activation that several layers read is quantized once. The weight of a Gemm is stored as MatMulInteger reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from detent.graph.values import Names, constant, remove_node, take_over
from detent.numerics.formats import QuantParams
from detent.plan.layout import Role
from detent.plan.plan import Plan
from detent.qdq.builder import GraphWriter

Quantized = tuple[ir.Value, ir.Value, ir.Value]


def emit_dynamic(model: ir.Model, plan: Plan) -> None:
    """Rewrite every planned layer of `model` in place."""
    emitter = _Emitter(GraphWriter(model.graph, Names(model)), plan)
    weights = {site.value: site for site in plan.layout.of_role(Role.WEIGHT)}
    for node in list(model.graph):
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if weight is not None and str(weight.name) in weights and plan.layout.quantizes(node):
            emitter.layer(node, weight)
    model.graph.sort()


class _Emitter:
    def __init__(self, writer: GraphWriter, plan: Plan) -> None:
        self._writer, self._plan = writer, plan
        self._quantized: dict[ir.Value, Quantized] = {}

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
        stored = self._writer.constant(f"{weight.name}_quantized", codes)
        zeros = params.zero_point.astype(params.format.dtype)
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
