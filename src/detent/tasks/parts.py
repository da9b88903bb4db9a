"""The parts of an output: what a final Concat joined, or columns of very different sizes.

A detector's output joins boxes of 0..640 and scores of 0..1. The noise of the whole is that of the boxes, so each part
is measured apart.

From the graph: an output is followed backwards, along one axis at a time, through what keeps that axis (Transpose,
Reshape, Squeeze, Unsqueeze, Slice, arithmetic with constants, Sigmoid and their like) to a Concat of that axis. Its
operands are the parts, and those of a Concat that is an operand itself are parts in turn, as long as only shapes change
between the two. A Concat of another axis joins things with the same parts, if its operands agree on them.

From values, if the graph says nothing: neighbouring columns whose root mean squares differ by more than APART.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, constant_ints, static_shape

MOST_PARTS = 16  # more is a list, not parts of different meaning
# Columns whose sizes differ by more than this factor have no grid in common: less than 4 of 8 bits are left.
APART = 30.0

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow")
_FUNCTIONS = ("Sigmoid", "HardSigmoid", "Tanh", "Exp", "Relu", "Clip", "Sqrt", "Neg")
_SAME_SHAPE = ("Identity", "Cast", "QuantizeLinear", "DequantizeLinear")
_BOUNDED = ("Sigmoid", "HardSigmoid", "Softmax")
_DEEPEST = 60  # nodes between a joint and the output: decodings are shorter


@dataclass(frozen=True)
class LabelledRange:
    """A range of an output along an axis, and what it holds."""

    label: str
    axis: int
    start: int
    stop: int

    def name_in(self, output: str) -> str:
        """Name the range of an output: "output0: scores 4..84"."""
        span = f"{self.start}..{self.stop}"
        return f"{output}: {self.label}" if span in self.label else f"{output}: {self.label} {span}"


@dataclass(frozen=True)
class OutputPart(LabelledRange):
    """A part of an output. `node` computes what the range is from, and is empty if that is unknown."""

    node: str = ""

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        chosen = [slice(None)] * array.ndim
        chosen[self.axis] = slice(self.start, self.stop)
        return array[tuple(chosen)]


@dataclass(frozen=True)
class _Operand:
    """A stretch of some value's axis, and the value that it is from."""

    value: ir.Value
    size: int
    bounded: bool = False


def output_parts(graph: ir.Graph) -> dict[str, tuple[OutputPart, ...]]:
    """Return the parts of each output that is joined from several things. The shapes in the graph must be known."""
    found = {}
    for output in graph.outputs:
        shape = static_shape(output)
        if shape is None:
            continue
        joined = []
        for axis in range(1, len(shape)):
            # What has no columns, as the rest of an embedding that is rotated whole, is not a part.
            operands = [each for each in _operands(output, axis, False, _DEEPEST) or () if each.size]
            if 2 <= len(operands) <= MOST_PARTS:
                joined.append((shape[axis] or 0, axis, operands))
        if joined:  # positions and columns may both be joined; columns are fewer
            _, axis, operands = min(joined, key=lambda each: each[:2])
            found[str(output.name)] = _named(operands, axis)
    return found


def parts_by_size(samples: Iterable[npt.NDArray[Any]]) -> tuple[OutputPart, ...]:
    """Return the parts of an output that its values show: stretches of columns of similar size; empty if it is one."""
    arrays = [np.asarray(sample) for sample in samples]
    if not arrays or arrays[0].ndim < 2 or arrays[0].dtype.kind != "f":
        return ()
    axis = _column_axis(arrays[0].shape)
    others = tuple(each for each in range(arrays[0].ndim) if each != axis)
    alike = [array for array in arrays if array.ndim == arrays[0].ndim and array.shape[axis] == arrays[0].shape[axis]]
    power = np.mean([np.square(array, dtype=np.float64).mean(axis=others) for array in alike if array.size], axis=0)
    sizes = np.sqrt(np.atleast_1d(power))
    return _stretches(sizes, axis)


def _column_axis(shape: Sequence[int]) -> int:
    """Return the axis of columns: channels of maps, and the shorter side of a matrix."""
    return 1 if len(shape) != 3 or shape[1] <= shape[2] else 2


def _stretches(sizes: npt.NDArray[np.float64], axis: int) -> tuple[OutputPart, ...]:
    largest = float(sizes.max(initial=0.0))
    if not np.isfinite(largest) or largest == 0.0:
        return ()
    logs = np.log(np.maximum(sizes, largest * 1e-6))
    cuts, begin = [0], 0
    for at in range(1, len(logs)):
        if abs(logs[at] - np.median(logs[begin:at])) > np.log(APART):
            cuts.append(at)
            begin = at
        if len(cuts) > MOST_PARTS:
            return ()
    if len(cuts) == 1:
        return ()
    return tuple(OutputPart(f"columns {low}..{high}", axis, low, high) for low, high in pairwise([*cuts, len(logs)]))


def _named(operands: Sequence[_Operand], axis: int) -> tuple[OutputPart, ...]:
    parts, start = [], 0
    for operand in operands:
        node = operand.value.producer()
        name = str(operand.value.name) if node is None else str(node.name)
        parts.append(OutputPart(str(operand.value.name), axis, start, start + operand.size, name))
        start += operand.size
    # Boxes beside scores have well-known names; others are called by the value that they are from.
    bounded = [operand.bounded for operand in operands]
    if any(bounded) and not all(bounded):
        plain = [at for at, each in enumerate(bounded) if not each]
        words = {at: "scores" for at, each in enumerate(bounded) if each}
        if sum(operands[at].size for at in plain) in (4, 5):
            words |= dict.fromkeys(plain, "boxes")
        counts = list(words.values())
        parts = [
            replace(part, label=words[at] if counts.count(words[at]) == 1 else f"{words[at]} {part.start}..{part.stop}")
            if at in words
            else part
            for at, part in enumerate(parts)
        ]
    return tuple(parts)


