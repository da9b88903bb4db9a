"""Rotate the residual stream of a transformer, so that no channel of it stands out (R1 of QuaRot), without a new node.

Row vectors x of the stream become x Q, with Q orthogonal. What computes them and what reads them follow:

    writers     x = a W + b           W' = W Q, b' = b Q; a table of embeddings T' = T Q
    sums        x + y                 (x + y) Q = x Q + y Q
    norms       n(x) * g + c          n(x Q) = n(x) Q, g and c move into the readers
    readers     (n(x) * g + c) W + b  W' = Q^T diag(g) W, b' = b + c W

A norm by the root mean square keeps its value under any Q. LayerNormalization takes the mean away before, and keeps
its value under those with Q 1 = 1: then x Q has the mean of x, and (x - m 1) Q = x Q - m 1. So Q is a Hadamard matrix
with random signs (times a cosine transform if the size is not a power of two), followed by the reflection that
brings Q 1 back to 1: a channel is spread over all others all the same.

The stream is every value that sums and norms connect. If one of them is used in any other way, or comes from elsewhere,
the stream is left as it is: post-norm transformers add what a norm returns, and cannot be rotated. All arithmetic is in
float64, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph import values
from detent.prepare.base import Pass, as_float64, axes_of

Array = npt.NDArray[np.float64]

NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
SKIP_NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
LINEAR = ("MatMul", "Gemm")
MOVES = ("Identity", "Dropout", "Reshape", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Flatten", "Expand")
SUMS = ("ReduceMean", "ReduceSum")
SEED = 42


def rotation(size: int) -> Array:
    """Return an orthogonal matrix that spreads every axis over all, and leaves the vector of ones where it is."""
    odd, hadamard = size, np.ones((1, 1))
    while odd % 2 == 0:
        odd, hadamard = odd // 2, np.kron(hadamard, np.array([[1, 1], [1, -1]]) / np.sqrt(2))
    at = np.arange(odd)
    cosine = np.cos(np.pi * np.outer(at, at + 0.5) / odd) * np.sqrt(2 / odd)
    cosine[0] = np.sqrt(1 / odd)
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size)
    mixed = np.kron(hadamard, cosine) * signs
    ones = np.full(size, 1 / np.sqrt(size))
    between = mixed @ ones - ones
    length = float(between @ between)
    reflected: Array = mixed if length < 1e-12 else mixed - np.outer(between, between @ mixed) * (2 / length)
    return reflected


class _Unfit(Exception):  # noqa: N818 - it ends the search, and its text is why the stream is left as it is
    """Why a stream cannot be rotated."""


@dataclass(eq=False)
class _Stream:
    """A residual stream: the values that are rotated, and those behind a norm with their scale and shift.

    Nothing is changed before all of it was looked at: `edits` are the changes, by node and what changes there.
    """

    owner: Pass
    model: ir.Model
    size: int
    rotated: set[ir.Value] = field(default_factory=set)
    normed: dict[ir.Value, tuple[Array, Array]] = field(default_factory=dict)
    edits: dict[tuple[ir.Node, str], Callable[[], None]] = field(default_factory=dict)
    _open: list[ir.Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turn = rotation(self.size)

    def follow(self, value: ir.Value, node: ir.Node) -> None:
        """Find all of the stream that a value is in, and what has to change."""
        self._add(value, node)
        while self._open:
            found = self._open.pop()
            if found.is_graph_output() or not found.uses():
                raise _Unfit(f"'{found.name}' is an output of the model")
            if found in self.rotated:
                self._produced(found)
            for use in found.uses():
                if found in self.rotated:
                    self._used(found, use.node, use.idx)
                else:
                    self._read(found, use.node, use.idx)

    def _add(self, value: ir.Value | None, node: ir.Node) -> None:
        """Let a value be rotated, and look at it later."""
        if value is None or value in self.normed or _width(value) != self.size:
            raise _Unfit(f"'{node.name}' ({node.op_type}) mixes it with values of another kind")
        if value not in self.rotated:
            self.rotated.add(value)
            self._open.append(value)

    def _behind_norm(self, value: ir.Value, scale: Array, shift: Array, node: ir.Node) -> None:
        """Let a value be rotated after the scale and shift of its norm were taken away."""
        if value in self.rotated:
            raise _Unfit(f"what the norm '{node.name}' returns is added to it")
        if value not in self.normed:
            self.normed[value] = (scale, shift)
            self._open.append(value)

    # -- what computes a rotated value

    def _produced(self, value: ir.Value) -> None:
        node = value.producer()
        if node is None:
            raise _Unfit(f"'{value.name}' is not computed in the model")
        if node.op_type in LINEAR:
            _check_matrix(node)
            self._edit(node, "written", lambda: self._write(node))
        elif node.op_type == "Gather" and (table := values.constant(node.inputs[0])) is not None:
            if table.ndim != 2 or node.attributes.get_int("axis", 0) != 0:
                raise _Unfit(f"'{node.name}' (Gather) does not read rows of a table")
            self._turn_constant(node, 0, "table")
        elif node.op_type in ("Add", "Sub", "Mul", "Div", *MOVES, *SKIP_NORMS):
            self._operands(node)
        else:
            raise _Unfit(f"'{node.name}' ({node.op_type}) computes it")

    def _operands(self, node: ir.Node) -> None:
        """Let the operands of a sum, of a product with a number for each row, or of a move be rotated."""
        sums = node.op_type in ("Add", "Sub", "Concat")
        if node.op_type == "Concat" and node.attributes.get_int("axis", 0) in _last_axis(node):
            raise _Unfit(f"'{node.name}' (Concat) joins channels")
        pairs = dict.fromkeys(("Add", "Sub", "Mul", "Div", *SKIP_NORMS), 2)
        count = len(node.inputs) if node.op_type == "Concat" else pairs.get(node.op_type, 1)
        for index, each in enumerate(node.inputs[:count]):
            constant, width = values.constant(each), _width(each)
            if sums and constant is not None and width == self.size > 1:
                self._turn_constant(node, index, f"operand {index}")
            elif constant is None and width == self.size:
                self._add(each, node)
            elif width != 1 and not (constant is not None and constant.ndim == 0):
                raise _Unfit(f"'{node.name}' ({node.op_type}) has an operand of another size")

    # -- what reads a rotated value

    def _used(self, value: ir.Value, node: ir.Node, index: int) -> None:
        op_type = node.op_type
        if op_type in NORMS or op_type in SKIP_NORMS:
            self._normalize(node, index)
        elif op_type in LINEAR and index == 0:
            self._reweigh(node, np.ones(self.size), np.zeros(self.size))
        elif values.is_square(node):
            _check_sums(node)
        elif op_type == "ReduceL2":
            _check_axis(node)
        elif op_type == "Mul" and (scale := self._other_vector(node, index)) is not None:
            self._behind_norm(node.outputs[0], scale, np.zeros(self.size), node)
            self._edit(node, "scale", lambda: self._set(node, 1 - index, np.ones(self.size)))
        elif op_type in ("Add", "Sub", "Mul", "Div") or (op_type in MOVES and (index == 0 or op_type == "Concat")):
            _check_move(node)
            self._add(node.outputs[0], node)
        else:
            raise _Unfit(f"'{node.name}' ({op_type}) reads '{value.name}'")

    def _read(self, value: ir.Value, node: ir.Node, index: int) -> None:
        """Look at what reads a value behind a norm."""
        scale, shift = self.normed[value]
        if node.op_type in LINEAR and index == 0:
            self._reweigh(node, scale, shift)
        elif node.op_type == "Add" and (more := self._other_vector(node, index)) is not None:
            self._behind_norm(node.outputs[0], scale, shift + more, node)
            self._edit(node, "shift", lambda: self._set(node, 1 - index, np.zeros(self.size)))
        elif node.op_type in MOVES and node.op_type != "Concat" and index == 0:
            _check_move(node)
            if _width(node.outputs[0]) != self.size:
                raise _Unfit(f"'{node.name}' ({node.op_type}) divides channels")
            self._behind_norm(node.outputs[0], scale, shift, node)
        else:
            raise _Unfit(f"'{node.name}' ({node.op_type}) reads what the norm before it returns")

    def _normalize(self, node: ir.Node, index: int) -> None:
        skip = node.op_type in SKIP_NORMS
        at = 2 if skip else 1
        scale, shift = values.constant(values.input_at(node, at)), values.constant(values.input_at(node, at + 1))
        has_shift = node.op_type in ("LayerNormalization", "SkipLayerNormalization")
        more = [each for each in node.inputs[at + 1 + has_shift :] if each is not None]
        axis = -1 if skip else node.attributes.get_int("axis", -1)
        if index > (1 if skip else 0) or scale is None or more or axis not in _last_axis(node):
            raise _Unfit(f"'{node.name}' ({node.op_type}) is not a norm over its channels with constant scales")
        if has_shift and values.input_at(node, at + 1) is not None and shift is None:
            raise _Unfit(f"'{node.name}' ({node.op_type}) has a shift that is not constant")
        if any(each.uses() for each in node.outputs[1:3]):
            raise _Unfit(f"'{node.name}' ({node.op_type}) returns its mean")
        wide = np.zeros(self.size) if shift is None or not has_shift else as_float64(shift)
        for each in node.inputs[: 2 if skip else 1]:
            self._add(each, node)
        if len(node.outputs) > 3 and node.outputs[3].uses():
            self._add(node.outputs[3], node)
        self._behind_norm(node.outputs[0], np.broadcast_to(as_float64(scale), (self.size,)), wide, node)
        self._edit(node, "scale", lambda: self._set(node, at, np.ones(self.size)))
        if shift is not None and has_shift:
            self._edit(node, "shift", lambda: self._set(node, at + 1, np.zeros(self.size)))

    def _other_vector(self, node: ir.Node, index: int) -> Array | None:
        """Return the other operand of a node if it is one constant for each channel."""
        other = values.constant(node.inputs[1 - index])
        fits = other is not None and other.size == self.size > 1 and other.shape[-1] == self.size
        return as_float64(other).reshape(-1) if fits and other is not None else None

    # -- the changes

    def _edit(self, node: ir.Node, what: str, edit: Callable[[], None]) -> None:
        self.edits.setdefault((node, what), edit)

    def _initializer(self, node: ir.Node, role: str, array: Array) -> ir.Value:
        """Add a constant in the type of the node's weight."""
        return self.owner.initializer(self.model, node, role, array.astype(_dtype(node, 1)))

    def _set(self, node: ir.Node, index: int, array: Array) -> None:
        """Replace a constant operand, in its own type; others may read the old one."""
        stored = array.astype(_dtype(node, index))
        values.set_input(node, index, self.owner.initializer(self.model, node, f"rotated_{index}", stored))

    def _turn_constant(self, node: ir.Node, index: int, what: str) -> None:
        """Rotate the rows of a constant."""
        self._edit(node, what, lambda: self._set(node, index, _of(node, index) @ self.turn))

    def _write(self, node: ir.Node) -> None:
        """Rotate what a layer computes."""
        weight = _of(node, 1)
        self._set(node, 1, self.turn.T @ weight if _is_transposed(node) else weight @ self.turn)
        if values.input_at(node, 2) is not None:
            bias = _of(node, 2)
            # One number for all channels stays: ones are not rotated.
            self._set(node, 2, bias @ self.turn if bias.ndim and bias.shape[-1] == self.size else bias)

    def _reweigh(self, node: ir.Node, scale: Array, shift: Array) -> None:
        """Let a layer read the rotated values, with the scale and shift of the norm in its weights."""
        _check_matrix(node)

        def edit() -> None:
            weight = _of(node, 1)
            columns = weight.T if _is_transposed(node) else weight
            rotated = self.turn.T @ (scale[:, None] * columns)
            self._set(node, 1, rotated.T if _is_transposed(node) else rotated)
            more = shift @ columns
            if np.any(more):
                self._add_bias(node, more)

        self._edit(node, "read", edit)

    def _add_bias(self, node: ir.Node, more: Array) -> None:
        if node.op_type == "Gemm":
            alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
            bias = _of(node, 2) * beta if values.input_at(node, 2) is not None else np.zeros(1)
            values.set_input(node, 2, self._initializer(node, "rotated_2", bias + alpha * more))
            node.attributes.add(ir.AttrFloat32("beta", 1.0))
            return
        result = node.outputs[0]
        users = list(result.uses())
        if len(users) == 1 and users[0].node.op_type == "Add" and not result.is_graph_output():
            add, other = users[0].node, 1 - users[0].idx
            present = values.constant(add.inputs[other])
            if present is not None and present.size == more.size and present.shape[-1] == more.size:
                self._set(add, other, as_float64(present) + more)
                return
        shift = self._initializer(node, "rotated_shift", more)
        add = ir.Node("", "Add", [result, shift], name=self.owner.fresh(self.model, node, "shift"))
        self.model.graph.insert_after(node, add)
        name = result.name
        result.name = self.owner.fresh(self.model, node, "before_shift")
        add.outputs[0].name, add.outputs[0].type, add.outputs[0].shape = name, result.type, result.shape
        for use in users:
            use.node.replace_input_with(use.idx, add.outputs[0])
        if result.is_graph_output():
            at = list(self.model.graph.outputs).index(result)
            self.model.graph.outputs[at] = add.outputs[0]


