"""Elementwise operators on integers, and how an accumulator becomes codes.

Add, Sub      shift read: the operands are brought to the finer of their positions by shifting left; then the sum.
Mul           the positions add up. With a single number such as a device factor, its common factors with a pending
              division cancel.
LeakyRelu     (X * k) / 256 below zero: eight more positions.
HardSigmoid   min(max(X + 3, 0), 6) / 6, in steps of the input; the file's factor behind it makes 1/6 2731/16384.
Relu, Clip    the bounds, as integers in steps that are fine enough for them.

None of them rounds: that is left to the QuantizeLinear behind the operator, which the device computes in the same step.
It shifts to the right by `cut` positions, rounds and saturates:

half-even, as QuantizeLinear rounds: ties go to the even code.
dpu, as the DPU of Phoenix was measured to do: (X + 2^(cut-1)) >> cut on the device, ties upwards, also below zero; the
bias is in X, unrounded. Values that the host quantizes (inputs of the model, and results of float nodes between two
parts on the device) are rounded half to even, as the file says.

With codes low .. high, clipping before rounding gives the same as clipping after it, because rounding is monotonic and
keeps whole numbers; and onnxruntime fuses such a Clip into its convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from detent.emulator import fixed
from detent.graph.values import constant, constant_scalar
from detent.numerics.codec import DeviceRounding


def requantize(
    builder: fixed.ProgramBuilder, operand: fixed.Fixed, grid: fixed.Grid, rounding: DeviceRounding
) -> fixed.Fixed:
    """Bring integers to another grid. If nothing has to be shifted or clipped, no node is written."""
    if operand.divisor != 1:
        raise fixed.NotIntegerError(
            f"its result is divided by {operand.divisor}, for which the file has no device factor"
        )
    cut = operand.position - grid.position
    shifted_up = rounding == "dpu" and cut > 0
    if shifted_up and operand.reach + (1 << (cut - 1)) >= fixed.NARROW_LIMIT:
        operand = builder.widened(operand)
    wide, value = operand.wide, builder.in_unit(operand, grid.position).value
    if shifted_up:
        value = builder.node("Add", [value, builder.scalar(0.5, wide)])
    low, high = fixed.rounded_range(operand.low, operand.high, cut, (grid.low, grid.high))
    if _leaves(operand, cut, grid):
        value = builder.node("Clip", [value, builder.scalar(grid.low, wide), builder.scalar(grid.high, wide)])
    if cut > 0:
        value = builder.node("Floor" if shifted_up else "Round", [value])
    if wide:
        value = builder.node("Cast", [value], to=ir.DataType.FLOAT.value)
    return fixed.Fixed(value, grid.position, low, high)


def _leaves(operand: fixed.Fixed, cut: int, grid: fixed.Grid) -> bool:
    """Return whether an element may leave the grid when it is shifted."""
    if cut > 0:
        return operand.low < grid.low << cut or operand.high > grid.high << cut
    return operand.low << -cut < grid.low or operand.high << -cut > grid.high


def quantize_float(builder: fixed.ProgramBuilder, value: ir.Value, grid: fixed.Grid) -> fixed.Fixed:
    """Bring float numbers to a grid, as the host quantizes them."""
    scaled = builder.node("Mul", [value, builder.scalar(2.0**grid.position, wide=False)])
    inside = builder.node("Clip", [scaled, builder.scalar(grid.low, wide=False), builder.scalar(grid.high, wide=False)])
    return fixed.Fixed(builder.node("Round", [inside]), grid.position, grid.low, grid.high)


SLOPE_BITS = 8  # the device multiplies by slopes in 256ths


def aligned(builder: fixed.ProgramBuilder, operands: Sequence[fixed.Fixed], reach: int) -> list[fixed.Fixed]:
    """Bring operands to the finest of their positions, held in one unit; in float64 if `reach` asks for it."""
    position = max(operand.position for operand in operands)
    wide = any(operand.wide for operand in operands) or reach >= fixed.NARROW_LIMIT
    same = [operand.finer(position - operand.position) for operand in operands]
    same = [builder.widened(operand) for operand in same] if wide else same
    return [builder.in_unit(operand, same[0].unit) for operand in same]


def _finest_reach(operands: Sequence[fixed.Fixed]) -> list[int]:
    position = max(operand.position for operand in operands)
    return [operand.finer(position - operand.position).reach for operand in operands]


def add(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    operands = [builder.whole(value) for value in node.inputs]
    first, second = aligned(builder, operands, sum(_finest_reach(operands)))
    value = builder.node(node.op_type, [first.value, second.value])
    ends = (second.low, second.high) if node.op_type == "Add" else (-second.high, -second.low)
    return replace(first, value=value, low=first.low + ends[0], high=first.high + ends[1])


def extreme(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Min and Max."""
    operands = [builder.whole(value) for value in node.inputs]
    same = aligned(builder, operands, max(_finest_reach(operands)))
    pick = min if node.op_type == "Min" else max
    value = builder.node(node.op_type, [operand.value for operand in same])
    low, high = pick(operand.low for operand in same), pick(operand.high for operand in same)
    return replace(same[0], value=value, low=low, high=high)


