"""Operators that move integers, and pools.

A move of codes is the operator itself on the integers. An average is a sum with a division pending: the device factor
behind it in the file, n * k / 2^m for n elements, turns it into the sum times k and a shift by m.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant_ints, constant_scalar, input_at, static_shape
from detent.measure.emulator.arithmetic import aligned
from detent.measure.emulator.bench import Bench
from detent.measure.emulator.fixed import NARROW_LIMIT, Fixed, NotIntegerError, average_of, exact_bound

_RECOVERABLE = 1 << 22
"""A whole number below it is found again by rounding after a division and a multiplication, each off by 2^-24."""


def move(bench: Bench, node: ir.Node) -> list[Fixed]:
    """Reshape, Transpose, Slice, MaxPool and all that copies or picks elements."""
    operand = bench.narrow(node.inputs[0])
    if node.op_type == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].uses():
        raise NotIntegerError("it also answers where the largest elements are")
    values = bench.again(node, [operand.value, *node.inputs[1:]])
    return [replace(operand, value=value) for value in values]


def resize(bench: Bench, node: ir.Node) -> list[Fixed]:
    """Resize to the nearest element."""
    mode = node.attributes.get_string("mode", "nearest")
    if mode != "nearest" or node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise NotIntegerError(f"its mode '{mode}' computes new values between those it has")
    return move(bench, node)


def concat(bench: Bench, node: ir.Node) -> Fixed:
    """Concat; operands at other positions are shifted first."""
    operands = [bench.whole(value) for value in node.inputs]
    same = aligned(bench, operands, 0)
    value = bench.again(node, [operand.value for operand in same])[0]
    low, high = min(operand.low for operand in same), max(operand.high for operand in same)
    return replace(same[0], value=value, low=low, high=high)


def pad(bench: Bench, node: ir.Node) -> Fixed:
    """Pad, with a constant or with elements of its own."""
    operand = bench.narrow(node.inputs[0])
    if node.attributes.get_string("mode", "constant") != "constant":
        return replace(operand, value=bench.again(node, [operand.value, *node.inputs[1:]])[0])
    filling = 0.0
    given = input_at(node, 2)
    if given is not None and given in bench.constants:
        known = bench.constants[given]
        filling = math.ldexp(int(known.integers.reshape(-1)[0]), -known.position)
    elif given is not None:
        number = constant_scalar(node, 2)
        if number is None:
            raise NotIntegerError("what it fills in is computed while the model runs")
        filling = number
    operand = operand.finer(exact_bound(filling, operand.position)[1])
    whole = exact_bound(filling, operand.position)[0]
    if abs(whole) >= NARROW_LIMIT:
        raise NotIntegerError(f"it fills in {filling:g}, which no code stands for")
    fill = bench.scalar(math.ldexp(whole, -operand.shift), wide=False)
    value = bench.again(node, [operand.value, node.inputs[1], fill, *node.inputs[3:]])[0]
    return replace(operand, value=value, low=min(operand.low, whole), high=max(operand.high, whole))


def average_pool(bench: Bench, node: ir.Node) -> Fixed:
    """AveragePool with as many elements in every window.

    onnxruntime has no sum over windows. It sums whole numbers exactly and divides; multiplied by the number of
    elements and rounded, its mean is that sum again.
    """
    operand = bench.narrow(node.inputs[0])
    padded = node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    padded = padded or any(node.attributes.get_ints("pads", ()))
    if node.attributes.get_int("ceil_mode", 0) or (padded and not node.attributes.get_int("count_include_pad", 0)):
        raise NotIntegerError("its windows at the border have fewer elements")
    count = math.prod(node.attributes.get_ints("kernel_shape", ()))
    low, high = min(operand.low, 0) * count, max(operand.high, 0) * count
    if max(-low, high) >= _RECOVERABLE:
        raise NotIntegerError("the sum of a window may need more than 22 bits")
    operand = bench.in_unit(operand, operand.position)
    mean = bench.again(node, [operand.value])[0]
    value = bench.node("Round", [bench.node("Mul", [mean, bench.scalar(count, wide=False)])])
    return average_of(count, replace(operand, value=value, low=low, high=high))


def global_average(bench: Bench, node: ir.Node) -> Fixed:
    """GlobalAveragePool and ReduceMean over a known number of elements."""
    operand = bench.whole(node.inputs[0])
    shape = static_shape(node.inputs[0])
    if shape is None:
        raise NotIntegerError("the number of elements it averages is not known")
    axes = list(range(2, len(shape))) if node.op_type == "GlobalAveragePool" else _reduced(node, len(shape))
    sizes = [shape[axis] for axis in axes]
    if None in sizes:
        raise NotIntegerError("the number of elements it averages is not known")
    count = math.prod(size for size in sizes if size is not None)
    low, high = operand.low * count, operand.high * count
    if max(-low, high) >= NARROW_LIMIT:
        operand = bench.widened(operand)
    keep: int = 1 if node.op_type == "GlobalAveragePool" else node.attributes.get_int("keepdims", 1)
    total = bench.node("ReduceSum", [operand.value, bench.array(np.array(axes, np.int64))], keepdims=keep)
    return average_of(count, replace(operand, value=total, low=low, high=high))


def _reduced(node: ir.Node, rank: int) -> list[int]:
    """The axes of a ReduceMean: an attribute, or from opset 18 on an input."""
    given = input_at(node, 1)
    axes = constant_ints(given) if given is not None else node.attributes.get_ints("axes", ())
    if axes is None:
        raise NotIntegerError("its axes are computed while the model runs")
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        raise NotIntegerError("it averages nothing")
    return [axis % rank for axis in axes] if axes else list(range(rank))
