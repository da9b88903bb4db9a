"""Fold BatchNormalization into a neighbor, or turn it into a Conv.

At inference it is an affine map per channel:

    y = gamma * (x - mean) / sqrt(var + epsilon) + beta  =  scale * x + shift

with scale = gamma / sqrt(var + epsilon) and shift = beta - mean * scale. The default of epsilon is 1e-5.

FoldBatchNorm: a linear layer next to it absorbs the map by the algebra of `affine`: the weight is scaled, the bias is
moved, and one node is gone. Channels are dimension 1, so Gemm and MatMul take part with rank 2 only; or with a Reshape
or Flatten in between that joins all dimensions before the last, x W -> (rows, channels): channels are the last of both.

BatchNormToConv: if no layer can absorb it, a Conv with one group per channel and a kernel of one element multiplies
every channel by its weight and adds its bias: the same function, in an operator that NPUs run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.graph import values
from detent.prepare.affine import Affine, fold_after, fold_before
from detent.prepare.base import OperatorPass, as_float64, int_attribute

_PARAMETERS = ("scale", "bias", "mean", "variance")


def read_batchnorm(node: ir.Node) -> Affine | str:
    """Return the map that a BatchNormalization is, or the reason why it is not a fixed one."""
    if int_attribute(node, "training_mode", 0):
        return "it is in training mode"
    if any(not values.is_unused(value) for value in node.outputs[1:]):
        return "its running statistics are used"
    arrays = []
    for index, name in enumerate(_PARAMETERS, start=1):
        array = values.constant(values.input_at(node, index))
        if array is None:
            return f"its {name} is not constant"
        arrays.append(as_float64(array).reshape(-1))
    gamma, beta, mean, variance = arrays
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    if not bool(np.all(variance + epsilon > 0)):
        return "its variance is not positive"
    scale = gamma / np.sqrt(variance + epsilon)
    return Affine(scale, beta - mean * scale)


class FoldBatchNorm(OperatorPass):
    """Fold BatchNormalization with constant parameters into a neighbour with constant weights.

    Cases:
    - backwards into Conv, ConvTranspose (any group), Gemm (any transB, alpha, beta) or MatMul of rank 2, when that
      node's output has no other use. The node's output takes over the name of the BatchNormalization's;
    - else forwards into Conv, Gemm or MatMul of rank 2, when that is the only reader. A Conv that pads with zeros only
      takes it when the shift is zero;
    - MatMul that needs a bias for it becomes Gemm;
    - backwards through a Reshape or Flatten to rank 2 into a MatMul of any rank, with an Add if a shift is left;
    - in training mode, with parameters that are not constant, or between two other things: declined.
    """

    operators = ("BatchNormalization",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        """Fold it into the layer before it, else into the layer after it."""
        affine = read_batchnorm(node)
        if isinstance(affine, str):
            return affine
        backward = self._backward(model, node, affine)
        forward = None if backward is None else self._forward(model, node, affine)
        if forward is None:
            return None
        return f"not into the layer before it: {backward}; not into the layer after it: {forward}"

    def _backward(self, model: ir.Model, node: ir.Node, affine: Affine) -> str | None:
        """Fold into the producer; the reason if that is not possible."""
        source = node.inputs[0]
        if source is None:
            return "it has no input"
        layer = source.producer()
        if layer is not None and values.is_standard(layer, "Reshape", "Flatten"):
            return self._through_reshape(model, node, layer, affine)
        if layer is None or not values.is_standard(layer, "Conv", "ConvTranspose", "Gemm", "MatMul"):
            return f"'{source.name}' comes from {'the outside' if layer is None else layer.op_type}"
        if values.sole_use(source, model.graph) is None:
            return values.why_not_sole(source)
        if layer.op_type == "MatMul" and values.rank(layer.inputs[0]) != 2:
            return f"the input of MatMul '{layer.name}' is not known to have rank 2"
        reason = fold_after(self, model, layer, affine)
        if reason is None:
            self.absorbed(model, node, layer, f"folded into {layer.op_type} '{layer.name}' before it")
        return reason

    def _through_reshape(self, model: ir.Model, node: ir.Node, reshape: ir.Node, affine: Affine) -> str | None:
        """Fold into the MatMul before a Reshape that leaves the last dimension; the reason if that is not possible."""
        product, rows = reshape.inputs[0], reshape.outputs[0]
        layer = values.made_by(product, "MatMul")
        weight = None if layer is None else values.constant(layer.inputs[1])
        if product is None or layer is None or weight is None or weight.ndim != 2:
            return "before the Reshape is no MatMul with a constant weight"
        for value in (product, rows):
            if values.sole_use(value, model.graph) is None:
                return values.why_not_sole(value)
        channels, shapes = weight.shape[1], [values.static_shape(value) for value in (product, rows)]
        if any(not shape or shape[-1] != channels for shape in shapes) or values.rank(rows) != 2:
            return "the Reshape between them is not known to leave the last dimension"
        scaled = (as_float64(weight) * affine.over(channels).scale).astype(weight.dtype)
        values.set_input(layer, 1, self.initializer(model, layer, "scaled_weight", scaled))
        shift = affine.over(channels).shift
        if shift.any():
            term = self.initializer(model, node, "shift", shift.astype(weight.dtype))
            added = ir.node("Add", [product, term], name=self.fresh(model, node, "add"))
            added.outputs[0].name = self.fresh(model, node, "shifted")
            added.outputs[0].type, added.outputs[0].shape = product.type, product.shape
            model.graph.insert_before(reshape, added)
            reshape.replace_input_with(0, added.outputs[0])
        self.absorbed(model, node, reshape, f"folded into MatMul '{layer.name}' before the Reshape")
        return None

    def _forward(self, model: ir.Model, node: ir.Node, affine: Affine) -> str | None:
        """Fold into the only reader; the reason if that is not possible."""
        source, output = node.inputs[0], node.outputs[0]
        use = values.sole_use(output, model.graph)
        if source is None or use is None:
            return values.why_not_sole(output)
        layer, index = use
        if not values.is_standard(layer, "Conv", "Gemm", "MatMul") or index != 0:
            return f"'{output.name}' goes to {layer.op_type}"
        if layer.op_type != "Conv" and values.rank(source) != 2:
            return f"'{source.name}' is not known to have rank 2"
        if output.shape is None:
            output.shape = source.shape
        reason = fold_before(self, model, layer, affine)
        if reason is not None:
            return reason
        layer.replace_input_with(0, source)
        values.remove_node(model.graph, node)
        self.merged(node, layer)
        self.changed(node, f"folded into {layer.op_type} '{layer.name}' after it")
        return None


class BatchNormToConv(OperatorPass):
    """Replace BatchNormalization by a depthwise Conv.

    Cases:
    - parameters are constant and the input has 3, 4 or 5 dimensions;
    - declined: another rank or an unknown one, training mode, parameters that are not constant.
    """

    operators = ("BatchNormalization",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        """Convert it if its parameters are constant and its rank is one that Conv has."""
        affine = read_batchnorm(node)
        if isinstance(affine, str):
            return affine
        dims = values.rank(node.inputs[0])
        if dims not in (3, 4, 5):
            return "the rank of its input is not known" if dims is None else f"its input has {dims} dimensions"
        gamma = values.constant(node.inputs[1])
        if gamma is None or gamma.dtype not in (np.float32, np.float64):
            return "its parameters are not float32"
        self._rewrite(model, node, affine, [1] * (dims - 2), gamma.dtype)
        self.changed(node, f"became a depthwise Conv over {affine.scale.size} channels")
        return None

    def _rewrite(
        self, model: ir.Model, node: ir.Node, affine: Affine, kernel: list[int], dtype: np.dtype[np.generic]
    ) -> None:
        channels = affine.scale.size
        weight = affine.scale.reshape(channels, 1, *kernel).astype(dtype)
        values.cut_inputs(node, 3)
        values.set_input(node, 1, self.initializer(model, node, "conv_weight", weight))
        values.set_input(node, 2, self.initializer(model, node, "conv_bias", affine.shift.astype(dtype)))
        # The others are the statistics of training, which nothing reads.
        node.resize_outputs(1)
        node.op_type = "Conv"
        node.attributes.clear()
        node.attributes["group"] = ir.AttrInt64("group", channels)
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", kernel)
