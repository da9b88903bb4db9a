"""Norms that are written out in operators: what divides by a root of a mean of squares stays float, as one.

    x / sqrt(mean(x^2) + eps)    or with Reciprocal, Pow, ReduceSum, and a factor or a bound in between

Squares of ordinary numbers reach from 1e-4 to 100, and their root divides everything that follows: on a grid of 8 bits,
the small ones among them would all be one code. Operators for such norms round only what goes in and what comes out,
and so is done here: the nodes in between stay float. ONNX has an operator for this norm from opset 23 on.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import input_at, is_constant, is_standard, scalar_of

REASON = "part of a norm by the root of a mean of squares, which is computed in float from its input to its result"

_ON_THE_WAY = ("Add", "Mul", "Div", "Max", "Clip", "Identity", "Cast")


def find_unfused_norms(graph: ir.Graph) -> dict[str, str]:
    """Return the reason for each node that is part of such a norm, by name."""
    found: dict[str, str] = {}
    for node in graph:
        if is_standard(node, "Sqrt") or (is_standard(node, "Pow") and abs(_exponent(node)) == 0.5):
            inside = _squares_before(node)
            dividing = [] if inside is None else _divisions_after(node)
            if inside is not None and dividing:
                found |= {str(each.name): REASON for each in (*inside, node, *dividing)}
    return found


def _exponent(node: ir.Node) -> float:
    return scalar_of(input_at(node, 1)) or 0.0


def _squares_before(root: ir.Node) -> list[ir.Node] | None:
    """Return the nodes from the squares to the root, without it; None if it is no root of a mean of squares."""
    passed: list[ir.Node] = []
    node = root
    while True:
        varying = [value for value in node.inputs if value is not None and not is_constant(value)]
        before = varying[0].producer() if len(varying) == 1 else None
        if before is None:
            return None
        passed.append(before)
        if is_standard(before, "ReduceMean", "ReduceSum", "GlobalAveragePool"):
            squares = before.inputs[0].producer() if before.inputs[0] is not None else None
            return None if squares is None or not _is_square(squares) else [*passed, squares]
        if not is_standard(before, *_ON_THE_WAY):
            return None
        node = before


def _is_square(node: ir.Node) -> bool:
    if is_standard(node, "Pow"):
        return _exponent(node) == 2.0
    return is_standard(node, "Mul") and node.inputs[0] is node.inputs[1]


def _divisions_after(root: ir.Node) -> list[ir.Node]:
    """Return the nodes that divide by the root, and those between; none if nothing divides by it."""
    found: list[ir.Node] = []
    inverse = _exponent(root) < 0 if is_standard(root, "Pow") else False
    for reader in root.outputs[0].consumers():
        if inverse and is_standard(reader, "Mul"):
            found.append(reader)
        elif is_standard(reader, "Reciprocal"):
            found += [reader, *(each for each in reader.outputs[0].consumers() if is_standard(each, "Mul"))]
        elif is_standard(reader, "Div") and (reader.inputs[1] is root.outputs[0] or is_constant(reader.inputs[0])):
            found.append(reader)
            if is_constant(reader.inputs[0]):  # 1 / root, to be multiplied with
                found += [each for each in reader.outputs[0].consumers() if is_standard(each, "Mul")]
        elif is_standard(reader, "Add", "Max", "Clip"):  # x / (root + eps)
            later = [each for each in reader.outputs[0].consumers() if is_standard(each, "Div")]
            found += [reader, *later] if later else []
    return found
