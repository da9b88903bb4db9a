"""Fixed-point numbers: how a quantized file holds them, how the compiled program does, and why that is exact.

In the file, a code stands for the integer code - zero_point, and that for (code - zero_point) * 2^-position (`Grid`).
The device has 8-bit operands around zero: int8 with zero point 0, and uint8 with zero point 128, are the same integers
-128 .. 127. Other codes are refused here, with the name of the tensor and what to do.

In the program, a tensor consists of integers X in low .. high, which stand for X * 2^-position / divisor (`Fixed`).
onnxruntime holds X * 2^-shift in float32 or, if `wide`, in float64. The factor 2^-shift changes exponents, not digits.

float32 holds every integer up to 2^24, float64 up to 2^53. Products and sums of integers are integers; as long as no
result, and no partial sum in any order, can reach that limit, nothing is ever rounded: each has the value that an
integer register of as many bits would hold. The limits follow from the ranges of the operands and, for a layer, from
its weights: sum |w| * max |x| + |bias| for each output channel. If 2^24 may be reached, the program computes in
float64, or in parts that stay below it. Nothing is assumed about the data.

The device accumulates in int32. If `low` and `high` lie within int32, no overflow is possible; otherwise the program
counts the elements that leave it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import ModelError
from detent.graph.values import Names, add_initializer
from detent.numerics.formats import HIGHEST_POSITION, LOWEST_POSITION
from detent.qdq.families import computes_on_codes, is_native_dequantize, is_native_quantize, is_quantizing
from detent.qdq.reader import dequantized, params_of

NARROW_LIMIT = 1 << 24  # float32 holds every whole number below
WIDE_LIMIT = 1 << 53  # the same for float64
INT32_LOW, INT32_HIGH = -(1 << 31), (1 << 31) - 1

# No device shifts this far: positions so far apart are an error in the file, and would exceed float64 at once.
FARTHEST_SHIFT = 40


class NotIntegerError(Exception):
    """A node has no integer form here, for the reason in the message, and is computed in float."""


@dataclass(frozen=True, eq=False)
class Fixed:
    """A tensor of integers. `reach` is the largest magnitude."""

    value: ir.Value
    position: int
    low: int
    high: int
    shift: int = 0
    divisor: int = 1
    wide: bool = False

    @property
    def reach(self) -> int:
        """The largest magnitude that an element can have."""
        return max(abs(self.low), abs(self.high))

    @property
    def unit(self) -> int:
        """The numbers are held in units of 2^-unit."""
        return self.position - self.shift

    def finer(self, bits: int) -> Fixed:
        """Return the same numbers in steps 2^bits times as fine. The held floats stay as they are."""
        if bits > FARTHEST_SHIFT:
            raise NotIntegerError(f"its positions are {bits} apart, which no shift of the device spans")
        return replace(
            self,
            position=self.position + bits,
            low=self.low << bits,
            high=self.high << bits,
            shift=self.shift + bits,
        )

    def reduced(self) -> Fixed:
        """Move the powers of two of the divisor into the position."""
        twos = (self.divisor & -self.divisor).bit_length() - 1
        return replace(self, position=self.position + twos, divisor=self.divisor >> twos)

    def checked(self) -> Fixed:
        """Return itself, or raise NotIntegerError if float64 cannot hold every element."""
        # Past 53 bits float64 would round, and the emulation would no longer be one of integers.
        if self.reach >= WIDE_LIMIT:
            raise NotIntegerError("its result may need more than 53 bits")
        return self


@dataclass(frozen=True, eq=False)
class Constant:
    """Known numbers: integers * 2^-position."""

    integers: npt.NDArray[np.int64]
    position: int

    @property
    def reach(self) -> int:
        return int(np.abs(self.integers).max(initial=0))

    def shifted(self, bits: int) -> npt.NDArray[np.int64]:
        """Return the integers in steps 2^bits times as fine."""
        if bits > FARTHEST_SHIFT or self.reach << bits >= WIDE_LIMIT:
            raise NotIntegerError(f"its positions are {bits} apart, which no shift of the device spans")
        return self.integers << bits


def dyadic(numbers: npt.NDArray[Any]) -> Constant | None:
    """Return numbers as integers of at most 24 bits with one position, or None if that takes more bits."""
    wide = numbers.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    # The first position at which all are whole has the smallest integers.
    for position in range(25):
        scaled = np.ldexp(wide, position)
        if (scaled == np.rint(scaled)).all():
            return Constant(scaled.astype(np.int64), position) if np.abs(scaled).max(initial=0) < 2**24 else None
    return None


def held(integers: npt.NDArray[np.int64], shift: int, wide: bool) -> npt.NDArray[Any]:
    """Return integers * 2^-shift, as floats that hold them exactly."""
    return np.ldexp(integers.astype(np.float64), -shift).astype(np.float64 if wide else np.float32)


def exact_bound(number: float, position: int) -> tuple[int, int]:
    """Return a float as an integer in steps of 2^-(position + more), and `more`, the bits beyond `position`."""
    if not math.isfinite(number):
        raise NotIntegerError(f"its bound is {number}")
    numerator, denominator = number.as_integer_ratio()
    more = max(0, denominator.bit_length() - 1 - position)
    exponent = position + more - (denominator.bit_length() - 1)
    return numerator << exponent, more


def rounded_range(low: int, high: int, cut: int, bounds: tuple[int, int]) -> tuple[int, int]:
    """Return the range after a shift by `cut` to the right, rounded outwards, within the bounds of the grid."""
    if cut <= 0:
        least, most = low << -cut, high << -cut
    else:
        # Python's shift rounds down; the upper end is rounded up by negating twice.
        least, most = low >> cut, -(-high >> cut)
    return max(bounds[0], min(least, bounds[1])), min(bounds[1], max(most, bounds[0]))


def average_of(count: int, total: Fixed) -> Fixed:
    """Turn a sum over `count` elements into their mean."""
    return replace(total, divisor=total.divisor * count).reduced()


def times_constant(value: Fixed, factor: Constant) -> tuple[int, Fixed]:
    """Multiply by one known number: return the factor of the integers, and the product, whose `value` is to be set.

    Common factors of the number and the divisor cancel: an average, multiplied by its device factor, is the sum times a
    whole number.
    """
    number = int(factor.integers.reshape(-1)[0])
    common = math.gcd(number, value.divisor)
    number //= common
    ends = (value.low * number, value.high * number)
    product = replace(
        value, position=value.position + factor.position, low=min(ends), high=max(ends), divisor=value.divisor // common
    )
    return number, product.reduced()


@dataclass(eq=False)
class ProgramBuilder:
    """A model that is compiled in place: new nodes go before the node of the file that they replace, the `anchor`.

    Values of the file that hold integers are in `fixed` or `constants`; all others are float and stay as they are.
    Reading an integer tensor as float decodes it, once.
    """

    model: ir.Model
    names: Names
    anchor: ir.Node
    fixed: dict[ir.Value, Fixed] = field(default_factory=dict)
    constants: dict[ir.Value, Constant] = field(default_factory=dict)
    _decoded: dict[Fixed | Constant, ir.Value] = field(default_factory=dict)

    def node(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """Add a node and return its first output."""
        return self.nodes(op_type, inputs, 1, attributes)[0]

    def nodes(
        self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, attributes: Mapping[str, Any]
    ) -> Sequence[ir.Value]:
        """Add a node and return its outputs."""
        made = ir.node(op_type, list(inputs), dict(attributes), num_outputs=outputs, name=self._fresh("step"))
        for value in made.outputs:
            value.name = self._fresh("integers")
        self.model.graph.insert_before(self.anchor, made)
        return made.outputs

    def again(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        """Add the same operator, with the same attributes, on other inputs, and return its outputs."""
        return self.nodes(node.op_type, inputs, len(node.outputs), dict(node.attributes.items()))

    def array(self, numbers: npt.NDArray[Any]) -> ir.Value:
        return add_initializer(self.model.graph, self._fresh("constant"), numbers)

    def scalar(self, number: float, wide: bool) -> ir.Value:
        """Add one number, in the type of the tensors that it meets."""
        return self.array(np.array(number, np.float64 if wide else np.float32))

    def _fresh(self, what: str) -> str:
        return self.names.fresh(f"{self.anchor.name}/emulated/{what}")

    def integers(self, value: ir.Value | None) -> Fixed:
        """Return the integers of an operand; raise NotIntegerError if it has none."""
        if value is not None and value in self.constants:
            known = self.constants[value]
            low, high = int(known.integers.min(initial=0)), int(known.integers.max(initial=0))
            wide = known.reach >= NARROW_LIMIT
            return Fixed(self.array(held(known.integers, 0, wide)), known.position, low, high, wide=wide)
        if value is None or value not in self.fixed:
            raise NotIntegerError("an input of it has no position")
        return self.fixed[value]

    def whole(self, value: ir.Value | None) -> Fixed:
        """Return the integers of an operand; raise NotIntegerError if a division is pending on them."""
        operand = self.integers(value)
        if operand.divisor != 1:
            raise NotIntegerError(f"an input of it is divided by {operand.divisor}, which no shift does")
        return operand

    def narrow(self, value: ir.Value | None) -> Fixed:
        """Return the integers of an operand; raise NotIntegerError if float32 does not hold them."""
        operand = self.whole(value)
        if operand.wide:
            raise NotIntegerError("an input of it has more than 24 bits")
        return operand

    def widened(self, operand: Fixed) -> Fixed:
        """Hold the same integers in float64."""
        if operand.wide:
            return operand
        return replace(operand, value=self.node("Cast", [operand.value], to=ir.DataType.DOUBLE.value), wide=True)

    def in_unit(self, operand: Fixed, unit: int) -> Fixed:
        """Hold the same integers in units of 2^-unit."""
        if operand.unit == unit:
            return operand
        # Multiplying by a power of two is exact in float, and onnxruntime has no kernel for shifts of floats.
        factor = self.scalar(2.0 ** (unit - operand.unit), operand.wide)
        return replace(operand, value=self.node("Mul", [operand.value, factor]), shift=operand.position - unit)

    def as_float(self, value: ir.Value) -> ir.Value:
        """Return the numbers that a value of the file stands for, in float."""
        key: Fixed | Constant | None = self.fixed.get(value) or self.constants.get(value)
        if key is None:
            return value
        # Several float nodes may read one tensor: it is decoded once.
        if key not in self._decoded:
            self._decoded[key] = self._decode(self.integers(value))
        return self._decoded[key]

    def _decode(self, operand: Fixed) -> ir.Value:
        decoded = self.in_unit(operand, 0).value
        if operand.divisor != 1:
            decoded = self.node("Div", [decoded, self.scalar(operand.divisor, operand.wide)])
        return self.node("Cast", [decoded], to=ir.DataType.FLOAT.value) if operand.wide else decoded


ADVICE = "The recipe XINT8 writes what the emulator runs: 8 bits and power-of-two scales, one for each tensor."
_ZERO_POINTS = {"int8": 0, "uint8": 128, "int32": 0}


@dataclass(frozen=True)
class Grid:
    """The integers of a tensor: codes of type `dtype`, of which `zero_point` stands for 0, in steps of 2^-position."""

    position: int
    dtype: np.dtype[Any]
    zero_point: int

    @property
    def low(self) -> int:
        return int(np.iinfo(self.dtype).min) - self.zero_point

    @property
    def high(self) -> int:
        return int(np.iinfo(self.dtype).max) - self.zero_point

    def codes(self, integers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return (np.asarray(integers).astype(np.int64) + self.zero_point).astype(self.dtype)

    def integers(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return codes.astype(np.int64) - self.zero_point


def check_form(model: ir.Model, where: str) -> None:
    """Raise ModelError unless the model is in QDQ form, written with standard operators."""
    pairs = 0
    for node in model.graph.all_nodes():
        native = is_native_quantize(node) or is_native_dequantize(node)
        pairs += native
        if computes_on_codes(node):
            raise ModelError(
                f"{where} is in QOperator form (node '{node.name}' is a {node.op_type}), which does not say what the "
                "NPU computes. Emulate the QDQ form: quantize with --format qdq."
            )
        if is_quantizing(node) and not native:
            raise ModelError(
                f"{where} is written in {node.domain}::{node.op_type} (node '{node.name}'). Turn it into standard "
                "operators first: `detent convert MODEL OUTPUT --to qdq`."
            )
    if not pairs:
        raise ModelError(f"{where} is not quantized: it has no codes to compute with. {ADVICE}")


def grid_of(node: ir.Node) -> Grid:
    """Return the grid of a QuantizeLinear or DequantizeLinear; raise ModelError if the device has no such numbers."""
    read = dequantized(node)
    source = node.inputs[0] if read is None else read.tensor
    tensor = str(source.name if source is not None else node.name)
    params = params_of(node)
    if params is None:
        raise ModelError(f"Tensor '{tensor}' has a scale or zero point that is computed while the model runs. {ADVICE}")
    if not params.per_tensor:
        raise ModelError(f"Tensor '{tensor}' has {params.scale.size} scales, one for each channel or block. {ADVICE}")
    number, position = float(params.scale.reshape(-1)[0]), params.position
    if position is None:
        raise ModelError(f"The scale {number:.7g} of tensor '{tensor}' is not a power of two. {ADVICE}")
    if not LOWEST_POSITION <= position <= HIGHEST_POSITION:
        raise ModelError(f"The scale {number:.7g} of tensor '{tensor}' is out of all range. Quantize the model again.")
    dtype, zero_point = params.dtype, int(params.zero_point.reshape(-1)[0])
    expected = _ZERO_POINTS.get(dtype.name)
    if expected is None:
        raise ModelError(f"Tensor '{tensor}' has codes of type {dtype.name}; the device has 8-bit operands. {ADVICE}")
    if zero_point != expected:
        raise ModelError(
            f"Tensor '{tensor}' has zero point {zero_point} where the device needs {expected} for {dtype.name}: "
            f"its operands are symmetric around zero. {ADVICE}"
        )
    return Grid(position, dtype, zero_point)