def where(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Where: each element is from one of two tensors."""
    operands = [builder.whole(value) for value in node.inputs[1:]]
    first, second = aligned(builder, operands, max(_finest_reach(operands)))
    value = builder.node("Where", [node.inputs[0], first.value, second.value])
    return replace(first, value=value, low=min(first.low, second.low), high=max(first.high, second.high))


def multiply(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Mul of two tensors of codes, or of one and a number."""
    for value, other in (node.inputs, reversed(node.inputs)):
        factor = _number(value)
        if factor is not None:
            return _multiply_by(builder, builder.integers(other), factor)
    first, second = (builder.integers(value) for value in node.inputs)
    ends = [one * other for one in (first.low, first.high) for other in (second.low, second.high)]
    return product(builder, "Mul", first, second, min(ends), max(ends))


def product(
    builder: fixed.ProgramBuilder, op_type: str, first: fixed.Fixed, second: fixed.Fixed, low: int, high: int
) -> fixed.Fixed:
    """Multiply two tensors with Mul or MatMul; `low` and `high` bound the result."""
    wide = first.wide or second.wide or max(abs(low), abs(high)) >= fixed.NARROW_LIMIT
    if wide:
        first, second = builder.widened(first), builder.widened(second)
    value = builder.node(op_type, [first.value, second.value])
    position, divisor = first.position + second.position, first.divisor * second.divisor
    return fixed.Fixed(value, position, low, high, shift=first.shift + second.shift, divisor=divisor, wide=wide)


def _number(value: ir.Value | None) -> fixed.Constant | None:
    """Return a single number that the file stores in float."""
    array = constant(value)
    return fixed.dyadic(array) if array is not None and array.dtype.kind == "f" and array.size == 1 else None


def _multiply_by(builder: fixed.ProgramBuilder, operand: fixed.Fixed, factor: fixed.Constant) -> fixed.Fixed:
    number, product = fixed.times_constant(operand, factor)
    if product.reach >= fixed.NARROW_LIMIT:
        operand = builder.widened(operand)
    value = builder.node("Mul", [operand.value, builder.scalar(number, operand.wide)])
    return replace(product, value=value, wide=operand.wide)


def relu(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Relu, to nothing if no element can be negative."""
    operand = builder.integers(node.inputs[0])
    if operand.low >= 0:
        return operand
    if operand.wide:  # onnxruntime tries to merge a Relu and a Clip in float64, and fails
        value = builder.node("Max", [operand.value, builder.scalar(0, wide=True)])
    else:
        value = builder.node("Relu", [operand.value])
    return replace(operand, value=value, low=0, high=max(operand.high, 0))


def clip(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile Clip, to nothing if no element can be outside."""
    operand = builder.whole(node.inputs[0])
    bounds = []
    for index, default in ((1, -math.inf), (2, math.inf)):
        given = index < len(node.inputs) and node.inputs[index] is not None
        bound = constant_scalar(node, index) if given else default
        if bound is None:
            raise fixed.NotIntegerError("its bounds are computed while the model runs")
        bounds.append(bound)
    low, high = bounds
    for bound, harmless in ((low, _at(low, operand) <= operand.low), (high, _at(high, operand) >= operand.high)):
        if not harmless:
            operand = operand.finer(fixed.exact_bound(bound, operand.position)[1])
    # The clipped ends of the range have the same effect as the bounds of the file, and are whole numbers.
    ends = [int(min(max(end, _at(low, operand)), _at(high, operand))) for end in (operand.low, operand.high)]
    if ends == [operand.low, operand.high]:
        return operand
    inputs = [builder.scalar(math.ldexp(end, -operand.shift), operand.wide) for end in ends]
    return replace(operand, value=builder.node("Clip", [operand.value, *inputs]), low=ends[0], high=ends[1])


def _at(bound: float, operand: fixed.Fixed) -> float:
    """Return a bound in steps of the operand."""
    return bound * 2.0**operand.position


def leaky_relu(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile LeakyRelu with a slope of whole 256ths."""
    operand = builder.whole(node.inputs[0])
    slope = node.attributes.get_float("alpha", 0.01)
    slope_256 = slope * (1 << SLOPE_BITS)
    if not 0 <= slope <= 1 or slope_256 != int(slope_256):
        raise fixed.NotIntegerError(f"its slope {slope:g} is not a whole number of 256ths between 0 and 1")
    finer = operand.finer(SLOPE_BITS)
    low = min(operand.low, 0) * int(slope_256) if operand.low < 0 else finer.low
    if operand.wide or -low >= fixed.NARROW_LIMIT:
        wide = builder.widened(finer)
        falling = builder.node("Mul", [wide.value, builder.scalar(slope, wide=True)])
        return replace(wide, value=builder.node("Max", [wide.value, falling]), low=low, high=max(finer.high, low))
    value = builder.node("LeakyRelu", [operand.value], alpha=slope)
    return replace(finer, value=value, low=low, high=max(finer.high, low))


def p_relu(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile PRelu with slopes that are codes."""
    operand = builder.narrow(node.inputs[0])
    slopes = builder.constants.get(node.inputs[1]) if node.inputs[1] is not None else None
    if slopes is None:
        raise fixed.NotIntegerError("its slopes have no position")
    if slopes.position < 0:
        slopes = fixed.Constant(slopes.shifted(-slopes.position), 0)
    finer = operand.finer(slopes.position)
    steepest = -min(operand.low, 0) * slopes.reach
    if steepest >= fixed.NARROW_LIMIT:
        raise fixed.NotIntegerError("its products may need more than 24 bits")
    value = builder.node(
        "PRelu", [operand.value, builder.array(fixed.held(slopes.integers, slopes.position, wide=False))]
    )
    return replace(finer, value=value, low=-steepest, high=max(finer.high, steepest))


def hard_sigmoid(builder: fixed.ProgramBuilder, node: ir.Node) -> fixed.Fixed:
    """Compile HardSigmoid with alpha 1/6 and beta 1/2, as six times its result over six."""
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    if not (math.isclose(alpha, 1 / 6, abs_tol=1e-6) and math.isclose(beta, 0.5, abs_tol=1e-6)):
        raise fixed.NotIntegerError(f"the device has alpha 1/6 and beta 1/2, not {alpha:g} and {beta:g}")
    operand = builder.whole(node.inputs[0])
    operand = operand.finer(max(0, -operand.position))
    three = 3 << operand.position
    if operand.reach + three >= fixed.NARROW_LIMIT:
        operand = builder.widened(operand)
    up, end = (math.ldexp(number, operand.unit) for number in (3, 6))
    moved = builder.node("Add", [operand.value, builder.scalar(up, operand.wide)])
    value = builder.node("Clip", [moved, builder.scalar(0, operand.wide), builder.scalar(end, operand.wide)])
    low, high = (min(max(bound + three, 0), 2 * three) for bound in (operand.low, operand.high))
    return replace(operand, value=value, low=low, high=high, divisor=6).reduced()
