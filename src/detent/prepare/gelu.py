"""A Gelu that was written as a subgraph becomes one Gelu.

    exact:           x / 2 * (1 + erf(x / sqrt 2))
    approximated:    x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))

The factors and terms come in any order and grouping, so the subgraph is not compared with a drawing: whatever computes
one number from one number x by arithmetic with constants, around an Erf or a Tanh, is evaluated in double precision
over a range, and is Gelu if it agrees. The two forms differ by up to 5e-4, constants that were rounded to float32 by
1e-7, and so each is told from the other and from anything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import is_standard, made_by, scalar_of
from detent.prepare.base import OperatorPass
from detent.prepare.patterns import Subgraph, fuse

TOLERANCE = 1e-5
STEPS_AFTER, STEPS_BEFORE = 4, 8  # how far from the Erf or Tanh the result and x may be
MOST_NODES = 16

Floats = npt.NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Tanh": np.tanh,
    "Erf": _erf,
}
_POINTS = np.concatenate([np.linspace(-8, 8, 65), [-0.01, 0.01]])


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
        """Fuse the Gelu around the node, if what is around it computes one."""
        expected = _gelu(node.op_type == "Tanh")
        for result in _values_after(node):
            for source in _values_before(node):
                nodes = _nodes_between(source, result)
                if nodes is not None and _agrees(nodes, source, result, expected):
                    approximate = "tanh" if node.op_type == "Tanh" else "none"
                    found = Subgraph(tuple(nodes), source, result)
                    return fuse(self, model, found, "Gelu", {"approximate": approximate})
        return None


def _gelu(approximated: bool) -> Floats:
    x = _POINTS
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) if approximated else x / math.sqrt(2)
    gate: Floats = np.tanh(inner) if approximated else _erf(inner)
    return x / 2 * (1 + gate)


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
    level = [node.inputs[0]]
    for _ in range(STEPS_BEFORE):
        makers = [maker for value in level if (maker := made_by(value)) is not None]
        level = [value for maker in makers for value in maker.inputs if _varies(value)]
        found.update({value: None for value in level if value is not None})
    return list(found)


def _varies(value: ir.Value | None) -> bool:
    return value is not None and not value.is_initializer() and scalar_of(value) is None


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
    """Return whether the nodes compute what is expected, all over the range."""
    known: dict[ir.Value | None, Any] = {source: _POINTS}
    with np.errstate(all="ignore"):  # other subgraphs may divide by zero
        for node in nodes:
            inputs = [known[value] if value in known else scalar_of(value) for value in node.inputs]
            known[node.outputs[0]] = _ARITHMETIC[node.op_type](*inputs)
    return bool(np.allclose(known[result], expected, rtol=TOLERANCE, atol=TOLERANCE))
