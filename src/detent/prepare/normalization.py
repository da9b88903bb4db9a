"""The subgraph that exporters write for a normalization, in all its spellings.

    d = x - mean(x)         y = d / sqrt(mean(d * d) + epsilon)         scale * y + shift

Means are over the same axes and keep them. The square may be d * d or d ^ 2, and the division a product with the
reciprocal; d may be computed twice, once for the square and once for the division. Scale and shift are constants, of
which either may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, rank, sole_use
from detent.prepare.patterns import divisions, either_way, made_by, reduced_axes, square_of, with_number


@dataclass(frozen=True)
class Normalization:
    """A matched subgraph: its input, the axes (counted from the end), and its nodes up to the one of the result."""

    source: ir.Value
    axes: tuple[int, ...]
    epsilon: float
    nodes: tuple[ir.Node, ...]
    result: ir.Value
    scale: npt.NDArray[Any] | None = None
    shift: npt.NDArray[Any] | None = None


def match_normalization(node: ir.Node, graph: ir.Graph) -> Normalization | None:
    """The normalization whose division is `node`, with the scale and the shift that follow it."""
    found = _match_core(node)
    if found is None:
        return None
    found = _with_constant(found, graph, "Mul")
    return _with_constant(found, graph, "Add")


def _match_core(node: ir.Node) -> Normalization | None:
    for centred, divisor, inverse in divisions(node):
        root = made_by(divisor, "Sqrt")
        add = None if root is None else made_by(root.inputs[0], "Add")
        moved = with_number(add)
        mean = None if moved is None else made_by(moved[0], "ReduceMean")
        square = None if mean is None else square_of(mean.inputs[0])
        one = _match_centred(centred)
        if root is None or add is None or moved is None or mean is None or square is None or one is None:
            continue
        other = _match_centred(square[0])
        if other is None or other[0] is not one[0] or not reduced_axes(mean, rank(one[0])) == one[1] == other[1]:
            continue
        nodes = dict.fromkeys((*other[2], *one[2], square[1], mean, add, root, *inverse, node))
        return Normalization(one[0], tuple(one[1]), moved[1], tuple(nodes), node.outputs[0])
    return None


def _match_centred(value: ir.Value) -> tuple[ir.Value, list[int], tuple[ir.Node, ...]] | None:
    """x and the axes, where the value is x - mean(x)."""
    sub = made_by(value, "Sub")
    mean = None if sub is None else made_by(sub.inputs[1], "ReduceMean")
    if sub is None or mean is None or sub.inputs[0] is None or mean.inputs[0] is not sub.inputs[0]:
        return None
    axes = reduced_axes(mean, rank(sub.inputs[0]))
    return None if axes is None else (sub.inputs[0], axes, (mean, sub))


def _with_constant(found: Normalization, graph: ir.Graph, op_type: str) -> Normalization:
    """The normalization with the scale (Mul) or shift (Add) that follows it, where a constant does."""
    use = sole_use(found.result, graph)
    node = None if use is None else use[0]
    if node is None or made_by(node.outputs[0], op_type) is None:
        return found
    for operand, other in either_way(node):
        array = constant(other)
        if operand is found.result and array is not None and array.dtype == np.float32:
            longer = replace(found, nodes=(*found.nodes, node), result=node.outputs[0])
            return replace(longer, scale=array) if op_type == "Mul" else replace(longer, shift=array)
    return found
