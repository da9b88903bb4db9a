"""Match subgraphs and replace each by one operator: what the fusing passes share, and those of activation functions.

A subgraph may be replaced when nothing outside of it reads a value inside of it, other than its result.

    Gelu, exact:           x / 2 * (1 + erf(x / sqrt 2))
    Gelu, approximated:    x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    HardSwish:             x * clip(x + 3, 0, 6) / 6

The factors and terms come in any order and grouping, so the subgraph is not compared with a drawing: whatever computes
one number from one number x by arithmetic with constants, around an Erf, a Tanh or a Clip, is evaluated in double
precision over a range, and is the function if it agrees. The two forms of Gelu differ by up to 5e-4, constants that
were rounded to float32 by 1e-7, and so each is told from the other and from anything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import (
    constant_scalar,
    input_at,
    is_square,
    is_standard,
    is_unused,
    made_by,
    remove_node,
    scalar_of,
    take_over,
)
from detent.prepare.base import OperatorPass, Pass, axes_of, main_opset


def either_way(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the two operands of a commutative node, in both orders."""
    one, other = input_at(node, 0), input_at(node, 1)
    if one is not None and other is not None:
        yield one, other
        yield other, one


def with_number(node: ir.Node | None) -> tuple[ir.Value, float] | None:
    """Return the operand of a commutative node, and the number that is the other one."""
    for operand, other in () if node is None else either_way(node):
        known = scalar_of(other)
        if known is not None:
            return operand, known
    return None


def divisions(node: ir.Node) -> list[tuple[ir.Value, ir.Value, tuple[ir.Node, ...]]]:
    """Return what a node may divide and by what; with the Reciprocal, if it multiplies with that."""
    dividend, divisor = input_at(node, 0), input_at(node, 1)
    if is_standard(node, "Div") and dividend is not None and divisor is not None:
        return [(dividend, divisor, ())]
    found: list[tuple[ir.Value, ir.Value, tuple[ir.Node, ...]]] = []
    for operand, other in either_way(node) if is_standard(node, "Mul") else ():
        inverse = made_by(other, "Reciprocal")
        if inverse is not None and inverse.inputs[0] is not None:
            found.append((operand, inverse.inputs[0], (inverse,)))
    return found


def square_of(value: ir.Value | None) -> tuple[ir.Value, ir.Node] | None:
    """Return what a value is the square of, as x * x or x ^ 2, and the node that computes it."""
    node = made_by(value)
    source = None if node is None else node.inputs[0]
    return (source, node) if node is not None and source is not None and is_square(node) else None


def reduced_axes(node: ir.Node, dims: int | None) -> list[int] | None:
    """Return the axes, of `dims`, that a node reduces, counted from the end; None if unknown or not kept."""
    given = axes_of(node)
    if not given or not node.attributes.get_int("keepdims", 1):
        return None
    if all(axis < 0 for axis in given):
        return sorted(given)
    return None if dims is None else sorted(axis % dims - dims for axis in given)


_FIRST_OPSETS = {"LayerNormalization": 17, "Gelu": 20}


@dataclass(frozen=True)
class Subgraph:
    """Nodes, in order, that compute `result` from `source` and constants."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    result: ir.Value


Floats = npt.NDArray[np.float64]
TOLERANCE = 1e-5
STEPS_AFTER, STEPS_BEFORE = 4, 8  # how far from its center the result and x of a function may be
MOST_NODES = 16  # no known spelling of an activation has more

erf: Callable[[Floats], Floats] = np.vectorize(math.erf, otypes=[np.float64])
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Tanh": np.tanh,
    "Erf": erf,
    "Clip": lambda x, low=-np.inf, high=np.inf: np.clip(x, low, high),
}
POINTS: Floats = np.concatenate([np.linspace(-8, 8, 65), [-0.01, 0.01]])  # where functions are compared


def function_around(center: ir.Node, expected: Floats) -> Subgraph | None:
    """Return the subgraph around a node that computes what is expected at POINTS, or None."""
    for result in _values_after(center):
        for source in _values_before(center):
            nodes = _nodes_between(source, result)
            if nodes is not None and _agrees(nodes, source, result, expected):
                return Subgraph(tuple(nodes), source, result)
    return None


def _values_after(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that are computed from the node's result alone, one after the other."""
    value = node.outputs[0]
    for _ in range(STEPS_AFTER):
        readers = [use.node for use in value.uses()]
        if len(readers) != 1 or not is_standard(readers[0], *_ARITHMETIC):
            return
        value = readers[0].outputs[0]
        yield value


def _values_before(node: ir.Node) -> list[ir.Value]:
    """Return the values that the node's input is computed from, nearest first."""
    found: dict[ir.Value, None] = {}
    level = [value for value in node.inputs[:1] if value is not None]
    for _ in range(STEPS_BEFORE):
        makers = [maker for value in level if (maker := made_by(value)) is not None]
        values = [value for maker in makers for value in maker.inputs if value is not None]
        level = [value for value in values if not value.is_initializer() and scalar_of(value) is None]
        found.update(dict.fromkeys(level))
    return list(found)


