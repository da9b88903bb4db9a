"""Fuse normalizations that exporters write as subgraphs into one operator.

    d = x - mean(x)         y = d / sqrt(mean(d * d) + epsilon)         scale * y + shift

Means are over the same axes and keep them. The square may be d * d or d ^ 2, and the division a product with the
reciprocal; d may be computed twice, once for the square and once for the division. Scale and shift are constants, of
which either may be missing. In one node the intermediate values never exist as codes: the variance, above all, is a
square, and would lose half of its bits.

    mean over the last axes                                                      LayerNormalization
    mean over all axes after the channels, scale and shift per channel           InstanceNormalization
    x / sqrt(sum(x * x))                                                         LpNormalization with p = 2

The length of the last line may be a ReduceL2, a ReduceSumSquare or the sum of squares. Exporters guard it against zero:
max(length, epsilon), or epsilon added under the root. LpNormalization maps zero to zero, and so does a guarded
division; a guard of 1e-6 or less changes no vector that is longer than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, input_at, made_by, rank, scalar_of, sole_use, static_shape
from detent.prepare import subgraphs
from detent.prepare.affine import per_channel
from detent.prepare.base import OperatorPass


@dataclass(frozen=True)
class Normalization(subgraphs.Subgraph):
    """A matched subgraph; its axes are counted from the end."""

    axes: tuple[int, ...]
    epsilon: float
    scale: npt.NDArray[Any] | None = None
    shift: npt.NDArray[Any] | None = None


def match_normalization(node: ir.Node, graph: ir.Graph) -> Normalization | None:
    """Return the normalization whose division is `node`, with the scale and the shift that follow it."""
    found = _match_core(node)
    if found is None:
        return None
    found = _with_constant(found, graph, "Mul")
    return _with_constant(found, graph, "Add")


def _match_core(node: ir.Node) -> Normalization | None:
    # Exporters write x / sqrt(v) or x * (1 / sqrt(v)), with the operands of the product in either order.
    for centred, divisor, inverse in subgraphs.divisions(node):
        root = made_by(divisor, "Sqrt")
        add = None if root is None else made_by(root.inputs[0], "Add")
        moved = subgraphs.with_number(add)
        mean = None if moved is None else made_by(moved[0], "ReduceMean")
        square = None if mean is None else subgraphs.square_of(mean.inputs[0])
        one = _match_centred(centred)
        if root is None or add is None or moved is None or mean is None or square is None or one is None:
            continue
        other = _match_centred(square[0])
        # Some exporters compute x - mean(x) twice, once to divide and once to square: both have to be of the same x.
        if (
            other is None
            or other[0] is not one[0]
            or not subgraphs.reduced_axes(mean, rank(one[0])) == one[1] == other[1]
        ):
            continue
        nodes = dict.fromkeys((*other[2], *one[2], square[1], mean, add, root, *inverse, node))
        return Normalization(tuple(nodes), one[0], node.outputs[0], tuple(one[1]), moved[1])
    return None


def _match_centred(value: ir.Value) -> tuple[ir.Value, list[int], tuple[ir.Node, ...]] | None:
    """Return x and the axes if the value is x - mean(x)."""
    sub = made_by(value, "Sub")
    mean = None if sub is None else made_by(sub.inputs[1], "ReduceMean")
    if sub is None or mean is None or sub.inputs[0] is None or mean.inputs[0] is not sub.inputs[0]:
        return None
    axes = subgraphs.reduced_axes(mean, rank(sub.inputs[0]))
    return None if axes is None else (sub.inputs[0], axes, (mean, sub))


def _with_constant(found: Normalization, graph: ir.Graph, op_type: str) -> Normalization:
    """Return the normalization with the scale (Mul) or shift (Add) that follows it, if a constant does."""
    use = sole_use(found.result, graph)
    node = None if use is None else use[0]
    if node is None or made_by(node.outputs[0], op_type) is None:
        return found
    for operand, other in subgraphs.either_way(node):
        array = constant(other)
        if operand is found.result and array is not None and array.dtype == np.float32:
            longer = replace(found, nodes=(*found.nodes, node), result=node.outputs[0])
            return replace(longer, scale=array) if op_type == "Mul" else replace(longer, shift=array)
    return found


class FuseLayerNorm(OperatorPass):
    """Replace the subgraph by LayerNormalization.

    Cases:
    - the axes are the last ones, any number of them, and their sizes are known, from the input or from the scale;
    - scale and shift have the sizes of these axes, or are broadcast to them; a missing scale becomes ones;
    - declined: other axes, a scale or shift along other axes, a value inside that is used elsewhere, an input that is
      not float32, and an opset before 17, which has no such operator.
    """

    operators = ("Div", "Mul")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        found = match_normalization(node, model.graph)
        if found is None:
            return None
        count = len(found.axes)
        if found.axes != tuple(range(-count, 0)):
            return f"it normalizes over axes {list(found.axes)}, which are not the last ones"
        shape = _normalized_shape(found)
        if shape is None:
            return f"the sizes of the last {count} axes of '{found.source.name}' are not known"
        ones = np.ones(1, np.float32)
        scale = _over(ones if found.scale is None else found.scale, shape)
        shift = None if found.shift is None else _over(found.shift, shape)
        if scale is None or (found.shift is not None and shift is None):
            return "its scale or shift does not lie along the normalized axes"
        parameters = {"scale": scale} if shift is None else {"scale": scale, "shift": shift}
        return subgraphs.fuse(
            self, model, found, "LayerNormalization", {"axis": -count, "epsilon": found.epsilon}, parameters
        )


def _normalized_shape(found: Normalization) -> tuple[int, ...] | None:
    """Return the sizes of the normalized axes, from the input; or from the scale, which can only be as large."""
    count = len(found.axes)
    sizes = [size for size in (static_shape(found.source) or [])[-count:] if size is not None]
    if len(sizes) == count:
        return tuple(sizes)
    # A size of 1 may be a broadcast, and says nothing about the axis.
    if found.scale is not None and found.scale.ndim >= count and 1 not in found.scale.shape[-count:]:
        return found.scale.shape[-count:]
    return None


def _over(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Return the array spread over the normalized axes; None if it has others."""
    extra = max(0, array.ndim - len(shape))
    sizes = tuple(int(size) for size in array.shape)
    fits = all(size in (1, want) for size, want in zip(sizes[::-1], shape[::-1], strict=False))
    if any(size != 1 for size in sizes[:extra]) or not fits:
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(sizes[extra:]), shape))


