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

_MOVING = ("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Clip", "Relu")
_ON_THE_WAY = ("Add", "Sub", "Div", "Max", *_MOVING)
MOST_NODES = 24


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
    """Return the nodes from the squares to the root, without it; None if it is no root of a mean of squares.

    A variance may be written as mean(x^2) - mean(x)^2: the search follows both.
    """
    found: dict[ir.Node, None] = {}
    squares, pending = False, [root]
    while pending:
        reader = pending.pop()
        for value in reader.inputs[:1] if is_standard(reader, *_MOVING) else reader.inputs:
            node = None if value is None else value.producer()
            if value is None or is_constant(value) or node in found:
                continue
            if node is None or len(found) >= MOST_NODES:
                return None
            found[node] = None
            if is_standard(node, "ReduceMean", "ReduceSum", "GlobalAveragePool"):
                source = node.inputs[0].producer() if node.inputs[0] is not None else None
                if source is not None and _is_square(source):
                    squares, found = True, {**found, source: None}
            elif is_standard(node, *_ON_THE_WAY) or _is_square(node) or _is_scaled(node):
                pending.append(node)
            else:
                return None
    return list(found) if squares else None


def _is_square(node: ir.Node) -> bool:
    if is_standard(node, "Pow"):
        return _exponent(node) == 2.0
    return is_standard(node, "Mul") and node.inputs[0] is node.inputs[1]


def _is_scaled(node: ir.Node) -> bool:
    return is_standard(node, "Mul") and any(is_constant(value) for value in node.inputs)


def _divisions_after(root: ir.Node) -> list[ir.Node]:
    """Return the nodes that divide by the root, and those between; none if nothing divides by it."""
    found: list[ir.Node] = []
    inverse = is_standard(root, "Pow") and _exponent(root) < 0
    for reader in root.outputs[0].consumers():
        if inverse and is_standard(reader, "Mul"):
            found += [reader, *_products_after(reader)]
        elif is_standard(reader, "Reciprocal") or (is_standard(reader, "Div") and is_constant(reader.inputs[0])):
            products = [each for each in reader.outputs[0].consumers() if is_standard(each, "Mul")]
            found += [reader, *products, *(later for each in products for later in _products_after(each))]
        elif is_standard(reader, "Div") and reader.inputs[1] is root.outputs[0]:
            found.append(reader)
        elif is_standard(reader, "Add", "Max", "Clip"):  # x / (root + eps)
            later = [each for each in reader.outputs[0].consumers() if is_standard(each, "Div")]
            found += [reader, *later] if later else []
    return found


def _products_after(product: ir.Node) -> list[ir.Node]:
    """Return the Muls behind an inverse root that was only multiplied with a constant: 1 / root * gain * x."""
    if not any(is_constant(value) for value in product.inputs):
        return []
    return [each for each in product.outputs[0].consumers() if is_standard(each, "Mul")]
