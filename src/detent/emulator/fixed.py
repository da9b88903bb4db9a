"""Integers, as the compiled program holds them, and why computing with them in floating point is exact.

A tensor is of integers X in low .. high, and stands for X * 2^-position / divisor. It is held in onnxruntime as
X * 2^-shift in float32 or, where `wide`, in float64. The factor 2^-shift changes exponents and no digits.

float32 holds every integer below 2^24, float64 below 2^53. Products and sums of integers are integers; as long as no
result, and no partial sum of it in whatever order, can reach that limit, none of them is ever rounded: each has the
value that an integer register of as many bits would hold. The limits follow from the ranges of the operands and, for
a layer, from its very weights: sum |w| * max |x| + |bias| for each output channel. Where 2^24 may be reached, a
program computes in float64, or in parts that stay below it. Nothing is assumed about the data.

The device accumulates in int32. Where `low` and `high` lie within it, no overflow is possible; elsewhere a program
counts the elements that leave it.

Where a program is written: nodes are put before the node of the file that they stand for.

Values of the file that hold integers are known here as `Fixed` or `Constant`; all others are float and stay as they
are. Reading an integer tensor as float decodes it, once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.names import Names
from detent.graph.values import add_initializer

NARROW_LIMIT = 1 << 24
WIDE_LIMIT = 1 << 53
INT32_LOW, INT32_HIGH = -(1 << 31), (1 << 31) - 1

FARTHEST_SHIFT = 40
"""No device shifts this far: positions so far apart are a fault of the file, and would leave float64 at once."""


class NotIntegerError(Exception):
    """A node that has no integer form here; its message is the reason. Such a node is computed in float."""


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
        """The held numbers count in 2^-unit."""
        return self.position - self.shift

    def finer(self, bits: int) -> Fixed:
        """The same numbers as integers that count in steps 2^bits times as fine. What is held stays as it is."""
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
        """The same with the powers of two of the divisor moved into the position."""
        twos = (self.divisor & -self.divisor).bit_length() - 1
        return replace(self, position=self.position + twos, divisor=self.divisor >> twos)

    def checked(self) -> Fixed:
        """Itself; NotIntegerError past what float64 holds."""
        if self.reach >= WIDE_LIMIT:
            raise NotIntegerError("its result may need more than 53 bits")
        return self


@dataclass(frozen=True, eq=False)
class Constant:
    """Integers that are known: they stand for integers * 2^-position."""

    integers: npt.NDArray[np.int64]
    position: int

    @property
    def reach(self) -> int:
        """The largest magnitude."""
        return int(np.abs(self.integers).max(initial=0))

    def shifted(self, bits: int) -> npt.NDArray[np.int64]:
        """The integers in steps 2^bits times as fine."""
        if bits > FARTHEST_SHIFT or self.reach << bits >= WIDE_LIMIT:
            raise NotIntegerError(f"its positions are {bits} apart, which no shift of the device spans")
        return self.integers << bits


def dyadic(numbers: npt.NDArray[Any]) -> Constant | None:
    """Numbers as integers of at most 24 bits with one position, or None where that takes more."""
    wide = numbers.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    for position in range(25):
        scaled = np.ldexp(wide, position)
        if (scaled == np.rint(scaled)).all():
            return Constant(scaled.astype(np.int64), position) if np.abs(scaled).max(initial=0) < 2**24 else None
    return None


def held(integers: npt.NDArray[np.int64], shift: int, wide: bool) -> npt.NDArray[Any]:
    """integers * 2^-shift, as floats that hold them exactly."""
    return np.ldexp(integers.astype(np.float64), -shift).astype(np.float64 if wide else np.float32)


def exact_bound(number: float, position: int) -> tuple[int, int]:
    """A float as an integer in steps of 2^-(position + more), and `more`, the bits that it needs beyond `position`."""
    if not math.isfinite(number):
        raise NotIntegerError(f"its bound is {number}")
    numerator, denominator = number.as_integer_ratio()
    more = max(0, denominator.bit_length() - 1 - position)
    exponent = position + more - (denominator.bit_length() - 1)
    return numerator << exponent, more


def rounded_range(low: int, high: int, cut: int, bounds: tuple[int, int]) -> tuple[int, int]:
    """The range behind a shift by `cut` to the right, rounded outwards, and the bounds of the grid."""
    if cut <= 0:
        least, most = low << -cut, high << -cut
    else:
        least, most = low >> cut, -(-high >> cut)
    return max(bounds[0], min(least, bounds[1])), min(bounds[1], max(most, bounds[0]))


def average_of(count: int, total: Fixed) -> Fixed:
    """A sum over `count` elements as their mean."""
    return replace(total, divisor=total.divisor * count).reduced()


def times_constant(value: Fixed, factor: Constant) -> tuple[int, Fixed]:
    """A product with one known number: what to multiply the integers by, and the result without its value.

    What the factor and the divisor have in common cancels: an average, multiplied by its device factor, is the sum
    times a whole number.
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
class Bench:
    """A model that is being compiled in place, and what is known of its values."""

    model: ir.Model
    names: Names
    anchor: ir.Node
    fixed: dict[ir.Value, Fixed] = field(default_factory=dict)
    constants: dict[ir.Value, Constant] = field(default_factory=dict)
    _decoded: dict[Fixed | Constant, ir.Value] = field(default_factory=dict)

    def node(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """The first output of a new node."""
        return self.nodes(op_type, inputs, 1, attributes)[0]

    def nodes(
        self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, attributes: Mapping[str, Any]
    ) -> Sequence[ir.Value]:
        """The outputs of a new node."""
        made = ir.node(op_type, list(inputs), dict(attributes), num_outputs=outputs, name=self._fresh("step"))
        for value in made.outputs:
            value.name = self._fresh("integers")
        self.model.graph.insert_before(self.anchor, made)
        return made.outputs

    def again(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        """The outputs of the same operator, with the same attributes, on other inputs."""
        return self.nodes(node.op_type, inputs, len(node.outputs), dict(node.attributes.items()))

    def array(self, numbers: npt.NDArray[Any]) -> ir.Value:
        """A constant of the program."""
        return add_initializer(self.model.graph, self._fresh("constant"), numbers)

    def scalar(self, number: float, wide: bool) -> ir.Value:
        """One number, in the type of the tensors that it meets."""
        return self.array(np.array(number, np.float64 if wide else np.float32))

    def _fresh(self, what: str) -> str:
        return self.names.fresh(f"{self.anchor.name}/emulated/{what}")

    def integers(self, value: ir.Value | None) -> Fixed:
        """The integers of an operand; NotIntegerError where it has none."""
        if value is not None and value in self.constants:
            known = self.constants[value]
            low, high = int(known.integers.min(initial=0)), int(known.integers.max(initial=0))
            wide = known.reach >= NARROW_LIMIT
            return Fixed(self.array(held(known.integers, 0, wide)), known.position, low, high, wide=wide)
        if value is None or value not in self.fixed:
            raise NotIntegerError("an input of it has no position")
        return self.fixed[value]

    def whole(self, value: ir.Value | None) -> Fixed:
        """The integers of an operand that no division is pending on."""
        operand = self.integers(value)
        if operand.divisor != 1:
            raise NotIntegerError(f"an input of it is divided by {operand.divisor}, which no shift does")
        return operand

    def narrow(self, value: ir.Value | None) -> Fixed:
        """The integers of an operand, held in float32."""
        operand = self.whole(value)
        if operand.wide:
            raise NotIntegerError("an input of it has more than 24 bits")
        return operand

    def widened(self, operand: Fixed) -> Fixed:
        """The same integers in float64."""
        if operand.wide:
            return operand
        return replace(operand, value=self.node("Cast", [operand.value], to=ir.DataType.DOUBLE.value), wide=True)

    def in_unit(self, operand: Fixed, unit: int) -> Fixed:
        """The same integers, held as numbers that count in 2^-unit."""
        if operand.unit == unit:
            return operand
        factor = self.scalar(2.0 ** (unit - operand.unit), operand.wide)
        return replace(operand, value=self.node("Mul", [operand.value, factor]), shift=operand.position - unit)

    def as_float(self, value: ir.Value) -> ir.Value:
        """The numbers that a value of the file stands for."""
        key: Fixed | Constant | None = self.fixed.get(value) or self.constants.get(value)
        if key is None:
            return value
        if key not in self._decoded:
            self._decoded[key] = self._decode(self.integers(value))
        return self._decoded[key]

    def _decode(self, operand: Fixed) -> ir.Value:
        decoded = self.in_unit(operand, 0).value
        if operand.divisor != 1:
            decoded = self.node("Div", [decoded, self.scalar(operand.divisor, operand.wide)])
        return self.node("Cast", [decoded], to=ir.DataType.FLOAT.value) if operand.wide else decoded
