"""Layers on integers, pools, and operators that move integers.

A layer sums products of codes in the accumulator, and adds its bias. With positions in, weight and bias, products have
the unit 2^-(in + weight). If that is finer than the unit of the bias, the bias is shifted left by in + weight - bias;
otherwise the products are shifted. Either way nothing is lost. The accumulator is held in steps of the layer's output:
its weights are multiplied by 2^-cut beforehand, with cut = in + weight - out. That changes exponents only, and saves a
pass over the result.

Whether float32 is exact is decided from the weights themselves (see `fixed`). If it may not be, Gemm and MatMul compute
in float64. onnxruntime has Conv in float32 only, so a Conv is cut along its input channels into parts that are exact,
and these are added up in float64.

Operators that move codes run on the integers as they are. An average is a sum with a pending division. The device
factor behind it in the file, n * k / 2^m for n elements, turns it into the sum times k and a shift by m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emulator import fixed
from detent.emulator.arithmetic import aligned, product
from detent.graph.values import constant_scalar, input_at, static_shape
from detent.prepare.base import axes_of
from detent.qdq.families import is_native_quantize

_FOLLOWED = ("Relu", "Clip", "LeakyRelu", "PRelu")

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """A layer's operands in the steps of its accumulator.

    `weights` are [output channels, ...]; the products along all other axes are summed.
    """

    source: fixed.Fixed
    weights: Integers
    bias: Integers
    position: int
    unit: int

    def magnitudes(self) -> Integers:
        """Return for each output channel a bound on every partial sum of its products."""
        sums: Integers = np.abs(self.weights).reshape(len(self.weights), -1).sum(1)
        return sums * self.source.reach

    def exact_in_float32(self) -> bool:
        """Return whether every sum, in whatever order, stays below 2^24."""
        return int((self.magnitudes() + np.abs(self.bias)).max(initial=0)) < fixed.NARROW_LIMIT

    def range(self) -> tuple[int, int]:
        """Return the least and the largest accumulator. Padding adds zeros, so an input may always be zero."""
        flat = self.weights.reshape(len(self.weights), -1)
        rising, falling = np.maximum(flat, 0).sum(1), np.minimum(flat, 0).sum(1)
        # The bounds have to hold for padded zeros too, which a range such as 3..100 does not contain.
        low, high = min(self.source.low, 0), max(self.source.high, 0)
        least = rising * low + falling * high + self.bias
        most = rising * high + falling * low + self.bias
        return int(least.min(initial=0)), int(most.max(initial=0))

    def held_weights(self, original: Callable[[Integers], Integers], wide: bool) -> npt.NDArray[Any]:
        """Return the weights to compute with, in the file's order of axes."""
        return fixed.held(original(self.weights), self.position - self.unit - self.source.shift, wide)

    def held_bias(self, wide: bool) -> npt.NDArray[Any]:
        """Return the bias to add."""
        return fixed.held(self.bias, self.position - self.unit, wide)

    def written(
        self,
        builder: fixed.ProgramBuilder,
        node: ir.Node,
        original: Callable[[Integers], Integers],
        *,
        wide: bool = False,
        with_bias: bool = True,
    ) -> fixed.Fixed:
        """Add the file's operator to the program, on integers, and return the accumulator."""
        source = builder.widened(self.source) if wide else self.source
        inputs = [source.value, builder.array(self.held_weights(original, wide))]
        if with_bias:
            inputs.append(builder.array(self.held_bias(wide)))
        return self.result(builder.again(node, inputs)[0], wide)

    def result(self, value: ir.Value, wide: bool) -> fixed.Fixed:
        """Return the accumulator, whose numbers are in `value`."""
        low, high = self.range()
        return fixed.Fixed(value, self.position, low, high, shift=self.position - self.unit, wide=wide).checked()


def landing(value: ir.Value) -> int | None:
    """Return the position of the codes that a value is rounded to, if only activation functions are in between."""
    while len(value.consumers()) == 1 and not value.is_graph_output():
        consumer = value.consumers()[0]
        if is_native_quantize(consumer):
            return fixed.grid_of(consumer).position
        if consumer.op_type not in _FOLLOWED or consumer.inputs[0] is not value:
            return None
        value = consumer.outputs[0]
    return None


