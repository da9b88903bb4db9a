"""Reading the attributes of a node, with errors that name it."""

from __future__ import annotations

import onnx_ir as ir

from detent.errors import ModelError


def described(node: ir.Node) -> str:
    """The node, as an error message names it."""
    return f"Node '{node.name}' ({node.domain}::{node.op_type})"


def string_attribute(node: ir.Node, name: str, default: str | None = None) -> str:
    """A string attribute; ModelError where it is of another kind, or absent and without default."""
    return str(_attribute(node, name, ir.AttributeType.STRING, default))


def int_attribute(node: ir.Node, name: str, default: int | None = None) -> int:
    """An integer attribute; ModelError where it is of another kind, or absent and without default."""
    value = _attribute(node, name, ir.AttributeType.INT, default)
    assert isinstance(value, int)
    return value


def _attribute(node: ir.Node, name: str, kind: ir.AttributeType, default: int | str | None) -> int | str:
    attribute = node.attributes.get(name)
    if attribute is None:
        if default is None:
            raise ModelError(f"{described(node)} has no attribute {name}, which it needs.")
        return default
    if attribute.is_ref() or attribute.type is not kind:
        raise ModelError(
            f"The attribute {name} of {described(node)} must be a {kind.name.lower()} that is written out."
        )
    return attribute.as_int() if kind is ir.AttributeType.INT else attribute.as_string()