def _nodes_between(source: ir.Value, result: ir.Value) -> list[ir.Node] | None:
    """Return the nodes that compute the result from the source and single numbers, in order; None if it needs more."""
    found: list[ir.Node] = []

    def visit(value: ir.Value | None) -> bool:
        if value is source or scalar_of(value) is not None:
            return True
        node = made_by(value, *_ARITHMETIC)
        if node is None or len(found) >= MOST_NODES:
            return False
        if node not in found:
            if not all(visit(each) for each in node.inputs):
                return False
            found.append(node)
        return True

    return found if visit(result) else None


def _agrees(nodes: list[ir.Node], source: ir.Value, result: ir.Value, expected: Floats) -> bool:
    known: dict[ir.Value | None, Any] = {source: POINTS}
    with np.errstate(all="ignore"):  # other subgraphs may divide by zero
        for node in nodes:
            inputs = [known[value] if value in known else scalar_of(value) for value in node.inputs]
            known[node.outputs[0]] = _ARITHMETIC[node.op_type](*inputs)
    return bool(np.allclose(known[result], expected, rtol=TOLERANCE, atol=TOLERANCE))


def fuse(
    owner: Pass,
    model: ir.Model,
    found: Subgraph,
    op_type: str,
    attributes: Mapping[str, int | float | str],
    parameters: Mapping[str, npt.NDArray[Any]] | None = None,
) -> str | None:
    """Let one new node compute the result, under the name of the node that did; or return why it cannot.

    `parameters` become initializers, in order: the inputs behind the source.
    """
    first, opset = _FIRST_OPSETS.get(op_type, 0), main_opset(model)
    if opset < first:
        return f"{op_type} exists from opset {first} on, and the model has {opset}"
    if found.source.dtype != ir.DataType.FLOAT:
        return f"'{found.source.name}' is not known to be float32"
    for value in (value for node in found.nodes for value in node.outputs if value is not found.result):
        if value.is_graph_output() or any(use.node not in found.nodes for use in value.uses()):
            return f"'{value.name}', a value inside of it, is used elsewhere"
    last = found.result.producer()
    assert last is not None, "a result of nodes has a producer"
    # Not earlier: a subgraph that stays must leave no initializer behind.
    inputs = [owner.initializer(model, last, role, array) for role, array in (parameters or {}).items()]
    new = ir.node(op_type, [found.source, *inputs], dict(attributes), name=last.name)
    model.graph.insert_before(last, new)
    take_over(found.result, new.outputs[0])
    _remove_unread(model.graph, last)
    for node in found.nodes:
        if node is not last:
            owner.merged(node, new)
    owner.changed(new, f"{len(found.nodes)} nodes became one {op_type}")
    return None


def _remove_unread(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a node, and everything before it that nobody reads any more."""
    sources = [value.producer() for value in node.inputs if value is not None]
    remove_node(graph, node)
    # Once each: one node may feed two inputs.
    for source in dict.fromkeys(sources):
        if source is not None and source.graph is graph and all(is_unused(value) for value in source.outputs):
            _remove_unread(graph, source)


class FuseGelu(OperatorPass):
    """Replace the subgraph by Gelu.

    Cases:
    - the exact form around an Erf, and the approximated one around a Tanh, in every order of their factors;
    - declined: an opset before 20, which has no such operator; a value inside that is used elsewhere; an input that is
      not float32;
    - left alone without a note: an Erf or Tanh that is part of something else.
    """

    operators = ("Erf", "Tanh")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        found = function_around(node, _gelu(node.op_type == "Tanh"))
        approximate = "tanh" if node.op_type == "Tanh" else "none"
        return None if found is None else fuse(self, model, found, "Gelu", {"approximate": approximate})


def _gelu(approximated: bool) -> Floats:
    x = POINTS
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) if approximated else x / math.sqrt(2)
    gate: Floats = np.tanh(inner) if approximated else erf(inner)
    return x / 2 * (1 + gate)


_HARD_SWISH: Floats = POINTS * np.clip(POINTS + 3, 0, 6) / 6


class FuseHardSwish(OperatorPass):
    """Replace x * clip(x + 3, 0, 6) / 6, in every order of its factors, by HardSwish.

    Cases:
    - declined: a value inside that is used elsewhere; an input that is not float32;
    - left alone without a note: a Clip that is part of something else, and x * HardSigmoid(x), which devices know.
    """

    operators = ("Clip",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        if (constant_scalar(node, 1), constant_scalar(node, 2)) not in ((0.0, 6.0), (0.0, 1.0)):
            return None
        found = function_around(node, _HARD_SWISH)
        return None if found is None else fuse(self, model, found, "HardSwish", {})
