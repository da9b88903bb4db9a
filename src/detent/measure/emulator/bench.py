"""Where a program is written: nodes are put before the node of the file that they stand for.

Values of the file that hold integers are known here as `Fixed` or `Constant`; all others are float and stay as they
are. Reading an integer tensor as float decodes it, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.names import Names
from detent.graph.values import add_initializer
from detent.measure.emulator.fixed import NARROW_LIMIT, Constant, Fixed, NotIntegerError, held


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