class RotateResiduals(Pass):
    """Spread the channels of residual streams over each other. Done on request: `also = ["rotate_residuals"]`."""

    def run(self, model: ir.Model) -> None:
        seen: set[ir.Value] = set()
        for node in list(model.graph):
            value = node.inputs[0] if node.op_type in (*NORMS, *SKIP_NORMS) or _begins_mean_square(node) else None
            if value is None or value in seen:
                continue
            size = _width(value)
            if size is None:
                self.decline(node, "how many channels it normalizes is not known")
                continue
            stream = _Stream(self, model, size)
            try:
                stream.follow(value, node)
            except _Unfit as reason:
                self.decline(node, f"the stream that it reads is not rotated: {reason}")
            else:
                for edit in stream.edits.values():
                    edit()
                self.changed(node, f"rotated the stream of {size} channels in {len(stream.edits)} places")
            seen |= stream.rotated


def _begins_mean_square(node: ir.Node) -> bool:
    return node.op_type == "Pow" and any(use.node.op_type == "ReduceMean" for use in node.outputs[0].uses())


def _check_sums(node: ir.Node) -> None:
    """Raise _Unfit unless squares are only summed over the channels, which a rotation does not change."""
    for use in node.outputs[0].uses():
        if use.node.op_type not in SUMS or node.outputs[0].is_graph_output():
            raise _Unfit(f"'{use.node.name}' ({use.node.op_type}) reads squares of it")
        _check_axis(use.node)