def _layer(
    builder: fixed.ProgramBuilder, node: ir.Node, channels_first: Callable[[Integers], Integers]
) -> IntegerLayer:
    source = builder.narrow(node.inputs[0])
    weight = builder.constants.get(node.inputs[1]) if node.inputs[1] is not None else None
    if weight is None:
        raise fixed.NotIntegerError("its weight is not a constant with a position")
    given = input_at(node, 2)
    bias = builder.constants.get(given) if given is not None else fixed.Constant(np.zeros(1, np.int64), source.position)
    if bias is None:
        raise fixed.NotIntegerError("its bias is not a constant with a position")
    products = source.position + weight.position
    position = max(products, bias.position) if given is not None else products
    weights = channels_first(weight.shifted(position - products))
    biases = bias.shifted(position - bias.position) if given is not None else bias.integers
    if biases.size not in (1, len(weights)):
        raise fixed.NotIntegerError("its bias differs from row to row")
    reached = landing(node.outputs[0])
    # In steps of the result most sums are small floats, and the rounding behind the layer is a plain rint.
    unit = position if reached is None else reached
    return IntegerLayer(source, weights, np.broadcast_to(biases.reshape(-1), len(weights)), position, unit)


def conv(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Conv, in parts if one sum would be too long."""
    layer = _layer(builder, node, _as_it_is)
    if layer.exact_in_float32():
        return layer.written(builder, node, _as_it_is)
    # Slices of input channels would cut through the groups.
    if node.attributes.get_int("group", 1) != 1:
        raise fixed.NotIntegerError("the sums of its groups may need more than 24 bits")
    shape = [1, -1] + [1] * (layer.weights.ndim - 2)
    # Parts are exact in float32 each; only their sum needs float64, which convolves several times slower.
    total = builder.array(layer.held_bias(wide=True).reshape(shape))
    weights_held = layer.held_weights(_as_it_is, wide=False)
    for start, stop in _parts(layer):
        ends = [builder.array(np.array([end], np.int64)) for end in (start, stop, 1)]
        some = builder.node("Slice", [layer.source.value, *ends])
        part = builder.again(node, [some, builder.array(weights_held[:, start:stop])])[0]
        total = builder.node("Add", [total, builder.node("Cast", [part], to=ir.DataType.DOUBLE.value)])
    return layer.result(total, wide=True)


def _as_it_is(weights: Integers) -> Integers:
    return weights


def _parts(layer: IntegerLayer) -> list[tuple[int, int]]:
    """Divide the input channels into ranges, each as long as its sums stay below 2^24."""
    channels = layer.weights.shape[1]
    sizes = np.abs(layer.weights).reshape(*layer.weights.shape[:2], -1).sum(2) * layer.source.reach
    if int(sizes.max()) >= fixed.NARROW_LIMIT:
        raise fixed.NotIntegerError("the sum of a single channel may need more than 24 bits")
    parts, start = [], 0
    while start < channels:
        longest = (np.cumsum(sizes[:, start:], 1) < fixed.NARROW_LIMIT).all(0)
        stop = start + (int(np.argmin(longest)) if not longest.all() else channels - start)
        parts.append((start, stop))
        start = stop
    return parts


def conv_transpose(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile ConvTranspose. An output sums at most one product for each weight of its channel."""
    groups = node.attributes.get_int("group", 1)

    def channels_first(weights: Integers) -> Integers:
        split = weights.reshape(groups, -1, *weights.shape[1:])
        return np.moveaxis(split, 2, 1).reshape(groups * weights.shape[1], -1, *weights.shape[2:])

    def original(weights: Integers) -> Integers:
        split = weights.reshape(groups, -1, *weights.shape[1:])
        return np.moveaxis(split, 2, 1).reshape(-1, len(weights) // groups, *weights.shape[2:])

    layer = _layer(builder, node, channels_first)
    if not layer.exact_in_float32():
        raise fixed.NotIntegerError("its sums may need more than 24 bits")
    return layer.written(builder, node, original)


def gemm(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Gemm without factors."""
    if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        raise fixed.NotIntegerError("its alpha and beta are not 1")
    if node.attributes.get_int("transA", 0):
        raise fixed.NotIntegerError("its input is transposed")
    order = _as_it_is if node.attributes.get_int("transB", 0) else np.transpose
    layer = _layer(builder, node, order)
    return layer.written(builder, node, order, wide=not layer.exact_in_float32())


def matmul(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile MatMul with a matrix of weights, or of two tensors of codes."""
    if node.inputs[1] in builder.constants and builder.constants[node.inputs[1]].integers.ndim == 2:
        layer = _layer(builder, node, np.transpose)
        return layer.written(builder, node, np.transpose, wide=not layer.exact_in_float32(), with_bias=False)
    first, second = (builder.whole(value) for value in node.inputs)
    shape = static_shape(node.inputs[0])
    length = shape[-1] if shape else None
    if length is None:
        raise fixed.NotIntegerError("the length of its sums is not known")
    reach = length * first.reach * second.reach
    return product(builder, node.op_type, first, second, -reach, reach).checked()


# Rounding recovers a whole number below this after a division and a multiplication with relative errors of 2^-24.
_RECOVERABLE = 1 << 22


def move(builder: fixed.ProgramBuilder, node: ir.Node) -> list[fixed.Fixed]:
    """Compile Reshape, Transpose, Slice, MaxPool and all else that copies or picks elements."""
    operand = builder.narrow(node.inputs[0])
    if node.op_type == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].uses():
        raise fixed.NotIntegerError("it also answers where the largest elements are")
    values = builder.again(node, [operand.value, *node.inputs[1:]])
    return [replace(operand, value=value) for value in values]


def resize(builder: fixed.ProgramBuilder, node: ir.Node) -> list[fixed.Fixed]:
    """Compile Resize to the nearest element."""
    mode = node.attributes.get_string("mode", "nearest")
    if mode != "nearest" or node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise fixed.NotIntegerError(f"its mode '{mode}' computes new values between those it has")
    return move(builder, node)


def concat(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Concat; operands at other positions are shifted first."""
    operands = [builder.whole(value) for value in node.inputs]
    same = aligned(builder, operands, 0)
    value = builder.again(node, [operand.value for operand in same])[0]
    low, high = min(operand.low for operand in same), max(operand.high for operand in same)
    return replace(same[0], value=value, low=low, high=high)


def pad(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Pad, with a constant or with elements of its own."""
    operand = builder.narrow(node.inputs[0])
    if node.attributes.get_string("mode", "constant") != "constant":
        return replace(operand, value=builder.again(node, [operand.value, *node.inputs[1:]])[0])
    filling = 0.0
    given = input_at(node, 2)
    if given is not None and given in builder.constants:
        known = builder.constants[given]
        filling = math.ldexp(int(known.integers.reshape(-1)[0]), -known.position)
    elif given is not None:
        number = constant_scalar(node, 2)
        if number is None:
            raise fixed.NotIntegerError("what it fills in is computed while the model runs")
        filling = number
    operand = operand.finer(fixed.exact_bound(filling, operand.position)[1])
    whole = fixed.exact_bound(filling, operand.position)[0]
    if abs(whole) >= fixed.NARROW_LIMIT:
        raise fixed.NotIntegerError(f"it fills in {filling:g}, which no code stands for")
    fill = builder.scalar(math.ldexp(whole, -operand.shift), wide=False)
    value = builder.again(node, [operand.value, node.inputs[1], fill, *node.inputs[3:]])[0]
    return replace(operand, value=value, low=min(operand.low, whole), high=max(operand.high, whole))


def average_pool(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile AveragePool with the same number of elements in every window.

    onnxruntime has no sum over windows. Its mean is an exact sum of whole numbers, divided; multiplied by the number of
    elements and rounded, it gives that sum again.
    """
    operand = builder.narrow(node.inputs[0])
    padded = node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    padded = padded or any(node.attributes.get_ints("pads", ()))
    if node.attributes.get_int("ceil_mode", 0) or (padded and not node.attributes.get_int("count_include_pad", 0)):
        raise fixed.NotIntegerError("its windows at the border have fewer elements")
    count = math.prod(node.attributes.get_ints("kernel_shape", ()))
    low, high = min(operand.low, 0) * count, max(operand.high, 0) * count
    if max(-low, high) >= _RECOVERABLE:
        raise fixed.NotIntegerError("the sum of a window may need more than 22 bits")
    operand = builder.in_unit(operand, operand.position)
    mean = builder.again(node, [operand.value])[0]
    value = builder.node("Round", [builder.node("Mul", [mean, builder.scalar(count, wide=False)])])
    return fixed.average_of(count, replace(operand, value=value, low=low, high=high))


def global_average(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile GlobalAveragePool and ReduceMean over a known number of elements."""
    operand = builder.whole(node.inputs[0])
    shape, pools = static_shape(node.inputs[0]), node.op_type == "GlobalAveragePool"
    axes = [] if shape is None else [*range(2, len(shape))] if pools else _reduced(node, len(shape))
    sizes = [size for axis in axes if shape is not None and (size := shape[axis]) is not None]
    if shape is None or len(sizes) < len(axes):
        raise fixed.NotIntegerError("the number of elements it averages is not known")
    count = math.prod(sizes)
    low, high = operand.low * count, operand.high * count
    if max(-low, high) >= fixed.NARROW_LIMIT:
        operand = builder.widened(operand)
    keep: int = 1 if pools else node.attributes.get_int("keepdims", 1)
    total = builder.node("ReduceSum", [operand.value, builder.array(np.array(axes, np.int64))], keepdims=keep)
    return fixed.average_of(count, replace(operand, value=total, low=low, high=high))


def _reduced(node: ir.Node, rank: int) -> list[int]:
    """Return the axes of a ReduceMean: an attribute, or from opset 18 on an input."""
    axes = axes_of(node)
    if axes is None and input_at(node, 1) is not None:
        raise fixed.NotIntegerError("its axes are computed while the model runs")
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        raise fixed.NotIntegerError("it averages nothing")
    return [axis % rank for axis in axes] if axes else list(range(rank))