class FuseInstanceNorm(OperatorPass):
    """Replace the subgraph by InstanceNormalization.

    Cases:
    - the axes are all from the third on, of an input with three dimensions or more; scale and shift are constants along
      axis 1, or one number for all; a missing one becomes ones or zeros;
    - left alone without a note: other axes, and one axis of three with no scale along axis 1, which are layer
      normalizations;
    - declined: a scale or shift along other axes, an unknown number of channels, a value inside that is used elsewhere.
    """

    operators = ("Div", "Mul")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        found = match_normalization(node, model.graph)
        shape = None if found is None else static_shape(found.source)
        if found is None or shape is None or not _is_spatial(found, len(shape)):
            return None
        channels = shape[1]
        if channels is None:
            return f"the number of channels of '{found.source.name}' is not known"
        scale = _vector(found.scale, 1.0, len(shape), channels)
        shift = _vector(found.shift, 0.0, len(shape), channels)
        if scale is None or shift is None:
            return "its scale or shift is not one number per channel"
        attributes, parameters = {"epsilon": found.epsilon}, {"scale": scale, "shift": shift}
        return subgraphs.fuse(self, model, found, "InstanceNormalization", attributes, parameters)


def _is_spatial(found: Normalization, dims: int) -> bool:
    """Return whether the axes are all those after the channels, and it cannot be a layer normalization."""
    if dims < 3 or found.axes != tuple(range(2 - dims, 0)):
        return False
    # On [N, C, L] the last axis alone may be either normalization; only a scale along the channels tells.
    along = [array for array in (found.scale, found.shift) if array is not None and array.size > 1]
    return all(per_channel(array, dims) is not None for array in along) and (bool(along) or dims > 3)


def _vector(array: npt.NDArray[Any] | None, missing: float, dims: int, channels: int) -> npt.NDArray[Any] | None:
    """Return one number per channel; None if the array is along other axes."""
    if array is None:
        return np.full(channels, missing, np.float32)
    found = per_channel(array, dims)
    if found is None or found.size not in (1, channels):
        return None
    return np.ascontiguousarray(np.broadcast_to(found, (channels,)), np.float32)


LARGEST_GUARD = 1e-6  # LpNormalization has no epsilon, and a larger guard changes the result


class FuseL2Norm(OperatorPass):
    """Replace the subgraph by LpNormalization.

    Cases:
    - ReduceL2, Sqrt of ReduceSumSquare, Sqrt of ReduceSum of x * x or x ^ 2; over one axis, which is kept;
    - a guard by Clip from below, Max or Add, before or after the root; an Expand before the division;
    - x / length, or x * Reciprocal(length);
    - declined: several axes, a guard above 1e-6, a value inside that is used elsewhere, an input that is not float32.
    """

    operators = ("Div", "Mul")

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        for source, length, nodes in subgraphs.divisions(node):
            found = _Length(source)
            if not found.match(length):
                continue
            if len(found.axes) != 1:
                return f"the length is over axes {found.axes}, and LpNormalization has one"
            # LpNormalization has no epsilon: leaving out a guard of 1e-12 changes nothing that float32 shows.
            if found.guard > LARGEST_GUARD:
                return f"the guard against zero, {found.guard:g}, is so large that it changes the result"
            whole = subgraphs.Subgraph((*found.nodes, *nodes, node), source, node.outputs[0])
            return subgraphs.fuse(self, model, whole, "LpNormalization", {"axis": found.axes[0], "p": 2})
        return None


class _Length:
    """Matches the length of `source` from its last node upwards, and keeps what it met."""

    def __init__(self, source: ir.Value) -> None:
        self.source = source
        self.axes: list[int] = []
        self.guard = 0.0
        self.nodes: list[ir.Node] = []

    def match(self, value: ir.Value | None) -> bool:
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
        square = None if added is None else subgraphs.square_of(added.inputs[0])
        if added is None or square is None or square[0] is not self.source:
            return False
        self.nodes.append(square[1])
        return self._reduces(added, square[1].outputs[0])

    def _reduces(self, node: ir.Node, source: ir.Value) -> bool:
        axes = subgraphs.reduced_axes(node, rank(self.source))
        self.nodes.append(node)
        self.axes = axes or []
        return node.inputs[0] is source and axes is not None

    def _unguarded(self, value: ir.Value | None, *, squared: bool) -> ir.Value | None:
        """Return what a guard against zero guards; the value itself without one."""
        node = made_by(value, "Clip", "Max", "Add")
        if node is None:
            return value
        if node.op_type == "Clip":
            least = scalar_of(input_at(node, 1))
            guarded = None if least is None or input_at(node, 2) is not None else node.inputs[0]
        else:
            pair = subgraphs.with_number(node)
            guarded, least = (None, None) if pair is None else pair
        if guarded is None or least is None or least < 0:
            return value
        self.nodes.append(node)
        self.guard = max(self.guard, math.sqrt(least) if squared else least)
        return guarded
