"""A vector divided by its length becomes LpNormalization.

    x / sqrt(sum(x * x))  =  LpNormalization(x), with p = 2

The length may be a ReduceL2, a ReduceSumSquare or the sum of squares, and the division a product with the reciprocal.
Exporters guard it against zero: max(length, epsilon), or epsilon added under the root. As LpNormalization maps zero to
zero, so does a guarded division; and a guard of 1e-6 or less changes no vector that is longer than that.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from detent.graph.values import input_at, rank
from detent.prepare.base import Pass
from detent.prepare.patterns import (
    divisions,
    made_by,
    number,
    reduced_axes,
    replace_nodes,
    square_of,
    why_it_escapes,
    with_number,
)

LARGEST_GUARD = 1e-6


class FuseL2Norm(Pass):
    """Put LpNormalization in the place of the subgraph.

    Cases:
    - ReduceL2, Sqrt of ReduceSumSquare, Sqrt of ReduceSum of x * x or x ^ 2; over one axis, which is kept;
    - a guard by Clip from below, Max or Add, before or after the root; an Expand before the division;
    - x / length, or x * Reciprocal(length);
    - declined: several axes, a guard above 1e-6, a value inside that is used elsewhere, an input that is not float32.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every division of the main graph."""
        for node in model.graph:
            for source, length, nodes in divisions(node):
                found = _Length(source)
                if not found.match(length):
                    continue
                reason = self._fuse(model, node, source, found, nodes)
                if reason is not None:
                    self.decline(node, reason)
                break

    def _fuse(
        self, model: ir.Model, node: ir.Node, source: ir.Value, found: _Length, nodes: tuple[ir.Node, ...]
    ) -> str | None:
        if source.dtype != ir.DataType.FLOAT:
            return f"'{source.name}' is not known to be float32"
        if len(found.axes) != 1:
            return f"the length is over axes {found.axes}, and LpNormalization has one"
        if found.guard > LARGEST_GUARD:
            return f"the guard against zero, {found.guard:g}, is so large that it changes the result"
        every, result = [*found.nodes, *nodes, node], node.outputs[0]
        reason = why_it_escapes(every, result)
        if reason is None:
            attributes = {"axis": found.axes[0], "p": 2}
            replace_nodes(self, model, every, result, "LpNormalization", [source], attributes)
        return reason


class _Length:
    """Matches the length of `source` from its last node upwards, and keeps what it met."""

    def __init__(self, source: ir.Value) -> None:
        self.source = source
        self.axes: list[int] = []
        self.guard = 0.0
        self.nodes: list[ir.Node] = []

    def match(self, value: ir.Value | None) -> bool:
        """Whether a value is the length of the source."""
        expand = made_by(value, "Expand")
        if expand is not None:
            self.nodes.append(expand)
            value = expand.inputs[0]
        value = self._unguarded(value, squared=False)
        norm = made_by(value, "ReduceL2")
        if norm is not None:
            return self._reduces(norm, self.source)
        root = made_by(value, "Sqrt")
        if root is None:
            return False
        self.nodes.append(root)
        total = self._unguarded(root.inputs[0], squared=True)
        at_once = made_by(total, "ReduceSumSquare")
        if at_once is not None:
            return self._reduces(at_once, self.source)
        added = made_by(total, "ReduceSum")
        square = None if added is None else square_of(added.inputs[0])
        if added is None or square is None or square[0] is not self.source:
            return False
        self.nodes.append(square[1])
        return self._reduces(added, square[1].outputs[0])

    def _reduces(self, node: ir.Node, source: ir.Value) -> bool:
        axes = reduced_axes(node, rank(self.source))
        self.nodes.append(node)
        self.axes = axes or []
        return node.inputs[0] is source and axes is not None

    def _unguarded(self, value: ir.Value | None, *, squared: bool) -> ir.Value | None:
        """What a guard against zero guards; the value itself where there is none."""
        node = made_by(value, "Clip", "Max", "Add")
        if node is None:
            return value
        if node.op_type == "Clip":
            least = number(input_at(node, 1))
            guarded = None if least is None or input_at(node, 2) is not None else node.inputs[0]
        else:
            pair = with_number(node)
            guarded, least = (None, None) if pair is None else pair
        if guarded is None or least is None or least < 0:
            return value
        self.nodes.append(node)
        self.guard = max(self.guard, math.sqrt(least) if squared else least)
        return guarded
