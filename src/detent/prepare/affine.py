"""Fold a per-channel affine map y = scale * x + shift into the linear layer before or after it.

A layer computes L(x) + b, with L linear in x and in its weight W, and b added per output channel. Then

    scale * (L(x) + b) + shift  =  L'(x) + b'    W' = W scaled along the output channels,  b' = scale * b + shift
    L(scale * x + shift) + b    =  L'(x) + b'    W' = W scaled along the input channels,   b' = b + L(shift)

so two nodes become one that computes the same. The second line needs L(shift) to be the same at every place of the
output. With zero padding it is not: the padded zeros of x are not scale * 0 + shift, unless the shift is zero.

Layouts of W: Conv (out, in/group, k...), ConvTranspose (in, out/group, k...), Gemm (in, out), or (out, in) with transB,
and MatMul (in, out). Gemm computes alpha * A @ B + beta * C: alpha stays where it is, beta is absorbed into the new C.

All arithmetic is in float64, and the result is rounded once to the type of the weight.

FoldAffine: with a constant c per channel, y * c, y / c, y + c, y - c and c - y are such maps, and the layer that
computes y absorbs them. Conv without bias followed by Add is the most common case.

FoldBatchNorm: at inference, BatchNormalization is such a map too, which the layer next to it absorbs:

    y = gamma * (x - mean) / sqrt(var + epsilon) + beta      scale = gamma / sqrt(var + epsilon)
                                                             shift = beta - mean * scale

Channels are dimension 1, so Gemm and MatMul take part with rank 2 only; or with a Reshape or Flatten in between that
joins all dimensions before the last, x W -> (rows, channels): channels are the last of both.

BatchNormToConv: if no layer can absorb it, a Conv with one group per channel and a kernel of one element multiplies
every channel by its weight and adds its bias: the same function, in an operator that NPUs run.

Fully connected layers are brought into one form, a Gemm without factors.

MatMulToGemm: for a matrix x, Gemm computes x @ W + b in one node: the same products and the same sum as MatMul and Add.
With more dimensions Gemm does not apply, so the rank of x has to be known.

NormalizeGemm: Gemm computes alpha * A @ B + beta * C = A @ (alpha * B) + (beta * C). With B and C constant the factors
are multiplied in once, and a plain fully connected layer is left.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph import values
from detent.prepare.base import OperatorPass, Pass, as_float64, ints_attribute

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Affine:
    """y = scale * x + shift, per channel: two vectors of one length, which is 1 where all channels share them."""

    scale: Array
    shift: Array

    def over(self, channels: int) -> Affine:
        """Return the same map with one entry per channel."""
        return Affine(np.broadcast_to(self.scale, (channels,)), np.broadcast_to(self.shift, (channels,)))

    def fits(self, channels: int) -> bool:
        """Return whether the map has one entry, or one for each of the channels."""
        return self.scale.size in (1, channels)


@dataclasses.dataclass(frozen=True)
class Layer:
    """A linear layer with constant parameters: its weight, its bias (zero where it has none) and its layout."""

    node: ir.Node
    weight: Array
    bias: Array | None
    dtype: np.dtype[Any]
    group: int
    transposed: bool
    alpha: float

    @property
    def outputs(self) -> int:
        if self.node.op_type == "Conv" or self.transposed:
            return int(self.weight.shape[0])
        return int(self.weight.shape[1]) * self.group

    @property
    def inputs(self) -> int:
        if self.node.op_type == "Conv":
            return int(self.weight.shape[1]) * self.group
        return int(self.weight.shape[1 if self.transposed else 0])


def read_layer(node: ir.Node) -> Layer | str:
    """Return the layer that a Conv, ConvTranspose, Gemm or MatMul is, or the reason why it cannot take a map in."""
    weight, bias_value = values.constant(values.input_at(node, 1)), values.input_at(node, 2)
    if weight is None:
        return f"the weight of {node.op_type} '{node.name}' is not constant"
    if weight.dtype not in (np.float32, np.float64):
        return f"the weight of {node.op_type} '{node.name}' is {weight.dtype}"
    if node.op_type in ("Gemm", "MatMul") and weight.ndim != 2:
        return f"the weight of {node.op_type} '{node.name}' has {weight.ndim} dimensions"
    bias = values.constant(bias_value)
    if bias_value is not None and bias is None:
        return f"the bias of {node.op_type} '{node.name}' is not constant"
    # Only Gemm has factors and a transposed weight, only convolutions have groups: others have just the defaults.
    return Layer(
        node=node,
        weight=as_float64(weight),
        bias=None if bias is None else as_float64(bias) * node.attributes.get_float("beta", 1.0),
        dtype=weight.dtype,
        group=node.attributes.get_int("group", 1),
        transposed=node.attributes.get_int("transB", 0) == 1,
        alpha=node.attributes.get_float("alpha", 1.0),
    )


def fold_after(owner: Pass, model: ir.Model, node: ir.Node, affine: Affine) -> str | None:
    """Fold a map of the node's output into the node. Return the reason if it cannot be, and None when done."""
    layer = read_layer(node)
    if isinstance(layer, str):
        return layer
    if not affine.fits(layer.outputs):
        return f"{affine.scale.size} factors do not fit the {layer.outputs} output channels of '{node.name}'"
    full = affine.over(layer.outputs)
    bias = full.shift if layer.bias is None else full.scale * layer.bias + full.shift
    return _write(owner, model, layer, _scale_outputs(layer, full.scale), bias)


