"""BFPQuantizeDequantize (BFPFixNeuron): block floating point in one node. See detent.numerics.block_float."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from detent.emit.functions import arithmetic
from detent.emit.functions.attributes import described, int_attribute, rounding_of, string_attribute
from detent.emit.functions.blocks import Blocks, Layout, cut
from detent.emit.functions.body import Body, Definition
from detent.errors import ModelError, UsageError
from detent.numerics.blocks import BlockFloat

METHODS = ("to_bfp", "to_bfp_prime")
"""One level of exponents, and two."""


@dataclass(frozen=True)
class BlockFloatNode:
    """The format, where its blocks are, and whether numbers are rounded to bfloat16 before."""

    format: BlockFloat
    layout: Layout
    from_bfloat16: bool = False

    @property
    def label(self) -> str:
        """See `Definition`."""
        name = str(self.format).replace(" ", "_").lower()
        return name + "_from_bfloat16" * self.from_bfloat16 + self.layout.label

    inputs = ("x",)
    attributes = (
        ir.AttrString("bfp_method", "to_bfp"),
        ir.AttrInt64("axis", 1),
        ir.AttrInt64("bit_width", 16),
        ir.AttrInt64("block_size", 8),
        ir.AttrInt64("rounding_mode", 0),
        ir.AttrInt64("sub_block_size", 2),
        ir.AttrInt64("sub_block_shift_bits", 1),
        ir.AttrInt64("convert_to_bfloat_before_bfp", 0),
        ir.AttrInt64("use_compiler_version_cpu_kernel", 0),
    )

    @property
    def general(self) -> Definition:
        """See `Definition`."""
        return BlockFloatNode(self.format, _layout(self.format), self.from_bfloat16)

    def write(self, body: Body) -> ir.Value:
        """See `Definition`."""
        (x,) = body.inputs
        if self.from_bfloat16:
            x = body.cast(body.cast(x, ir.DataType.BFLOAT16), ir.DataType.FLOAT)
        pieces = cut(body, x, self.layout)
        snap = self._one_level if self.format.sub_block_size is None else self._two_levels
        return pieces.joined(body, snap(body, pieces), self.layout)

    def _one_level(self, body: Body, pieces: Blocks) -> ir.Value:
        largest = arithmetic.largest_finite(body, pieces.values, *pieces.axes)
        step = arithmetic.shared_power(body, largest, 1 - self.format.mantissa_bits)
        snapped = self._to_multiples(body, pieces.values, step)
        return arithmetic.with_infinities(body, snapped, pieces.values)

    def _two_levels(self, body: Body, pieces: Blocks) -> ir.Value:
        magnitude = body("Abs", pieces.values)
        power = magnitude
        if self.layout.inner_size > 1:
            power = body.reduce("ReduceMax", power, pieces.axes[-1])
        power = arithmetic.shared_power(body, power, 1 - self.format.mantissa_bits)
        most_shift = (1 << self.format.sub_block_shift_bits) - 1
        least = body("Mul", body.reduce("ReduceMax", power, pieces.axes[0]), np.float64(2.0**-most_shift))
        step = body("Mul", body("Max", power, least), arithmetic.all_finite(body, magnitude, pieces.axes))
        normal = arithmetic.compared(body, "GreaterOrEqual", magnitude, arithmetic.LEAST_NORMAL)
        return self._to_multiples(body, body("Mul", pieces.values, normal), step)

    def _to_multiples(self, body: Body, x: ir.Value, step: ir.Value) -> ir.Value:
        largest = (1 << self.format.mantissa_bits) - 1
        return arithmetic.to_multiples(
            body, x, body.cast(step, ir.DataType.FLOAT), -largest, largest, self.format.rounding
        )


def read_block_float(node: ir.Node, opset: int) -> Definition:
    """What a BFPQuantizeDequantize of a model has to do."""
    del opset
    if int_attribute(node, "use_compiler_version_cpu_kernel", 0):
        raise ModelError(
            f"{described(node)} has use_compiler_version_cpu_kernel=1: that has no definition here. Set it to 0."
        )
    method = string_attribute(node, "bfp_method", "to_bfp", among=METHODS)
    try:
        fmt = BlockFloat(
            int_attribute(node, "bit_width", 16),
            int_attribute(node, "block_size", 8),
            int_attribute(node, "sub_block_size", 2) if method == "to_bfp_prime" else None,
            int_attribute(node, "sub_block_shift_bits", 1),
            rounding_of(node),
        )
    except UsageError as error:
        raise ModelError(f"{described(node)} cannot be computed: {error}") from error
    return BlockFloatNode(fmt, _layout(fmt).at(node), bool(int_attribute(node, "convert_to_bfloat_before_bfp", 0)))


def _layout(fmt: BlockFloat) -> Layout:
    inner = fmt.sub_block_size or 1
    return Layout(fmt.block_size // inner, inner)
