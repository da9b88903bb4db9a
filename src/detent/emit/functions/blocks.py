"""What the bodies of the block formats have in common, in standard operators and exact for every float32.

Cutting a tensor of any rank along any axis, of n elements, into blocks of b:

    Flatten to [outer, n * inner], Reshape to [outer, n, inner], Pad n to a multiple of b, Reshape to
    [outer, blocks, pieces, elements of a piece, inner]; and back again. What is calculated from static shapes is
    calculated once, when a model is loaded.

The leading power of two of a number, 2^floor(log2|x|), without access to its bits: with p bits of precision, u = 2^-p,

    t = (2^(p-1) + 1) x          t - (1 - u) t = the leading power of two of x, with its sign

each operation rounded to nearest. (S. M. Rump's "unit in the first place".) A power of two times the first constant
scales the result. It holds where neither t overflows nor its last bit underflows, so in float64 for every float32.

Infinities and NaN, without Where, which costs as much as six additions: ThresholdedRelu(-|x|, alpha = -inf) is -|x|, or
0 where x is not finite; and x - Clip(x, -largest, largest) is 0, or x itself where x is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from detent.emit.functions.body import Body, ref
from detent.numerics.rounding import Rounding

LARGEST = np.finfo(np.float32).max
LEAST_NORMAL = np.finfo(np.float32).tiny
SIZE_AXIS, INNER_SIZE_AXIS = 2, 3
"""The axes of the pieces of a block, and of the elements of a piece."""

EXPONENT_OF_ZERO = -127
"""What stands in the place of the exponent of zero and of subnormal numbers."""


@dataclass(frozen=True)
class Blocks:
    """A tensor in blocks: `values` is [outer, blocks, size, inner_size, inner]."""

    values: ir.Value
    _length: ir.Value
    _padded: ir.Value

    def joined(self, body: Body, values: ir.Value) -> ir.Value:
        """Values in blocks, as a tensor of the shape that was cut."""
        padded = body("Reshape", values, self._padded)
        return body(
            "Reshape", body("Slice", padded, np.array([0]), self._length, np.array([1])), body("Shape", body.inputs[0])
        )


def cut(body: Body, x: ir.Value, size: int, inner_size: int = 1) -> Blocks:
    """Cut `x` along the attribute `axis` into blocks of `size` pieces of `inner_size` elements."""
    length = body("Gather", body("Shape", x, start=ref("start", "axis")), np.array([0]))
    pieces = body("Div", body("Add", length, np.array([inner_size - 1])), np.array([inner_size]))
    # An axis that is shorter than a block is one block as it is: zeros would change nothing, and only take time.
    size_here = body("Min", pieces, np.array([size]))
    missing = body("Mod", body("Neg", length), body("Mul", size_here, np.array([inner_size])))
    shape = body("Concat", np.array([0]), length, np.array([-1]), axis=0)
    rows = body("Reshape", body("Flatten", x, axis=ref("axis", "axis")), shape)
    padded = body("Pad", rows, body("Concat", np.array([0, 0, 0, 0]), missing, np.array([0]), axis=0))
    shape = body("Concat", np.array([0, -1]), size_here, np.array([inner_size]), body("Shape", padded, start=2), axis=0)
    return Blocks(body("Reshape", padded, shape), length, body("Shape", padded))


def largest_finite(body: Body, x: ir.Value) -> ir.Value:
    """The largest magnitude of each block; what is not finite counts as 0."""
    negative = body("ThresholdedRelu", body("Neg", body("Abs", x)), alpha=float("-inf"))
    return body("Abs", body.reduce("ReduceMin", negative, SIZE_AXIS))


def with_infinities(body: Body, y: ir.Value, x: ir.Value) -> ir.Value:
    """`y`, which is finite, or x where x is not finite."""
    return body("Add", y, body("Sub", x, body("Clip", x, -LARGEST, LARGEST)))


def all_finite(body: Body, magnitudes: ir.Value) -> ir.Value:
    """1 for a block, or NaN where something in it is not finite; in float64."""
    finite = compared(body, "Less", magnitudes, np.float32(np.inf))
    for axis in (INNER_SIZE_AXIS, SIZE_AXIS):
        finite = body.reduce("ReduceMin", finite, axis)
    wide = body.cast(finite, ir.DataType.DOUBLE)
    return body("Div", wide, wide)


def compared(body: Body, op_type: str, x: ir.Value, limit: np.float32) -> ir.Value:
    """1.0 where the comparison of `x` with a number holds, 0.0 elsewhere."""
    holds = body(op_type, _flat(body, x), limit)
    return body("Reshape", body.cast(holds, ir.DataType.FLOAT), body("Shape", x))


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
    scaled = body("Mul", _flat(body, x), number((2.0 ** (precision - 1) + 1) * 2.0 ** (exponent - 1)))
    # 2t - (2 - 2u)t, not t - (1 - u)t: onnxruntime takes a factor of 1 - u for a 1, and leaves the multiplication out.
    power = body("Sub", body("Add", scaled, scaled), body("Mul", scaled, number(2 - 2.0 ** (1 - precision))))
    return body("Reshape", power, body("Shape", x))


def _flat(body: Body, x: ir.Value) -> ir.Value:
    """`x` with one dimension. onnxruntime's operations with a scalar are 20 times slower where the last one is 1."""
    return body("Reshape", x, np.array([-1]))


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