def _operands(value: ir.Value, axis: int, joined: bool, depth: int) -> list[_Operand] | None:
    """Return what a value is made of along an axis; None if the size of any of it is not known.

    `joined`: a Concat was met already, so that arithmetic, which makes its operands one thing, ends the walk.
    """
    node = value.producer()
    if node is not None and depth > 0:
        found = _through(node, value, axis, joined, depth - 1)
        if found is not None:
            return found
    shape = static_shape(value)
    size = None if shape is None or axis >= len(shape) else shape[axis]
    return None if size is None else [_Operand(value, size, _is_bounded(value))]


def _through(node: ir.Node, value: ir.Value, axis: int, joined: bool, depth: int) -> list[_Operand] | None:
    """Return what goes into a node that keeps the axis; None if the walk ends here."""
    if node.op_type == "Concat":
        return _of_concat(node, axis, depth)
    source = node.inputs[0] if node.inputs else None
    if node.op_type in _ARITHMETIC:
        free = [each for each in node.inputs if each is not None and constant(each) is None]
        if joined or len(free) != 1 or not _same_rank(free[0], value):
            return None
        source = free[0]
    elif node.op_type in _FUNCTIONS and joined:
        return None
    if source is None:
        return None
    if node.op_type == "Slice":
        return _of_slice(node, source, axis, joined, depth)
    before = axis if node.op_type in (*_ARITHMETIC, *_FUNCTIONS, *_SAME_SHAPE) else _axis_before(node, source, axis)
    if before is None:
        return None
    operands = _operands(source, before, joined, depth)
    if operands is None or (len(operands) == 1 and operands[0].value is source):
        return None  # nothing was joined behind it: the value is the whole output
    bounded = node.op_type in _BOUNDED
    return [replace(each, bounded=each.bounded or bounded) for each in operands]


def _of_concat(node: ir.Node, axis: int, depth: int) -> list[_Operand] | None:
    shape = static_shape(node.outputs[0])
    attribute = node.attributes.get("axis")
    if shape is None or attribute is None:
        return None
    along = attribute.as_int() % len(shape)
    each = [_operands(operand, axis, True, depth) for operand in node.inputs if operand is not None]
    if any(operands is None for operands in each):
        return None
    lists = [operands for operands in each if operands is not None]
    if along == axis:
        flat = [operand for operands in lists for operand in operands]
        if len(flat) <= MOST_PARTS:
            return flat
        whole = [
            _Operand(value, sum(one.size for one in operands))
            for value, operands in zip(node.inputs, lists, strict=True)
            if value
        ]
        return whole if len(whole) <= MOST_PARTS else None
    sizes = [[operand.size for operand in operands] for operands in lists]
    return lists[0] if len(sizes[0]) > 1 and all(size == sizes[0] for size in sizes) else None


def _of_slice(node: ir.Node, source: ir.Value, axis: int, joined: bool, depth: int) -> list[_Operand] | None:
    bounds = [constant_ints(each) for each in node.inputs[1:3]]
    axes = constant_ints(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    steps = constant_ints(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
    shape = static_shape(source)
    if bounds[0] is None or bounds[1] is None or shape is None:
        return None
    axes = list(range(len(bounds[0]))) if axes is None else [each % len(shape) for each in axes]
    operands = _operands(source, axis, joined, depth)
    if operands is None or axis not in axes:
        return operands if operands is None or len(operands) > 1 else None
    at, size = axes.index(axis), sum(operand.size for operand in operands)
    if steps is not None and steps[at] != 1:
        return None
    low, high, _ = slice(bounds[0][at], bounds[1][at]).indices(size)
    kept, start = [], 0
    for operand in operands:
        overlap = min(high, start + operand.size) - max(low, start)
        if overlap > 0:
            kept.append(replace(operand, size=overlap))
        start += operand.size
    return kept if len(kept) > 1 else None


def _axis_before(node: ir.Node, source: ir.Value, axis: int) -> int | None:
    """Return which axis of the input becomes this axis of the output; None if none does."""
    before, after = static_shape(source), static_shape(node.outputs[0])
    if before is None or after is None:
        return None
    if node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        order = list(perm.as_ints()) if perm is not None else list(range(len(after)))[::-1]
        return int(order[axis])
    if node.op_type not in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
        return None
    return _same_place(before, after, axis)


def _same_place(before: Sequence[int | None], after: Sequence[int | None], axis: int) -> int | None:
    """Return the axis that a Reshape keeps: the same size, with as many elements before it as after it."""
    inner = _product(after[axis + 1 :])
    for at, size in enumerate(before):
        if (
            size == after[axis]
            and size is not None
            and size > 1
            and inner is not None
            and _product(before[at + 1 :]) == inner
        ):
            return at
    return None


def _product(sizes: Sequence[int | None]) -> int | None:
    return None if any(size is None for size in sizes) else int(np.prod([size or 0 for size in sizes], dtype=np.int64))


def _same_rank(first: ir.Value, second: ir.Value) -> bool:
    one, other = static_shape(first), static_shape(second)
    return one is not None and other is not None and len(one) == len(other)


def _is_bounded(value: ir.Value) -> bool:
    node = value.producer()
    while node is not None and node.op_type in ("Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze", *_SAME_SHAPE):
        source = node.inputs[0]
        node = None if source is None else source.producer()
    return node is not None and node.op_type in _BOUNDED