def fold_before(owner: Pass, model: ir.Model, node: ir.Node, affine: Affine) -> str | None:
    """Fold a map of the node's data input into the node. Return the reason if it cannot be, and None when done."""
    layer = read_layer(node)
    if isinstance(layer, str):
        return layer
    if not affine.fits(layer.inputs):
        return f"{affine.scale.size} factors do not fit the {layer.inputs} input channels of '{node.name}'"
    reason = _why_not_before(node, affine)
    if reason is not None:
        return reason
    full = affine.over(layer.inputs)
    # The shift passes through the product, which Gemm multiplies by alpha; the bias does not.
    constant_part = layer.alpha * _apply_to_constant(layer, full.shift)
    bias = constant_part if layer.bias is None else layer.bias + constant_part
    return _write(owner, model, layer, layer.weight * _along_inputs(layer, full.scale), bias)


def _why_not_before(node: ir.Node, affine: Affine) -> str | None:
    if node.op_type == "Conv":
        padded = any(ints_attribute(node, "pads") or [])
        auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
        if (padded or auto_pad not in ("NOTSET", "VALID", "")) and bool(np.any(affine.shift)):
            return f"Conv '{node.name}' pads with zeros, which the shift would have changed"
        return None
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) != 0:
        return f"Gemm '{node.name}' transposes its input"
    if node.op_type == "ConvTranspose":
        return f"ConvTranspose '{node.name}' does not see every input channel at every place of its output"
    return None


def _scale_outputs(layer: Layer, scale: Array) -> Array:
    weight = layer.weight
    if layer.node.op_type == "ConvTranspose":
        spatial = weight.shape[2:]
        grouped = weight.reshape(layer.group, -1, weight.shape[1], *spatial)
        factor = scale.reshape(layer.group, 1, weight.shape[1], *[1] * len(spatial))
        return (grouped * factor).reshape(weight.shape)
    if layer.node.op_type == "Conv" or layer.transposed:
        return weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return weight * scale


