"""The arithmetic of the block formats, in standard operators and exact for every float32.

The leading power of two of a number, 2^floor(log2|x|), without access to its bits: with p bits of precision, u = 2^-p,

    t = (2^(p-1) + 1) x          t - (1 - u) t = the leading power of two of x, with its sign

each operation rounded to nearest. (S. M. Rump's "unit in the first place".) A power of two times the first constant
scales the result. It holds where neither t overflows nor its last bit underflows, so in float64 for every float32.

Infinities and NaN, without Where, which costs as much as six additions: ThresholdedRelu(-|x|, alpha = -inf) is -|x|, or
0 where x is not finite; and x - Clip(x, -largest, largest) is 0, or x itself where x is not finite.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.emit.functions.body import Body
from detent.numerics.rounding import Rounding

LARGEST = np.finfo(np.float32).max
LEAST_NORMAL = np.finfo(np.float32).tiny
EXPONENT_OF_ZERO = -127
"""What stands in the place of the exponent of zero and of subnormal numbers."""


def largest_finite(body: Body, x: ir.Value, axis: int) -> ir.Value:
    """The largest magnitude along an axis; what is not finite counts as 0."""
    negative = body("ThresholdedRelu", body("Neg", body("Abs", x)), alpha=float("-inf"))
    return body("Abs", body.reduce("ReduceMin", negative, axis))


def with_infinities(body: Body, y: ir.Value, x: ir.Value) -> ir.Value:
    """`y`, which is finite, or x where x is not finite."""
    return body("Add", y, body("Sub", x, body("Clip", x, -LARGEST, LARGEST)))


def all_finite(body: Body, magnitudes: ir.Value, axes: tuple[int, ...]) -> ir.Value:
    """1 for a block, or NaN where something in it is not finite; in float64."""
    finite = compared(body, "Less", magnitudes, np.float32(np.inf))
    for axis in reversed(axes):
        finite = body.reduce("ReduceMin", finite, axis)
    wide = body.cast(finite, ir.DataType.DOUBLE)
    return body("Div", wide, wide)


def compared(body: Body, op_type: str, x: ir.Value, limit: np.float32) -> ir.Value:
    """1.0 where the comparison of `x` with a number holds, 0.0 elsewhere."""
    return body.cast(body(op_type, x, limit), ir.DataType.FLOAT)


def shared_power(body: Body, magnitudes: ir.Value, exponent: int) -> ir.Value:
    """The leading powers of two of float32 numbers that are not negative, times 2^exponent, in float64.

    Those of zero and of subnormal numbers are 2^-127.
    """
    wide = body.cast(magnitudes, ir.DataType.DOUBLE)
    return body("Clip", _leading_power(body, wide, 53, exponent), np.float64(2.0 ** (EXPONENT_OF_ZERO + exponent)))


def own_power(body: Body, x: ir.Value, exponent: int) -> ir.Value:
    """The leading powers of two of float32 numbers below 2^100, times 2^exponent; 0 for 0."""
    return body("Abs", _leading_power(body, x, 24, exponent))


def _leading_power(body: Body, x: ir.Value, precision: int, exponent: int) -> ir.Value:
    number = np.float32 if precision == 24 else np.float64
    scaled = body("Mul", x, number((2.0 ** (precision - 1) + 1) * 2.0 ** (exponent - 1)))
    # 2t - (2 - 2u)t, not t - (1 - u)t: onnxruntime takes a factor of 1 - u for a 1, and leaves the multiplication out.
    return body("Sub", body("Add", scaled, scaled), body("Mul", scaled, number(2 - 2.0 ** (1 - precision))))


def to_multiples(
    body: Body, x: ir.Value, step: ir.Value, low: float, high: float, rounding: Rounding = "half_even"
) -> ir.Value:
    """The multiples of `step`, low to high times it, that are nearest to `x`."""
    # Clipping first gives the same, since low and high are whole numbers, and leaves no infinity to calculate with.
    ratio = body("Clip", body("Div", x, step), np.float32(low), np.float32(high))
    return body("Mul", _rounded(body, ratio, rounding), step)


def _rounded(body: Body, x: ir.Value, rounding: Rounding) -> ir.Value:
    if rounding == "half_even":
        return body("Round", x)
    if rounding == "half_up":
        nearest = body("Round", x)
        return body("Add", nearest, compared(body, "Equal", body("Sub", x, nearest), np.float32(0.5)))
    return body("Mul", _rounded(body, body("Abs", x), "half_up"), body("Sign", x))
