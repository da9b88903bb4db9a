"""Cutting a tensor along an axis into blocks, and joining them again, in standard operators.

Where the length n of the axis is known, a few Reshapes with constant shapes do it, which copy (0) the dimensions before
the axis and work out (-1) those behind it. For blocks of b along axis 1, where m elements are missing in the last one:

    Reshape [0, 0, 1, -1]    Pad m behind n    Reshape [0, -1, b, 0]        and back:
    Reshape [0, -1, 1, 0]    Slice m off       Reshape to the shape of the input

so that onnxruntime knows the shape of every value but for the batch. That matters: with unknown shapes, the time that
it takes to load a model grows with the square of the number of nodes. Such a body serves one axis and one m.

Where n is not known, one body calculates everything from the shape, for any axis:

    Flatten to [outer, n * inner], Reshape to [outer, n, 1, inner], and the rest as above.

An axis that is shorter than a block is one block as it is: zeros would change nothing, and only take time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from detent.emit.functions.attributes import described, int_attribute
from detent.emit.functions.body import Body, ref
from detent.errors import ModelError


@dataclass(frozen=True)
class Static:
    """What is known: the axis, how many elements its last block lacks, and whether no axis is behind it."""

    axis: int
    missing: int
    last: bool

    @property
    def label(self) -> str:
        """A few words that no other layout with the same blocks has."""
        return f"_axis{self.axis}" + "_last" * self.last + f"_pad{self.missing}" * (self.missing > 0)


@dataclass(frozen=True)
class Layout:
    """Blocks of `size` pieces of `inner_size` elements, or of `size` elements where that is 1."""

    size: int
    inner_size: int = 1
    static: Static | None = None

    def at(self, node: ir.Node) -> Layout:
        """These blocks along the attribute `axis` of a node, as well as that is known."""
        shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
        if shape is None:
            return self
        rank, axis = len(shape), int_attribute(node, "axis", 1)
        if not -rank <= axis < rank:
            raise ModelError(f"{described(node)} has axis {axis}, but its input has {rank} dimensions.")
        length = shape[axis]
        if not isinstance(length, int) or length == 0:
            return self
        size = min(self.size, -(-length // self.inner_size))
        missing = -length % (size * self.inner_size)
        return Layout(size, self.inner_size, Static(axis % rank, missing, axis % rank == rank - 1))

    @property
    def label(self) -> str:
        """A few words that no other layout has."""
        return "" if self.static is None else f"_of{self.size * self.inner_size}{self.static.label}"

    @property
    def sizes(self) -> list[int]:
        """The lengths of the dimensions that a block has."""
        return [self.size] if self.inner_size == 1 else [self.size, self.inner_size]


@dataclass(frozen=True)
class Blocks:
    """A tensor in blocks, as `values`; `axes` are those of a block: its elements, or its pieces and their elements."""

    values: ir.Value
    axes: tuple[int, ...]
    _length: ir.Value | None = None

    def joined(self, body: Body, values: ir.Value, layout: Layout) -> ir.Value:
        """`values`, which are in blocks like these, as a tensor of the shape that was cut."""
        static, ones = layout.static, [1] * len(self.axes)
        if static is None:
            assert self._length is not None
            rows = body("Reshape", values, np.array([0, -1, *ones, 0]))
            rows = body("Slice", rows, np.array([0]), self._length, np.array([1]))
            return body("Reshape", rows, body("Shape", body.inputs[0]))
        before = [0] * static.axis
        rows = body("Reshape", values, np.array([*before, -1] if static.last else [*before, -1, *ones, 0]))
        if static.missing:
            rows = body("Slice", rows, np.array([0]), np.array([-static.missing]), np.array([static.axis]))
        return rows if static.last else body("Reshape", rows, body("Shape", body.inputs[0]))


def cut(body: Body, x: ir.Value, layout: Layout) -> Blocks:
    """Cut `x` into blocks."""
    if layout.static is None:
        return _cut_any(body, x, layout)
    static, before = layout.static, [0] * layout.static.axis
    rows = x if static.last else body("Reshape", x, np.array([*before, 0, *([1] * len(layout.sizes)), -1]))
    if static.missing:
        behind = [] if static.last else [0] * (len(layout.sizes) + 1)
        rows = body("Pad", rows, np.array([*before, 0, *behind, *before, static.missing, *behind]))
    values = body("Reshape", rows, np.array([*before, -1, *layout.sizes, *([] if static.last else [0])]))
    return Blocks(values, _axes(static.axis, layout))


def _cut_any(body: Body, x: ir.Value, layout: Layout) -> Blocks:
    ones = [1] * len(layout.sizes)
    length = body("Gather", body("Shape", x, start=ref("start", "axis")), np.array([0]))
    pieces = body("Div", body("Add", length, np.array([layout.inner_size - 1])), np.array([layout.inner_size]))
    size = body("Min", pieces, np.array([layout.size]))
    missing = body("Mod", body("Neg", length), body("Mul", size, np.array([layout.inner_size])))
    shape = body("Concat", np.array([0]), length, np.array([*ones, -1]), axis=0)
    rows = body("Reshape", body("Flatten", x, axis=ref("axis", "axis")), shape)
    pads = body("Concat", np.array([0] * (len(ones) + 4)), missing, np.array([*([0] * len(ones)), 0]), axis=0)
    shape = body("Concat", np.array([0, -1]), size, np.array([*layout.sizes[1:], 0]), axis=0)
    return Blocks(body("Reshape", body("Pad", rows, pads), shape), _axes(1, layout), length)


def _axes(axis: int, layout: Layout) -> tuple[int, ...]:
    return tuple(axis + 1 + index for index in range(len(layout.sizes)))
