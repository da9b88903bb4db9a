"""Block formats in one node, exact for every float32: BFPQuantizeDequantize (BFPFixNeuron) and MXQuantizeDequantize
(MXFixNeuron). What they compute is in detent.numerics.blocks.

**Powers of two.** Standard operators have no access to the bits of a float. The leading power of two of x,
2^floor(log2|x|), is computed with p bits of precision and u = 2^-p as

    t = (2^(p-1) + 1) x          t - (1 - u) t = the leading power of two of x, with its sign

each operation rounded to nearest. (S. M. Rump's "unit in the first place".) Multiplying the first constant by a power
of two scales the result. This holds if t does not overflow and its last bit does not underflow: in float64, for every
float32.

**Infinities and NaN** are kept without Where, which costs as much as six additions: ThresholdedRelu(-|x|, alpha = -inf)
is -|x|, or 0 if x is not finite; and x - Clip(x, -largest, largest) is 0, or x itself if x is not finite.

**Blocks.** If the length n of the axis is known, a few Reshapes with constant shapes cut a tensor into blocks. They
copy (0) the dimensions before the axis and work out (-1) those behind it. For blocks of b along axis 1, with m
elements missing in the last one:

    Reshape [0, 0, 1, -1]    Pad m behind n    Reshape [0, -1, b, 0]        and back:
    Reshape [0, -1, 1, 0]    Slice m off       Reshape to the shape of the input

so that onnxruntime knows the shape of every value except the batch. That matters: with unknown shapes, the time to
load a model grows with the square of the number of nodes. Such a body serves one axis and one m.

If n is not known, one body calculates everything from the shape, for any axis:

    Flatten to [outer, n * inner], Reshape to [outer, n, 1, inner], and the rest as above.

An axis that is shorter than a block is one block and is not padded: zeros would change nothing and take time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx_ir as ir

from detent.errors import ModelError, UsageError
from detent.numerics import blocks
from detent.numerics.codec import Rounding
from detent.qdq.function_body import Body, Definition, described, int_attribute, ref, rounding_of, string_attribute

LARGEST = np.finfo(np.float32).max
LEAST_NORMAL = np.finfo(np.float32).tiny
EXPONENT_OF_ZERO = -127  # the exponent that zero and subnormal numbers count with


def largest_finite(body: Body, x: ir.Value, axis: int) -> ir.Value:
    """Return the largest finite magnitude along an axis; infinities and NaN count as 0."""
    negative = body("ThresholdedRelu", body("Neg", body("Abs", x)), alpha=float("-inf"))
    return body("Abs", body.reduce("ReduceMin", negative, axis))


def with_infinities(body: Body, y: ir.Value, x: ir.Value) -> ir.Value:
    """Return `x` where it is not finite, and `y`, which is finite, elsewhere."""
    return body("Add", y, body("Sub", x, body("Clip", x, -LARGEST, LARGEST)))


def all_finite(body: Body, magnitudes: ir.Value, axes: tuple[int, ...]) -> ir.Value:
    """Return 1 for a block, or NaN if something in it is not finite; in float64."""
    finite = compared(body, "Less", magnitudes, np.float32(np.inf))
    for axis in reversed(axes):
        finite = body.reduce("ReduceMin", finite, axis)
    wide = body.cast(finite, ir.DataType.DOUBLE)
    return body("Div", wide, wide)


def compared(body: Body, op_type: str, x: ir.Value, limit: np.float32) -> ir.Value:
    """Return 1.0 where the comparison of `x` with a number holds, 0.0 elsewhere."""
    return body.cast(body(op_type, x, limit), ir.DataType.FLOAT)


def shared_power(body: Body, magnitudes: ir.Value, exponent: int) -> ir.Value:
    """Return the leading powers of two of non-negative float32 numbers, times 2^exponent, in float64.

    Zero and subnormal numbers count with 2^-127.
    """
    wide = body.cast(magnitudes, ir.DataType.DOUBLE)
    return body("Clip", _leading_power(body, wide, 53, exponent), np.float64(2.0 ** (EXPONENT_OF_ZERO + exponent)))


def _leading_power(body: Body, x: ir.Value, precision: int, exponent: int) -> ir.Value:
    number = np.float32 if precision == 24 else np.float64
    scaled = body("Mul", x, number((2.0 ** (precision - 1) + 1) * 2.0 ** (exponent - 1)))
    # 2t - (2 - 2u)t, not t - (1 - u)t: onnxruntime treats a factor of 1 - u as 1 and drops the multiplication.
    return body("Sub", body("Add", scaled, scaled), body("Mul", scaled, number(2 - 2.0 ** (1 - precision))))


def to_multiples(
    body: Body, x: ir.Value, step: ir.Value, low: float, high: float, rounding: Rounding = "half_even"
) -> ir.Value:
    """Return the multiples of `step`, low to high times it, that are nearest to `x`."""
    # Clipping before rounding gives the same, since low and high are whole numbers, and removes infinities.
    ratio = body("Clip", body("Div", x, step), np.float32(low), np.float32(high))
    return body("Mul", _rounded(body, ratio, rounding), step)


def _rounded(body: Body, x: ir.Value, rounding: Rounding) -> ir.Value:
    if rounding == "half_even":
        return body("Round", x)
    if rounding == "half_up":
        nearest = body("Round", x)
        return body("Add", nearest, compared(body, "Equal", body("Sub", x, nearest), np.float32(0.5)))
    return body("Mul", _rounded(body, body("Abs", x), "half_up"), body("Sign", x))


@dataclass(frozen=True)
class KnownAxis:
    """An axis of known length: how many elements its last block lacks, and whether it is the last axis."""

    axis: int
    missing: int
    last: bool

    @property
    def label(self) -> str:
        """A suffix that tells this axis from others with the same blocks."""
        return f"_axis{self.axis}" + "_last" * self.last + f"_pad{self.missing}" * (self.missing > 0)


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of `size` pieces of `inner_size` elements, or of `size` elements if that is 1."""

    size: int
    inner_size: int = 1
    static: KnownAxis | None = None

    def at(self, node: ir.Node) -> BlockLayout:
        """Return these blocks along the attribute `axis` of a node, as far as its length is known."""
        shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
        if shape is None:
            return self
        rank, axis = len(shape), int_attribute(node, "axis", 1)
        if not -rank <= axis < rank:
            raise ModelError(f"{described(node)} has axis {axis}, but its input has {rank} dimensions.")
        length = shape[axis]
        if not isinstance(length, int) or length == 0:
            return self
        size = min(self.size, -(-length // self.inner_size))
        missing = -length % (size * self.inner_size)
        return BlockLayout(size, self.inner_size, KnownAxis(axis % rank, missing, axis % rank == rank - 1))

    @property
    def label(self) -> str:
        """A suffix that is unique to this layout."""
        return "" if self.static is None else f"_of{self.size * self.inner_size}{self.static.label}"

    @property
    def sizes(self) -> list[int]:
        """The lengths of the dimensions that a block has."""
        return [self.size] if self.inner_size == 1 else [self.size, self.inner_size]


@dataclass(frozen=True)
class Blocks:
    """A tensor in blocks, as `values`; `axes` are those of a block: its elements, or its pieces and their elements."""

    values: ir.Value
    axes: tuple[int, ...]
    _length: ir.Value | None = None

    def joined(self, body: Body, values: ir.Value, layout: BlockLayout) -> ir.Value:
        """Join `values`, in blocks like these, into a tensor of the original shape."""
        static, ones = layout.static, [1] * len(self.axes)
        if static is None:
            assert self._length is not None
            rows = body("Reshape", values, np.array([0, -1, *ones, 0]))
            rows = body("Slice", rows, np.array([0]), self._length, np.array([1]))
            return body("Reshape", rows, body("Shape", body.inputs[0]))
        before = [0] * static.axis
        rows = body("Reshape", values, np.array([*before, -1] if static.last else [*before, -1, *ones, 0]))
        if static.missing:
            rows = body("Slice", rows, np.array([0]), np.array([-static.missing]), np.array([static.axis]))
        return rows if static.last else body("Reshape", rows, body("Shape", body.inputs[0]))


def cut(body: Body, x: ir.Value, layout: BlockLayout) -> Blocks:
    if layout.static is None:
        return _cut_any(body, x, layout)
    static, before = layout.static, [0] * layout.static.axis
    rows = x if static.last else body("Reshape", x, np.array([*before, 0, *([1] * len(layout.sizes)), -1]))
    if static.missing:
        behind = [] if static.last else [0] * (len(layout.sizes) + 1)
        rows = body("Pad", rows, np.array([*before, 0, *behind, *before, static.missing, *behind]))
    values = body("Reshape", rows, np.array([*before, -1, *layout.sizes, *([] if static.last else [0])]))
    return Blocks(values, _axes(static.axis, layout))


def _cut_any(body: Body, x: ir.Value, layout: BlockLayout) -> Blocks:
    ones = [1] * len(layout.sizes)
    length = body("Gather", body("Shape", x, start=ref("start", "axis")), np.array([0]))
    pieces = body("Div", body("Add", length, np.array([layout.inner_size - 1])), np.array([layout.inner_size]))
    size = body("Min", pieces, np.array([layout.size]))
    missing = body("Mod", body("Neg", length), body("Mul", size, np.array([layout.inner_size])))
    shape = body("Concat", np.array([0]), length, np.array([*ones, -1]), axis=0)
    rows = body("Reshape", body("Flatten", x, axis=ref("axis", "axis")), shape)
    pads = body("Concat", np.array([0] * (len(ones) + 4)), missing, np.array([*([0] * len(ones)), 0]), axis=0)
    shape = body("Concat", np.array([0, -1]), size, np.array([*layout.sizes[1:], 0]), axis=0)
    return Blocks(body("Reshape", body("Pad", rows, pads), shape), _axes(1, layout), length)


def _axes(axis: int, layout: BlockLayout) -> tuple[int, ...]:
    return tuple(axis + 1 + index for index in range(len(layout.sizes)))


_METHODS = ("to_bfp", "to_bfp_prime")  # one level of exponents, and two

_BLOCK_FLOAT_ATTRIBUTES = (
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
_MICROSCALING_ATTRIBUTES = (
    ir.AttrString("element_dtype", "int8"),
    ir.AttrInt64("axis", 1),
    ir.AttrInt64("block_size", 32),
    ir.AttrInt64("rounding_mode", 0),
)


def read_block_float(node: ir.Node, _opset: int) -> Definition:
    """Read what a BFPQuantizeDequantize of a model has to do."""
    if int_attribute(node, "use_compiler_version_cpu_kernel", 0):
        raise ModelError(
            f"{described(node)} has use_compiler_version_cpu_kernel=1: that has no definition here. Set it to 0."
        )
    method = string_attribute(node, "bfp_method", "to_bfp", among=_METHODS)
    try:
        fmt = blocks.BlockFloat(
            int_attribute(node, "bit_width", 16),
            int_attribute(node, "block_size", 8),
            int_attribute(node, "sub_block_size", 2) if method == "to_bfp_prime" else None,
            int_attribute(node, "sub_block_shift_bits", 1),
            rounding_of(node),
        )
    except UsageError as error:
        raise ModelError(f"{described(node)} cannot be computed: {error}") from error
    from_bfloat16 = bool(int_attribute(node, "convert_to_bfloat_before_bfp", 0))
    inner = fmt.sub_block_size or 1
    anywhere = BlockLayout(fmt.block_size // inner, inner)
    general = _block_float(fmt, anywhere, from_bfloat16)
    return _block_float(fmt, anywhere.at(node), from_bfloat16, general)


def _block_float(
    fmt: blocks.BlockFloat, layout: BlockLayout, from_bfloat16: bool, general: Definition | None = None
) -> Definition:
    def write(body: Body) -> ir.Value:
        (x,) = body.inputs
        if from_bfloat16:
            x = body.cast(body.cast(x, ir.DataType.BFLOAT16), ir.DataType.FLOAT)
        pieces = cut(body, x, layout)
        snap = _one_level if fmt.sub_block_size is None else _two_levels
        return pieces.joined(body, snap(body, pieces, fmt), layout)

    label = _label(fmt) + "_from_bfloat16" * from_bfloat16 + layout.label
    return Definition(label, write, _BLOCK_FLOAT_ATTRIBUTES, fallback=general)


def _one_level(body: Body, pieces: Blocks, fmt: blocks.BlockFloat) -> ir.Value:
    largest = largest_finite(body, pieces.values, *pieces.axes)
    step = shared_power(body, largest, 1 - fmt.mantissa_bits)
    return with_infinities(body, _to_mantissas(body, pieces.values, step, fmt), pieces.values)


def _two_levels(body: Body, pieces: Blocks, fmt: blocks.BlockFloat) -> ir.Value:
    magnitude = body("Abs", pieces.values)
    power = body.reduce("ReduceMax", magnitude, pieces.axes[-1]) if len(pieces.axes) > 1 else magnitude
    power = shared_power(body, power, 1 - fmt.mantissa_bits)
    most_shift = (1 << fmt.sub_block_shift_bits) - 1
    least = body("Mul", body.reduce("ReduceMax", power, pieces.axes[0]), np.float64(2.0**-most_shift))
    step = body("Mul", body("Max", power, least), all_finite(body, magnitude, pieces.axes))
    normal = compared(body, "GreaterOrEqual", magnitude, LEAST_NORMAL)
    return _to_mantissas(body, body("Mul", pieces.values, normal), step, fmt)


def _to_mantissas(body: Body, x: ir.Value, step: ir.Value, fmt: blocks.BlockFloat) -> ir.Value:
    largest = (1 << fmt.mantissa_bits) - 1
    return to_multiples(body, x, body.cast(step, ir.DataType.FLOAT), -largest, largest, fmt.rounding)


def read_microscaling(node: ir.Node, _opset: int) -> Definition:
    """Read what an MXQuantizeDequantize of a model has to do. Float elements are rounded half to even in any case."""
    element = cast(blocks.Element, string_attribute(node, "element_dtype", "int8", among=blocks.ELEMENTS))
    rounding = rounding_of(node)
    try:
        fmt = blocks.Microscaling(
            element, int_attribute(node, "block_size", 32), rounding if element == "int8" else "half_even"
        )
    except UsageError as error:
        raise ModelError(f"{described(node)} cannot be computed: {error}") from error
    anywhere = BlockLayout(fmt.block_size)
    return _microscaling(fmt, anywhere.at(node), _microscaling(fmt, anywhere))


def _microscaling(fmt: blocks.Microscaling, layout: BlockLayout, general: Definition | None = None) -> Definition:
    def write(body: Body) -> ir.Value:
        pieces = cut(body, body.inputs[0], layout)
        largest = largest_finite(body, pieces.values, *pieces.axes)
        element = blocks.FLOAT_ELEMENTS.get(fmt.element)
        if element is None:
            snapped = _to_integers(body, pieces.values, largest, fmt)
        else:
            snapped = _to_floats(body, pieces.values, largest, element)
        return pieces.joined(body, with_infinities(body, snapped, pieces.values), layout)

    return Definition(_label(fmt) + layout.label, write, _MICROSCALING_ATTRIBUTES, fallback=general)


def _to_integers(body: Body, x: ir.Value, largest: ir.Value, fmt: blocks.Microscaling) -> ir.Value:
    step = body.cast(shared_power(body, largest, -blocks.INT8_FRACTION_BITS), ir.DataType.FLOAT)
    multiples = to_multiples(body, x, step, -128, 127, fmt.rounding)
    # -128 times the greatest step is past the range of float32: there the lowest element is -127.
    return body("Clip", multiples, np.float32(-127 * 2.0 ** (blocks.GREATEST_EXPONENT - blocks.INT8_FRACTION_BITS)))


def _to_floats(body: Body, x: ir.Value, largest: ir.Value, element: blocks.FloatElement) -> ir.Value:
    power = shared_power(body, largest, -element.greatest_exponent)
    scale = body.cast(body("Max", power, np.float64(2.0**blocks.LEAST_SCALE_EXPONENT)), ir.DataType.FLOAT)
    # The largest element is on the grid, so clipping may come before rounding; it removes infinities.
    ratio = body("Clip", body("Div", x, scale), np.float32(-element.largest), np.float32(element.largest))
    least_step = np.float32(2.0 ** (element.least_exponent - element.mantissa_bits))
    step = body("Clip", body("Abs", _leading_power(body, ratio, 24, -element.mantissa_bits)), least_step)
    return body("Mul", body("Mul", body("Round", body("Div", ratio, step)), step), scale)


def _label(fmt: blocks.BlockFloat | blocks.Microscaling) -> str:
    return str(fmt).replace(" ", "_").lower()
