"""MXQuantizeDequantize (MXFixNeuron): the OCP formats in one node. See detent.numerics.microscaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx_ir as ir

from detent.emit.functions import arithmetic
from detent.emit.functions.attributes import described, int_attribute, rounding_of, string_attribute
from detent.emit.functions.blocks import Layout, cut
from detent.emit.functions.body import Body, Definition
from detent.errors import ModelError, UsageError
from detent.numerics.blocks import (
    ELEMENTS,
    FLOAT_ELEMENTS,
    GREATEST_EXPONENT,
    INT8_FRACTION_BITS,
    LEAST_SCALE_EXPONENT,
    Element,
    FloatElement,
    Microscaling,
)


@dataclass(frozen=True)
class MicroscalingNode:
    """The format, and where its blocks are."""

    format: Microscaling
    layout: Layout

    @property
    def label(self) -> str:
        """See `Definition`."""
        return str(self.format).replace(" ", "_").lower() + self.layout.label

    inputs = ("x",)
    attributes = (
        ir.AttrString("element_dtype", "int8"),
        ir.AttrInt64("axis", 1),
        ir.AttrInt64("block_size", 32),
        ir.AttrInt64("rounding_mode", 0),
    )

    @property
    def general(self) -> Definition:
        """See `Definition`."""
        return MicroscalingNode(self.format, Layout(self.format.block_size))

    def write(self, body: Body) -> ir.Value:
        """See `Definition`."""
        pieces = cut(body, body.inputs[0], self.layout)
        largest = arithmetic.largest_finite(body, pieces.values, *pieces.axes)
        element = FLOAT_ELEMENTS.get(self.format.element)
        if element is None:
            snapped = self._integers(body, pieces.values, largest)
        else:
            snapped = _floats(body, pieces.values, largest, element)
        return pieces.joined(body, arithmetic.with_infinities(body, snapped, pieces.values), self.layout)

    def _integers(self, body: Body, x: ir.Value, largest: ir.Value) -> ir.Value:
        step = body.cast(arithmetic.shared_power(body, largest, -INT8_FRACTION_BITS), ir.DataType.FLOAT)
        multiples = arithmetic.to_multiples(body, x, step, -128, 127, self.format.rounding)
        # -128 times the greatest step is past the range of float32: there the lowest element is -127.
        return body("Clip", multiples, np.float32(-127 * 2.0 ** (GREATEST_EXPONENT - INT8_FRACTION_BITS)))


def _floats(body: Body, x: ir.Value, largest: ir.Value, element: FloatElement) -> ir.Value:
    power = arithmetic.shared_power(body, largest, -element.greatest_exponent)
    scale = body.cast(body("Max", power, np.float64(2.0**LEAST_SCALE_EXPONENT)), ir.DataType.FLOAT)
    # The largest element is on the grid, so that clipping may go before rounding; it leaves no infinity behind.
    ratio = body("Clip", body("Div", x, scale), np.float32(-element.largest), np.float32(element.largest))
    least_step = np.float32(2.0 ** (element.least_exponent - element.mantissa_bits))
    step = body("Clip", arithmetic.own_power(body, ratio, -element.mantissa_bits), least_step)
    return body("Mul", body("Mul", body("Round", body("Div", ratio, step)), step), scale)


def read_microscaling(node: ir.Node, opset: int) -> Definition:
    """What an MXQuantizeDequantize of a model has to do. Float elements are rounded half to even in any case."""
    del opset
    element = cast(Element, string_attribute(node, "element_dtype", "int8", among=ELEMENTS))
    rounding = rounding_of(node)
    try:
        fmt = Microscaling(
            element, int_attribute(node, "block_size", 32), rounding if element == "int8" else "half_even"
        )
    except UsageError as error:
        raise ModelError(f"{described(node)} cannot be computed: {error}") from error
    return MicroscalingNode(fmt, Layout(fmt.block_size).at(node))
