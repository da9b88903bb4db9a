"""Shifting to the right by `cut` positions, rounding and saturating: how an accumulator becomes codes.

half-even, as QuantizeLinear rounds: ties go to the even code.
dpu, as the DPU does: (X + 2^(cut-1)) >> cut on the device, ties upwards. What the host quantizes (the model's inputs,
and what is computed in float between two parts on the device) has its ties rounded away from zero.

With codes low .. high, clipping before rounding gives what clipping after it does, because rounding is monotonic and
leaves whole numbers alone; and onnxruntime clips inside its convolution.

Elementwise operators on integers.

Add, Sub      shift read: the operands are brought to the finer of their positions by shifting left; then the sum.
Mul           the positions add up. With one number that is no tensor of codes, such as a device factor, what it and a
              pending division have in common cancels.
LeakyRelu     (X * k) / 256 below zero: eight more positions.
HardSigmoid   min(max(X + 3, 0), 6) / 6, in steps of the input; the file's factor behind it makes 1/6 2731/16384.
Relu, Clip    the bounds, as integers in steps that are fine enough for them.

None of them rounds: that is left to the QuantizeLinear behind, which the device does in the same step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from detent.emulator.fixed import (
    NARROW_LIMIT,
    Bench,
    Constant,
    Fixed,
    NotIntegerError,
    dyadic,
    exact_bound,
    held,
    rounded_range,
    times_constant,
)
from detent.emulator.grids import Grid
from detent.graph.values import constant, constant_scalar
from detent.numerics.rounding import DEVICE_ROUNDINGS, DeviceRounding

EmulatedRounding = DeviceRounding
ROUNDINGS = DEVICE_ROUNDINGS


def requantize(bench: Bench, operand: Fixed, grid: Grid, rounding: EmulatedRounding) -> Fixed:
    """Integers on another grid. Where nothing has to be shifted or clipped, no node is written."""
    if operand.divisor != 1:
        raise NotIntegerError(f"its result is divided by {operand.divisor}, for which the file has no device factor")
    cut = operand.position - grid.position
    shifted_up = rounding == "dpu" and cut > 0
    if shifted_up and operand.reach + (1 << (cut - 1)) >= NARROW_LIMIT:
        operand = bench.widened(operand)
    wide, value = operand.wide, bench.in_unit(operand, grid.position).value
    if shifted_up:
        value = bench.node("Add", [value, bench.scalar(0.5, wide)])
    low, high = rounded_range(operand.low, operand.high, cut, (grid.low, grid.high))
    if _leaves(operand, cut, grid):
        value = bench.node("Clip", [value, bench.scalar(grid.low, wide), bench.scalar(grid.high, wide)])
    if cut > 0:
        value = bench.node("Floor" if shifted_up else "Round", [value])
    if wide:
        value = bench.node("Cast", [value], to=ir.DataType.FLOAT.value)
    return Fixed(value, grid.position, low, high)


def _leaves(operand: Fixed, cut: int, grid: Grid) -> bool:
    """Whether an element may leave the grid when it is shifted."""
    if cut > 0:
        return operand.low < grid.low << cut or operand.high > grid.high << cut
    return operand.low << -cut < grid.low or operand.high << -cut > grid.high


def quantize_float(bench: Bench, value: ir.Value, grid: Grid, rounding: EmulatedRounding) -> Fixed:
    """Float numbers on a grid, as the host quantizes them."""
    scaled = bench.node("Mul", [value, bench.scalar(2.0**grid.position, wide=False)])
    inside = bench.node("Clip", [scaled, bench.scalar(grid.low, wide=False), bench.scalar(grid.high, wide=False)])
    rounded = bench.node("Round", [inside])
    if rounding == "dpu":
        rounded = _ties_away(bench, inside, rounded)
    return Fixed(rounded, grid.position, grid.low, grid.high)


def _ties_away(bench: Bench, value: ir.Value, rounded: ir.Value) -> ir.Value:
    """Where the distance to the rounded number, which is exact, is a half: the neighbour that is farther out."""
    half = bench.scalar(0.5, wide=False)
    distance = bench.node("Abs", [bench.node("Sub", [value, rounded])])
    outwards = bench.node("Add", [value, bench.node("Mul", [bench.node("Sign", [value]), half])])
    return bench.node("Where", [bench.node("Equal", [distance, half]), outwards, rounded])


SLOPE_BITS = 8


def aligned(bench: Bench, operands: Sequence[Fixed], reach: int) -> list[Fixed]:
    """Operands at the finest of their positions and held in one unit; in float64 where `reach` asks for it."""
    position = max(operand.position for operand in operands)
    wide = any(operand.wide for operand in operands) or reach >= NARROW_LIMIT
    same = [operand.finer(position - operand.position) for operand in operands]
    same = [bench.widened(operand) for operand in same] if wide else same
    return [bench.in_unit(operand, same[0].unit) for operand in same]


def _finest_reach(operands: Sequence[Fixed]) -> list[int]:
    position = max(operand.position for operand in operands)
    return [operand.finer(position - operand.position).reach for operand in operands]


def add(bench: Bench, node: ir.Node) -> Fixed:
    """Add and Sub."""
    operands = [bench.whole(value) for value in node.inputs]
    first, second = aligned(bench, operands, sum(_finest_reach(operands)))
    value = bench.node(node.op_type, [first.value, second.value])
    ends = (second.low, second.high) if node.op_type == "Add" else (-second.high, -second.low)
    return replace(first, value=value, low=first.low + ends[0], high=first.high + ends[1])


def extreme(bench: Bench, node: ir.Node) -> Fixed:
    """Min and Max."""
    operands = [bench.whole(value) for value in node.inputs]
    same = aligned(bench, operands, max(_finest_reach(operands)))
    pick = min if node.op_type == "Min" else max
    value = bench.node(node.op_type, [operand.value for operand in same])
    low, high = pick(operand.low for operand in same), pick(operand.high for operand in same)
    return replace(same[0], value=value, low=low, high=high)


def where(bench: Bench, node: ir.Node) -> Fixed:
    """Where: each element from one of two tensors."""
    operands = [bench.whole(value) for value in node.inputs[1:]]
    first, second = aligned(bench, operands, max(_finest_reach(operands)))
    value = bench.node("Where", [node.inputs[0], first.value, second.value])
    return replace(first, value=value, low=min(first.low, second.low), high=max(first.high, second.high))


def multiply(bench: Bench, node: ir.Node) -> Fixed:
    """Mul: of two tensors of codes, or of one and a number."""
    for value, other in (node.inputs, reversed(node.inputs)):
        factor = _number(value)
        if factor is not None:
            return _multiply_by(bench, bench.integers(other), factor)
    first, second = (bench.integers(value) for value in node.inputs)
    ends = [one * other for one in (first.low, first.high) for other in (second.low, second.high)]
    wide = first.wide or second.wide or max(map(abs, ends)) >= NARROW_LIMIT
    if wide:
        first, second = bench.widened(first), bench.widened(second)
    return Fixed(
        bench.node("Mul", [first.value, second.value]),
        first.position + second.position,
        min(ends),
        max(ends),
        shift=first.shift + second.shift,
        divisor=first.divisor * second.divisor,
        wide=wide,
    )


def _number(value: ir.Value | None) -> Constant | None:
    """A single number of the file that is stored in float."""
    array = constant(value)
    return dyadic(array) if array is not None and array.dtype.kind == "f" and array.size == 1 else None


def _multiply_by(bench: Bench, operand: Fixed, factor: Constant) -> Fixed:
    number, product = times_constant(operand, factor)
    if product.reach >= NARROW_LIMIT:
        operand = bench.widened(operand)
    value = bench.node("Mul", [operand.value, bench.scalar(number, operand.wide)])
    return replace(product, value=value, wide=operand.wide)


def relu(bench: Bench, node: ir.Node) -> Fixed:
    """Relu; nothing where no element can be negative."""
    operand = bench.integers(node.inputs[0])
    if operand.low >= 0:
        return operand
    if operand.wide:  # onnxruntime cannot merge a Relu and a Clip in float64, and fails where it tries
        value = bench.node("Max", [operand.value, bench.scalar(0, wide=True)])
    else:
        value = bench.node("Relu", [operand.value])
    return replace(operand, value=value, low=0, high=max(operand.high, 0))


def clip(bench: Bench, node: ir.Node) -> Fixed:
    """Clip; nothing where no element can be outside."""
    operand = bench.whole(node.inputs[0])
    bounds = []
    for index, default in ((1, -math.inf), (2, math.inf)):
        given = index < len(node.inputs) and node.inputs[index] is not None
        bound = constant_scalar(node, index) if given else default
        if bound is None:
            raise NotIntegerError("its bounds are computed while the model runs")
        bounds.append(bound)
    low, high = bounds
    for bound, harmless in ((low, _at(low, operand) <= operand.low), (high, _at(high, operand) >= operand.high)):
        if not harmless:
            operand = operand.finer(exact_bound(bound, operand.position)[1])
    # The ends of the range, clipped: as bounds they do what the file's do, and they are whole numbers.
    ends = [int(min(max(end, _at(low, operand)), _at(high, operand))) for end in (operand.low, operand.high)]
    if ends == [operand.low, operand.high]:
        return operand
    inputs = [bench.scalar(math.ldexp(end, -operand.shift), operand.wide) for end in ends]
    return replace(operand, value=bench.node("Clip", [operand.value, *inputs]), low=ends[0], high=ends[1])


def _at(bound: float, operand: Fixed) -> float:
    """A bound in the steps of the operand."""
    return bound * 2.0**operand.position


def leaky_relu(bench: Bench, node: ir.Node) -> Fixed:
    """LeakyRelu with a slope of whole 256ths."""
    operand = bench.whole(node.inputs[0])
    slope = node.attributes.get_float("alpha", 0.01)
    slope_256 = slope * (1 << SLOPE_BITS)
    if not 0 <= slope <= 1 or slope_256 != int(slope_256):
        raise NotIntegerError(f"its slope {slope:g} is no whole number of 256ths between 0 and 1")
    finer = operand.finer(SLOPE_BITS)
    low = min(operand.low, 0) * int(slope_256) if operand.low < 0 else finer.low
    if operand.wide or -low >= NARROW_LIMIT:
        wide = bench.widened(finer)
        falling = bench.node("Mul", [wide.value, bench.scalar(slope, wide=True)])
        return replace(wide, value=bench.node("Max", [wide.value, falling]), low=low, high=max(finer.high, low))
    value = bench.node("LeakyRelu", [operand.value], alpha=slope)
    return replace(finer, value=value, low=low, high=max(finer.high, low))


def p_relu(bench: Bench, node: ir.Node) -> Fixed:
    """PRelu with slopes that are codes."""
    operand = bench.narrow(node.inputs[0])
    slopes = bench.constants.get(node.inputs[1]) if node.inputs[1] is not None else None
    if slopes is None:
        raise NotIntegerError("its slopes have no position")
    if slopes.position < 0:
        slopes = Constant(slopes.shifted(-slopes.position), 0)
    finer = operand.finer(slopes.position)
    steepest = -min(operand.low, 0) * slopes.reach
    if steepest >= NARROW_LIMIT:
        raise NotIntegerError("its products may need more than 24 bits")
    value = bench.node("PRelu", [operand.value, bench.array(held(slopes.integers, slopes.position, wide=False))])
    return replace(finer, value=value, low=-steepest, high=max(finer.high, steepest))


def hard_sigmoid(bench: Bench, node: ir.Node) -> Fixed:
    """HardSigmoid with alpha 1/6 and beta 1/2, as six times its result over six."""
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    if not (math.isclose(alpha, 1 / 6, abs_tol=1e-6) and math.isclose(beta, 0.5, abs_tol=1e-6)):
        raise NotIntegerError(f"the device has alpha 1/6 and beta 1/2, not {alpha:g} and {beta:g}")
    operand = bench.whole(node.inputs[0])
    operand = operand.finer(max(0, -operand.position))
    three = 3 << operand.position
    if operand.reach + three >= NARROW_LIMIT:
        operand = bench.widened(operand)
    up, end = (math.ldexp(number, operand.unit) for number in (3, 6))
    moved = bench.node("Add", [operand.value, bench.scalar(up, operand.wide)])
    value = bench.node("Clip", [moved, bench.scalar(0, operand.wide), bench.scalar(end, operand.wide)])
    low, high = (min(max(bound + three, 0), 2 * three) for bound in (operand.low, operand.high))
    return replace(operand, value=value, low=low, high=high, divisor=6).reduced()
