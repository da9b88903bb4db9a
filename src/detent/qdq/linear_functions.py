"""A scale and a zero point, for more types than QuantizeLinear has: Extended(De)QuantizeLinear and FixNeuron.

    integers     code = saturate(round_half_even(x / scale) + zero_point)       x = (code - zero_point) * scale
    floats       code = cast(x / scale + zero_point), ties to even              x = (code - zero_point) * scale

x / scale is a division of float32 numbers. The sum with the zero point is exact: in float32 if codes have 8 or 16
bits (a quotient past 2^24, where float32 is no longer exact, saturates whatever the zero point), and in float64 if
they have 32. What a NaN becomes among integers is not defined.

If the standard operators hold the type they are the whole body, so that onnxruntime finds its fused kernels.
Elsewhere a scale per channel is reshaped to stand along `axis`, which costs nothing when shapes are static: it is
folded when the model is loaded. A zero point of 0 and a scale of 1 go away in the same manner.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.errors import ModelError
from detent.qdq.families import STANDARD, native_family
from detent.qdq.function_body import Body, Definition, described, ref, string_attribute

AXIS = ir.AttrInt64("axis", 1)
_INPUTS = ("x", "scale", "zero_point")

_WIDE = frozenset({ir.DataType.INT32, ir.DataType.UINT32})
_FLOATS = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_NARROW = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
_CODE_TYPES = _NARROW | _WIDE | _FLOATS


def _standard(op_type: str, fallback: Definition | None = None) -> Definition:
    """Define an operator as QuantizeLinear or DequantizeLinear: for all types that it has, scalar or per channel."""

    def write(body: Body) -> ir.Value:
        return body(op_type, *body.inputs, axis=ref("axis", "axis"))

    return Definition("standard", write, (AXIS,), _INPUTS, fallback)


def _quantize(dtype: ir.DataType, *, per_axis: bool) -> Definition:
    """Define numbers to codes of one type, operation by operation."""
    wide = ir.DataType.DOUBLE if dtype in _WIDE else ir.DataType.FLOAT

    def write(body: Body) -> ir.Value:
        x, scale, zero_point = _along_axis(body, per_axis)
        quotient = body("Div", x, scale)
        if dtype not in _FLOATS:
            quotient = body("Round", quotient)
        if wide is ir.DataType.DOUBLE:
            quotient = body.cast(quotient, wide)
        codes = body("Add", quotient, body.cast(zero_point, wide))
        if dtype not in _FLOATS:
            limits = np.iinfo(dtype.numpy())
            codes = body("Clip", codes, wide.numpy().type(limits.min), wide.numpy().type(limits.max))
        return body.cast(codes, dtype)

    fallback = None if per_axis else _quantize(dtype, per_axis=True)
    return Definition(dtype.name.lower() + "_per_axis" * per_axis, write, (AXIS,), _INPUTS, fallback)


def _dequantize(*, exact: bool, per_axis: bool) -> Definition:
    """Define codes to numbers, operation by operation; `exact` subtracts 32-bit zero points in float64."""
    wide = ir.DataType.DOUBLE if exact else ir.DataType.FLOAT

    def write(body: Body) -> ir.Value:
        x, scale, zero_point = _along_axis(body, per_axis)
        difference = body("Sub", body.cast(x, wide), body.cast(zero_point, wide))
        if exact:
            difference = body.cast(difference, ir.DataType.FLOAT)
        return body("Mul", difference, scale)

    fallback = None if exact and per_axis else _dequantize(exact=True, per_axis=True)
    label = ("32_bits" if exact else "16_bits") + "_per_axis" * per_axis
    return Definition(label, write, (AXIS,), _INPUTS, fallback)


def _fix_neuron(bits: int) -> Definition:
    """Define rounding to signed codes and back; the scale and the zero point are scalars."""

    def write(body: Body) -> ir.Value:
        x, scale, zero_point = body.inputs
        if bits == 8:  # the bits of its zero point
            return body("DequantizeLinear", body("QuantizeLinear", x, scale, zero_point), scale, zero_point)
        offset = body.cast(zero_point, ir.DataType.FLOAT)
        half = 1 << (bits - 1)
        codes = body("Add", body("Round", body("Div", x, scale)), offset)
        codes = body("Clip", codes, np.float32(-half), np.float32(half - 1))
        return body("Mul", body("Sub", codes, offset), scale)

    attributes = [ir.Attr(name, ir.AttributeType.STRING, None) for name in ("bit_width", "pos")]
    return Definition(f"{bits}_bits", write, attributes, _INPUTS)


def read_quantize(node: ir.Node, opset: int) -> Definition:
    """Read what an ExtendedQuantizeLinear of a model has to do."""
    dtype = _code_type(node, _input(node, 2, "zero point"))
    if _is_standard(dtype, opset):
        return _standard("QuantizeLinear")
    return _quantize(dtype, per_axis=_is_per_axis(node))


def read_dequantize(node: ir.Node, opset: int) -> Definition:
    """Read what an ExtendedDequantizeLinear of a model has to do."""
    dtype = _code_type(node, _input(node, 2, "zero point"))
    if _is_standard(dtype, opset):
        return _standard("DequantizeLinear", _dequantize(exact=True, per_axis=True))
    return _dequantize(exact=dtype in _WIDE, per_axis=_is_per_axis(node))


def read_fix_neuron(node: ir.Node, opset: int) -> Definition:
    """Read what a FixNeuron of a model has to do."""
    del opset
    _input(node, 2, "zero point")
    width = string_attribute(node, "bit_width")
    if not width.isdecimal() or not 2 <= int(width) <= 16:
        raise ModelError(f"{described(node)} has bit_width '{width}': it must be a number from 2 to 16.")
    return _fix_neuron(int(width))


def _is_standard(dtype: ir.DataType, opset: int) -> bool:
    """Return whether the standard operators are the whole definition."""
    return native_family(dtype.name.lower(), opset, quantizes=True) is STANDARD


def _input(node: ir.Node, index: int, what: str) -> ir.Value:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise ModelError(
            f"{described(node)} has no {what}: give it one, which may be 0; its type is that of the codes."
        )
    return value


def _code_type(node: ir.Node, zero_point: ir.Value) -> ir.DataType:
    dtype = zero_point.dtype
    if dtype not in _CODE_TYPES or dtype is None:
        found = "of unknown type" if dtype is None else dtype.name.lower()
        known = ", ".join(sorted(known.name.lower() for known in _CODE_TYPES))
        raise ModelError(f"The zero point of {described(node)} is {found}. Known are: {known}.")
    return dtype


def _is_per_axis(node: ir.Node) -> bool:
    """Return whether there may be more than one scale."""
    shape = _input(node, 1, "scale").shape
    return shape is None or any(size != 1 for size in shape)


def _along_axis(body: Body, per_axis: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the inputs of a body; a scale and zero point per channel get a dimension of 1 for each axis behind it."""
    x, scale, zero_point = body.inputs
    if not per_axis:
        return x, scale, zero_point
    behind = body("Sub", body("Shape", body("Shape", x, start=ref("start", "axis"))), np.array([1]))
    behind = body("Max", behind, np.array([0]))  # a scalar may come with an axis that x does not have
    shape = body("Concat", np.array([-1]), body("Expand", np.array([1]), behind), axis=0)
    return x, body("Reshape", scale, shape), body("Reshape", zero_point, shape)
