"""BatchNormalization is folded into the layer before it, or the layer after it.

At inference BatchNormalization is the map y = scale * x + shift per channel, with constants given in `batchnorm`. A
linear layer next to it absorbs such a map by the algebra of `affine`: the weight is scaled, the bias is moved, and the
model computes the same with one node less. Channels are dimension 1, so Gemm and MatMul take part with rank 2 only.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import is_standard, rank, remove_node, sole_use, take_over, why_not_sole
from detent.prepare.affine import Affine, fold_after, fold_before
from detent.prepare.base import Pass
from detent.prepare.batchnorm import read_batchnorm


class FoldBatchNorm(Pass):
    """Fold BatchNormalization with constant parameters into a neighbour with constant weights.

    Cases:
    - backwards into Conv, ConvTranspose (any group), Gemm (any transB, alpha, beta) or MatMul of rank 2, when that
      node's output has no other use. The node's output takes over the name of the BatchNormalization's;
    - else forwards into Conv, Gemm or MatMul of rank 2, when that is the only reader. A Conv that pads with zeros only
      takes it when the shift is zero;
    - MatMul that needs a bias for it becomes Gemm;
    - in training mode, with parameters that are not constant, or between two other things: declined.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every BatchNormalization of the main graph."""
        for node in model.graph:
            if not is_standard(node, "BatchNormalization"):
                continue
            affine = read_batchnorm(node)
            if isinstance(affine, str):
                self.decline(node, affine)
                continue
            backward = self._backward(model, node, affine)
            if backward is None:
                continue
            forward = self._forward(model, node, affine)
            if forward is not None:
                self.decline(node, f"not into the layer before it: {backward}; not into the layer after it: {forward}")

    def _backward(self, model: ir.Model, node: ir.Node, affine: Affine) -> str | None:
        """Fold into the producer; the reason where that is not possible."""
        source, output = node.inputs[0], node.outputs[0]
        if source is None:
            return "it has no input"
        layer = source.producer()
        if layer is None or not is_standard(layer, "Conv", "ConvTranspose", "Gemm", "MatMul"):
            return f"'{source.name}' comes from {'the outside' if layer is None else layer.op_type}"
        if sole_use(source, model.graph) is None:
            return why_not_sole(source)
        if layer.op_type == "MatMul" and rank(layer.inputs[0]) != 2:
            return f"the input of MatMul '{layer.name}' is not known to have rank 2"
        reason = fold_after(self, model, layer, affine)
        if reason is not None:
            return reason
        take_over(output, source)
        remove_node(model.graph, node)
        self.merged(node, layer)
        self.changed(node, f"folded into {layer.op_type} '{layer.name}' before it")
        return None

    def _forward(self, model: ir.Model, node: ir.Node, affine: Affine) -> str | None:
        """Fold into the only reader; the reason where that is not possible."""
        source, output = node.inputs[0], node.outputs[0]
        use = sole_use(output, model.graph)
        if source is None or use is None:
            return why_not_sole(output)
        layer, index = use
        if not is_standard(layer, "Conv", "Gemm", "MatMul") or index != 0:
            return f"'{output.name}' goes to {layer.op_type}"
        if layer.op_type != "Conv" and rank(source) != 2:
            return f"'{source.name}' is not known to have rank 2"
        if output.shape is None:
            output.shape = source.shape
        reason = fold_before(self, model, layer, affine)
        if reason is not None:
            return reason
        layer.replace_input_with(0, source)
        remove_node(model.graph, node)
        self.merged(node, layer)
        self.changed(node, f"folded into {layer.op_type} '{layer.name}' after it")
        return None