def _along_inputs(layer: Layer, per_input: Array) -> Array:
    """Return a vector over the input channels, shaped so that it multiplies the weight."""
    if layer.node.op_type == "Conv":
        out, depth = layer.weight.shape[:2]
        by_group = np.repeat(per_input.reshape(layer.group, depth), out // layer.group, axis=0)
        return by_group.reshape(out, depth, *[1] * (layer.weight.ndim - 2))
    return per_input if layer.transposed else per_input[:, None]


def _apply_to_constant(layer: Layer, per_input: Array) -> Array:
    """Return the layer's output per channel, without bias, for an input that is constant per channel."""
    product = layer.weight * _along_inputs(layer, per_input)
    by_output = layer.node.op_type == "Conv" or layer.transposed
    total: Array = product.sum(axis=tuple(range(1, product.ndim)) if by_output else 0)
    return total


def _write(owner: Pass, model: ir.Model, layer: Layer, weight: Array, bias: Array) -> str | None:
    """Give the node its new parameters. A bias of zeros is not added if there was none."""
    node = layer.node
    # Past the range of float32 a parameter becomes infinite, and the check below declines.
    with np.errstate(over="ignore"):
        stored, stored_bias = weight.astype(layer.dtype), bias.astype(layer.dtype)
    if not (np.isfinite(stored).all() and np.isfinite(stored_bias).all()):
        return f"the folded parameters of '{node.name}' would not be finite"
    needs_bias = layer.bias is not None or bool(np.any(bias))
    # MatMul has no input for a bias; Gemm has one, but takes matrices only.
    if node.op_type == "MatMul" and needs_bias:
        if values.rank(node.inputs[0]) != 2:
            return f"the input of MatMul '{node.name}' is not known to have rank 2, so it cannot become a Gemm"
        node.op_type = "Gemm"
    values.set_input(node, 1, owner.initializer(model, node, "folded_weight", stored))
    if needs_bias:
        values.set_input(node, 2, owner.initializer(model, node, "folded_bias", stored_bias))
    else:
        values.cut_inputs(node, 2)
    # `read_layer` multiplied it into the bias.
    node.attributes.pop("beta", None)
    return None


_LAYERS = ("Conv", "ConvTranspose", "Gemm")


class FoldAffine(OperatorPass):
    """Fold arithmetic with a constant into the Conv, ConvTranspose or Gemm before it.

    Cases:
    - the constant is a scalar or has one entry per output channel, and does not add dimensions to the result;
    - Mul and Add with the constant on either side, Sub on either side, Div by the constant;
    - chains fold from the layer outwards, one after the other;
    - declined: a constant per place or per sample, division by zero, and a layer whose output is used elsewhere or is a
      graph output, or whose parameters are not constant.
    """

    operators = ("Mul", "Add", "Sub", "Div")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        for index in (0, 1):
            layer, array = values.made_by(node.inputs[index], *_LAYERS), values.constant(node.inputs[1 - index])
            if layer is not None and array is not None:
                return self._fold(model, node, index, layer, array)
        return None

    def _fold(self, model: ir.Model, node: ir.Node, index: int, layer: ir.Node, array: npt.NDArray[Any]) -> str | None:
        (source,) = layer.outputs
        if values.sole_use(source, model.graph) is None:
            return values.why_not_sole(source)
        dims = 2 if layer.op_type == "Gemm" else values.rank(layer.inputs[1])
        vector = per_channel(array, dims)
        if vector is None:
            return f"its constant of shape {list(array.shape)} is not one number per channel"
        affine = _as_affine(node.op_type, vector, constant_first=index == 1)
        if affine is None:
            return "it divides by the layer's output" if index == 1 else "it divides by zero"
        reason = fold_after(self, model, layer, affine)
        if reason is None:
            self.absorbed(model, node, layer, f"{node.op_type} folded into {layer.op_type} '{layer.name}'")
        return reason


def per_channel(array: npt.NDArray[Any], dims: int | None) -> Array | None:
    """Return the constant as a vector over dimension 1 of a value with so many dimensions, or None if it is not one."""
    if dims is None or array.ndim > dims:
        return None
    # Broadcasting aligns shapes at their ends.
    shape = (1,) * (dims - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    return as_float64(array).reshape(-1)


def _as_affine(op_type: str, vector: Array, constant_first: bool) -> Affine | None:
    """Return what the operator does to the layer's output, or None if that is not affine."""
    one, zero = np.ones_like(vector), np.zeros_like(vector)
    if op_type == "Mul":
        return Affine(vector, zero)
    if op_type == "Add":
        return Affine(one, vector)
    if op_type == "Sub":
        return Affine(-one, vector) if constant_first else Affine(one, -vector)
    if constant_first or not bool(np.all(vector)):
        return None
    return Affine(1.0 / vector, zero)


class MatMulToGemm(OperatorPass):
    """Merge MatMul and the Add after it.

    Cases:
    - the weight is a constant matrix and the bias a constant with one entry, or one per column, on either side of Add;
    - declined: the input's rank is not known to be 2, or the product is used elsewhere;
    - left alone without a note: a MatMul of two computed values, and an Add of two computed values.
    """

    operators = ("Add",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        for index in (0, 1):
            layer = values.made_by(node.inputs[index], "MatMul")
            if layer is not None:
                return self._merge(model, layer, node, node.inputs[1 - index])
        return None

    def _merge(self, model: ir.Model, layer: ir.Node, add: ir.Node, bias: ir.Value | None) -> str | None:
        (product,), weight, shift = layer.outputs, values.constant(layer.inputs[1]), values.constant(bias)
        if weight is None or weight.ndim != 2 or shift is None:
            return None
        if values.rank(layer.inputs[0]) != 2:
            return f"the input of MatMul '{layer.name}' is not known to have rank 2"
        if weight.dtype not in (np.float32, np.float64):
            return f"the weight of MatMul '{layer.name}' is {weight.dtype}"
        if values.sole_use(product, model.graph) is None:
            return values.why_not_sole(product)
        vector = per_channel(shift, 2)
        columns = weight.shape[1]
        if vector is None or vector.size not in (1, columns):
            return f"the bias of shape {list(shift.shape)} is not one number per column"
        stored = np.broadcast_to(vector, (columns,)).astype(weight.dtype)
        layer.op_type = "Gemm"
        values.set_input(layer, 2, self.initializer(model, layer, "bias", stored))
        self.absorbed(model, add, layer, f"merged with MatMul '{layer.name}' into a Gemm")
        return None


class NormalizeGemm(OperatorPass):
    """Make alpha and beta of Gemm 1.

    Cases:
    - alpha goes into a constant B, beta into a constant C;
    - beta without C is dropped, and C with a beta of 0 is dropped;
    - declined, each on its own: a factor whose matrix is not constant.
    """

    operators = ("Gemm",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        self._absorb(model, node, "alpha", 1)
        self._absorb(model, node, "beta", 2)
        return None

    def _absorb(self, model: ir.Model, node: ir.Node, factor: str, index: int) -> None:
        number = node.attributes.get_float(factor, 1.0)
        value = values.input_at(node, index)
        if number == 1.0:
            return
        array = values.constant(value)
        if value is not None and number == 0.0 and factor == "beta":
            values.cut_inputs(node, 2)
        elif value is not None:
            if array is None or array.dtype not in (np.float32, np.float64):
                self.decline(node, f"{factor} is {number:g} and '{value.name}' is not constant")
                return
            role = "scaled_weight" if index == 1 else "scaled_bias"
            scaled = (as_float64(array) * number).astype(array.dtype)
            values.set_input(node, index, self.initializer(model, node, role, scaled))
        node.attributes.pop(factor)
        self.changed(node, f"{factor} {number:g} folded into its constants")


_PARAMETERS = ("scale", "bias", "mean", "variance")


def read_batchnorm(node: ir.Node) -> Affine | str:
    """Return the map that a BatchNormalization is, or the reason why it is not a fixed one."""
    if node.attributes.get_int("training_mode", 0):
        return "it is in training mode"
    if any(not values.is_unused(value) for value in node.outputs[1:]):
        return "its running statistics are used"
    arrays = []
    for index, name in enumerate(_PARAMETERS, start=1):
        array = values.constant(values.input_at(node, index))
        if array is None:
            return f"its {name} is not constant"
        arrays.append(as_float64(array).reshape(-1))
    if len({array.size for array in arrays}) > 1:
        return "its parameters are of different sizes"
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
        affine = read_batchnorm(node)
        if isinstance(affine, str):
            return affine
        backward = self._backward(model, node, affine)
        forward = None if backward is None else self._forward(model, node, affine)
        if forward is None:
            return None
        return f"not into the layer before it: {backward}; not into the layer after it: {forward}"

    def _backward(self, model: ir.Model, node: ir.Node, affine: Affine) -> str | None:
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
        """Fold into the MatMul before a Reshape that leaves the last dimension, or return why that is not possible."""
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
        affine = read_batchnorm(node)
        if isinstance(affine, str):
            return affine
        dims = values.rank(node.inputs[0])
        if dims not in (3, 4, 5):
            return "the rank of its input is not known" if dims is None else f"its input has {dims} dimensions"
        gamma = values.constant(node.inputs[1])
        if gamma is None or gamma.dtype not in (np.float32, np.float64):
            return "its parameters are not float32"
        channels, kernel = affine.scale.size, [1] * (dims - 2)
        weight = affine.scale.reshape(channels, 1, *kernel).astype(gamma.dtype)
        values.cut_inputs(node, 3)
        values.set_input(node, 1, self.initializer(model, node, "conv_weight", weight))
        values.set_input(node, 2, self.initializer(model, node, "conv_bias", affine.shift.astype(gamma.dtype)))
        # The others are the statistics of training, which nothing reads.
        node.resize_outputs(1)
        node.op_type = "Conv"
        node.attributes.clear()
        node.attributes["group"] = ir.AttrInt64("group", channels)
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", kernel)
        self.changed(node, f"became a depthwise Conv over {channels} channels")
        return None