def _check_axis(node: ir.Node) -> None:
    if axes_of(node) not in [[axis] for axis in _last_axis(node)]:
        raise _Unfit(f"'{node.name}' ({node.op_type}) sums over more than its channels")


def _check_move(node: ir.Node) -> None:
    """Raise _Unfit for a choice among channels."""
    last = _last_axis(node)
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) in last:
        raise _Unfit(f"'{node.name}' (Gather) chooses channels")
    axes = values.constant(values.input_at(node, 3))
    if node.op_type == "Slice" and (axes is None or any(int(axis) in last for axis in axes.reshape(-1))):
        raise _Unfit(f"'{node.name}' (Slice) chooses channels")


def _check_matrix(node: ir.Node) -> None:
    """Raise _Unfit for a layer whose weight is not a constant matrix, or whose bias is computed."""
    weight, bias = values.constant(values.input_at(node, 1)), values.input_at(node, 2)
    plain = weight is not None and weight.ndim == 2 and node.attributes.get_int("transA", 0) == 0
    if not plain or (bias is not None and values.constant(bias) is None):
        raise _Unfit(f"'{node.name}' ({node.op_type}) has no constant matrix of weights")


def _is_transposed(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1


def _of(node: ir.Node, index: int) -> Array:
    array = values.constant(node.inputs[index])
    assert array is not None, "looked at before"
    return as_float64(array)


def _dtype(node: ir.Node, index: int) -> np.dtype[Any]:
    array = values.constant(node.inputs[index])
    return np.dtype(np.float32) if array is None else array.dtype


def _width(value: ir.Value | None) -> int | None:
    """Return the last dimension, if it is known."""
    shape = values.shape_of(value)
    return shape[-1] if shape else None


def _last_axis(node: ir.Node) -> tuple[int, int]:
    """Return the last axis of a node's first input, as ONNX may write it."""
    return -1, (values.rank(node.inputs[0]) or 0) - 1
