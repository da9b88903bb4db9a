"""Shared by the definitions of operators: a function body, written node by node, and reading a call's attributes.

A body is written for the opset of the model that it goes into: onnx demands that an operator means the same in both.
Attributes of the call are read with `ref`, so that one body serves all their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import ModelError, nearest
from detent.numerics.blocks import ROUNDING_MODES
from detent.numerics.codec import Rounding
from detent.qdq.families import OperatorName

LABEL = "detent.body"  # the metadata key that holds the label of the definition a function was written from

# The opsets from which reductions take their axes as an input; before, they are an attribute.
_AXES_ARE_AN_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18}

Argument = ir.Value | npt.NDArray[Any] | np.generic  # what a node reads: a value, or a constant


@dataclass(frozen=True, eq=False)
class Definition:
    """What an operator does in one model: the body for the types and attributes of some of its nodes.

    `label` is unique among the definitions of one operator. `write` adds the nodes to a body and returns the result.
    `attributes` are all that a call may have, with their defaults. `fallback` is slower and serves more nodes: as many
    as one body can.
    """

    label: str
    write: Callable[[Body], ir.Value]
    attributes: Sequence[ir.Attr]
    inputs: Sequence[str] = ("x",)
    fallback: Definition | None = None

    @property
    def general(self) -> Definition:
        """The definition that serves as many nodes as one body can."""
        return self.fallback or self


class Body:
    """The nodes of a function, in the order of the calls."""

    def __init__(self, inputs: Sequence[str], opset: int) -> None:
        self.inputs = [ir.Value(name=name) for name in inputs]
        self.opset = opset
        self._nodes: list[ir.Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def __call__(self, op_type: str, *inputs: Argument, **attributes: Any) -> ir.Value:
        """Add a node of the standard domain and return its output."""
        arguments = [item if isinstance(item, ir.Value) else self._constant(np.asarray(item)) for item in inputs]
        references = [value for value in attributes.values() if isinstance(value, ir.Attr)]
        plain = {name: value for name, value in attributes.items() if not isinstance(value, ir.Attr)}
        written = [*ir.convenience.convert_attributes(plain), *references]
        output = ir.Value(name=f"{op_type.lower()}_{len(self._nodes)}")
        self._nodes.append(ir.Node("", op_type, arguments, written, outputs=[output]))
        return output

    def cast(self, value: Argument, dtype: ir.DataType) -> ir.Value:
        return self("Cast", value, to=int(dtype))

    def reduce(self, op_type: str, value: ir.Value, axis: int) -> ir.Value:
        """Reduce along one axis, which stays with length 1."""
        if self.opset >= _AXES_ARE_AN_INPUT[op_type]:
            return self(op_type, value, np.array([axis]), keepdims=1)
        return self(op_type, value, axes=[axis], keepdims=1)

    def _constant(self, array: npt.NDArray[Any]) -> ir.Value:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self("Constant", value=ir.tensor(array))
        return self._constants[key]

    def function(self, operator: OperatorName, overload: str, result: ir.Value, definition: Definition) -> ir.Function:
        """Return the finished function, whose output is `result`."""
        graph = ir.Graph(self.inputs, [result], nodes=self._nodes, opset_imports={"": self.opset})
        function = ir.Function(operator.domain, operator.name, overload, graph=graph, attributes=definition.attributes)
        function.metadata_props[LABEL] = definition.label
        return function


def ref(name: str, attribute: str) -> ir.Attr:
    """Return the integer attribute `name` of a node in a body, taken from `attribute` of the call."""
    return ir.RefAttr(name, attribute, ir.AttributeType.INT)


# The values of the attribute rounding_mode of the block formats.
ROUNDINGS: Mapping[int, Rounding] = MappingProxyType({mode: rounding for rounding, mode in ROUNDING_MODES.items()})


def described(node: ir.Node) -> str:
    """Return the node as an error message names it."""
    return f"Node '{node.name}' ({node.domain}::{node.op_type})"


def string_attribute(node: ir.Node, name: str, default: str | None = None, among: Sequence[str] = ()) -> str:
    """Read a string attribute; ModelError if it is missing without a default, of another type, or not `among` these."""
    value = str(_attribute(node, name, ir.AttributeType.STRING, default))
    if among and value not in among:
        raise ModelError(
            f"{described(node)} has {name} '{value}'.{nearest(value, among)} Known are: {', '.join(among)}."
        )
    return value


def int_attribute(node: ir.Node, name: str, default: int | None = None) -> int:
    """Read an integer attribute; ModelError if it is of another type, or missing without a default."""
    value = _attribute(node, name, ir.AttributeType.INT, default)
    assert isinstance(value, int)
    return value


def rounding_of(node: ir.Node) -> Rounding:
    """Read the attribute rounding_mode."""
    mode = int_attribute(node, "rounding_mode", 0)
    if mode not in ROUNDINGS:
        known = ", ".join(f"{number} ({meaning})" for number, meaning in ROUNDINGS.items())
        raise ModelError(f"{described(node)} has rounding_mode {mode}. Known are: {known}.")
    return ROUNDINGS[mode]


def _attribute(node: ir.Node, name: str, kind: ir.AttributeType, default: int | str | None) -> int | str:
    attribute = node.attributes.get(name)
    if attribute is None:
        if default is None:
            raise ModelError(f"{described(node)} has no attribute {name}, which it needs.")
        return default
    if attribute.is_ref() or attribute.type is not kind:
        raise ModelError(
            f"The attribute {name} of {described(node)} must be of type {kind.name.lower()} and written out."
        )
    return attribute.as_int() if kind is ir.AttributeType.INT else attribute.as_string()
