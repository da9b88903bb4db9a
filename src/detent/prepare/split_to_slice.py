"""Split becomes one Slice per output.

Output i of Split holds the entries from size_0 + ... + size_(i-1) up to, but not including, the same sum with size_i,
along one axis. A Slice with these two numbers takes exactly those entries.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant_ints, input_at, is_standard, is_unused, remove_node, static_shape, take_over
from detent.prepare.base import Pass, int_attribute, main_opset


class SplitToSlice(Pass):
    """Replace Split.

    Cases:
    - sizes from a constant input, or equal parts of a known dimension;
    - `num_outputs` of opset 18, where the last part may be smaller;
    - axis absent (0) or negative;
    - outputs that nothing reads get no Slice; the others keep their names;
    - declined: sizes that are computed, and equal parts of a dimension that is not known or not divisible.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every Split of the main graph."""
        for node in model.graph:
            if not is_standard(node, "Split"):
                continue
            sizes = _sizes(node, main_opset(model))
            if isinstance(sizes, str):
                self.decline(node, sizes)
                continue
            self.replaced(node, *self._replace(model, node, sizes))
            self.changed(node, f"Split into sizes {sizes} became Slices")

    def _replace(self, model: ir.Model, node: ir.Node, sizes: list[int]) -> list[ir.Node]:
        """Put Slices in the place of a Split, and return them."""
        axis = int_attribute(node, "axis", 0)
        shape = static_shape(node.inputs[0])
        if axis < 0 and shape is not None:
            axis += len(shape)
        pieces: list[ir.Node] = []
        ends = list(itertools.accumulate(sizes))
        for index, output in enumerate(node.outputs):
            if is_unused(output):
                continue
            start, end = ends[index] - sizes[index], ends[index]
            piece = self._slice(model, node, (start, end, axis), f"slice{index}")
            model.graph.insert_before(node, piece)
            take_over(output, piece.outputs[0])
            pieces.append(piece)
        remove_node(model.graph, node)
        return pieces

    def _slice(self, model: ir.Model, node: ir.Node, where: tuple[int, int, int], role: str) -> ir.Node:
        start, end, axis = where
        name = self.fresh(model, node, role)
        fields = {"starts": start, "ends": end, "axes": axis, "steps": 1}
        inputs = [
            self.initializer(model, node, f"{role}_{key}", np.array([number], np.int64))
            for key, number in fields.items()
        ]
        return ir.Node("", "Slice", [node.inputs[0], *inputs], name=name)


def _sizes(node: ir.Node, opset: int) -> list[int] | str:
    """The sizes of the parts, or the reason why they are not known."""
    count = len(node.outputs)
    value = input_at(node, 1)
    if value is not None:
        given = constant_ints(value)
        if given is None:
            return f"its sizes '{value.name}' are not constant"
        return given if len(given) == count else f"it has {count} outputs and {len(given)} sizes"
    axis, shape = int_attribute(node, "axis", 0), static_shape(node.inputs[0])
    dim = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if dim is None:
        return f"the size of dimension {axis} of its input is not known"
    if opset < 18 and dim % count:
        return f"dimension {axis} of size {dim} cannot be split into {count} equal parts"
    part = -(-dim // count)
    if part * (count - 1) > dim:
        return f"dimension {axis} of size {dim} cannot be split into {count} parts of {part}"
    return [part] * (count - 1) + [dim - part * (count - 1)]
