"""Shifting to the right by `cut` positions, rounding and saturating: how an accumulator becomes codes.

half-even, as QuantizeLinear rounds: ties go to the even code.
dpu, as the DPU does: (X + 2^(cut-1)) >> cut on the device, ties upwards. What the host quantizes (the model's inputs,
and what is computed in float between two parts on the device) has its ties rounded away from zero.

With codes low .. high, clipping before rounding gives what clipping after it does, because rounding is monotonic and
leaves whole numbers alone; and onnxruntime clips inside its convolution.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.measure.emulator.bench import Bench
from detent.measure.emulator.fixed import NARROW_LIMIT, Fixed, NotIntegerError, rounded_range
from detent.measure.emulator.grids import Grid
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
