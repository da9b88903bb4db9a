"""Reading the attributes of a node, with errors that name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

from detent.errors import ModelError, nearest
from detent.numerics.rounding import Rounding

ROUNDINGS: Mapping[int, Rounding] = MappingProxyType({0: "half_away", 1: "half_up", 2: "half_even"})
"""The values of the attribute rounding_mode of the block formats."""


def described(node: ir.Node) -> str:
    """The node, as an error message names it."""
    return f"Node '{node.name}' ({node.domain}::{node.op_type})"


def string_attribute(node: ir.Node, name: str, default: str | None = None, among: Sequence[str] = ()) -> str:
    """A string attribute; ModelError where it is absent and without default, of another kind, or not `among` these."""
    value = str(_attribute(node, name, ir.AttributeType.STRING, default))
    if among and value not in among:
        raise ModelError(
            f"{described(node)} has {name} '{value}'.{nearest(value, among)} Known are: {', '.join(among)}."
        )
    return value


def int_attribute(node: ir.Node, name: str, default: int | None = None) -> int:
    """An integer attribute; ModelError where it is of another kind, or absent and without default."""
    value = _attribute(node, name, ir.AttributeType.INT, default)
    assert isinstance(value, int)
    return value


def rounding_of(node: ir.Node) -> Rounding:
    """The meaning of the attribute rounding_mode."""
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
