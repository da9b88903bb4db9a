"""Rotate the residual stream of a transformer, so that no channel of it stands out (R1 of QuaRot), without a new node.

Row vectors x of the stream become x Q, with Q orthogonal. What computes them and what reads them follow:

    writers     x = a W + b           W' = W Q, b' = b Q; a table of embeddings T' = T Q
    sums        x + y                 (x + y) Q = x Q + y Q
    norms       n(x) * g + c          n(x Q) = n(x) Q, g and c move into the readers
    readers     (n(x) * g + c) W + b  W' = Q^T diag(g) W, b' = b + c W

A norm by the root mean square keeps its value under any Q. LayerNormalization takes the mean away before, and keeps
its value under those with Q 1 = 1: then x Q has the mean of x, and (x - m 1) Q = x Q - m 1. So Q is a Hadamard matrix
with random signs (times a cosine transform where the size is no power of two), followed by the reflection that
brings Q 1 back to 1: a channel is spread over all others all the same.

The stream is every value that sums and norms connect. If one of them is used in any other way, or comes from elsewhere,
the stream is left as it is: post-norm transformers add what a norm returns, and cannot be rotated. All arithmetic is in
float64, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph import values
from detent.prepare.base import Pass, as_float64, axes_of, int_attribute

Array = npt.NDArray[np.float64]

NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
SKIP_NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
LINEAR = ("MatMul", "Gemm")
MOVES = ("Identity", "Dropout", "Reshape", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Flatten", "Expand")
SQUARES = ("Pow", "Mul")
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


@dataclass
class _Stream:
    """The values that are rotated, and those behind a norm with their scale and shift; and what has to follow."""

    size: int
    rotated: set[ir.Value] = field(default_factory=set)
    normed: dict[ir.Value, tuple[Array, Array]] = field(default_factory=dict)
    edits: dict[tuple[ir.Node, str], Callable[[], None]] = field(default_factory=dict)
    norms: set[ir.Node] = field(default_factory=set)
    _open: list[ir.Value] = field(default_factory=list)

    def add(self, value: ir.Value | None, node: ir.Node) -> None:
        """Let a value be rotated, and look at it later."""
        if value is None or value in self.normed or _width(value) != self.size:
            raise _Unfit(f"'{node.name}' ({node.op_type}) mixes it with values of another kind")
        if value not in self.rotated:
            self.rotated.add(value)
            self._open.append(value)

    def behind_norm(self, value: ir.Value, scale: Array, shift: Array, node: ir.Node) -> None:
        """Let a value be rotated after the scale and shift of its norm were taken away."""
        if value in self.rotated:
            raise _Unfit(f"what the norm '{node.name}' returns is added to it")
        if value not in self.normed:
            self.normed[value] = (scale, shift)
            self._open.append(value)

    def next(self) -> ir.Value | None:
        """Return a value that was not looked at."""
        return self._open.pop() if self._open else None


class RotateResiduals(Pass):
    """Spread the channels of residual streams over each other. Done on request: `also = ["rotate_residuals"]`."""

    def run(self, model: ir.Model) -> None:
        """Rotate every stream that can be."""
        seen: set[ir.Value] = set()
        for node in list(model.graph):
            value = node.inputs[0] if node.op_type in (*NORMS, *SKIP_NORMS) or self._is_mean_square(node) else None
            size = None if value is None else _width(value)
            if value is None or value in seen:
                continue
            if size is None:
                self.decline(node, "how many channels it normalizes is not known")
                continue
            stream = _Stream(size)
            try:
                self._follow(model, stream, value, node)
            except _Unfit as reason:
                self.decline(node, f"the stream that it reads is not rotated: {reason}")
            else:
                for edit in stream.edits.values():
                    edit()
                self.changed(node, f"rotated the stream of {size} channels in {len(stream.edits)} places")
            seen |= stream.rotated

    def _is_mean_square(self, node: ir.Node) -> bool:
        """Return whether a node begins a root mean square that is written out."""
        return node.op_type == "Pow" and any(use.node.op_type == "ReduceMean" for use in node.outputs[0].uses())

    def _follow(self, model: ir.Model, stream: _Stream, value: ir.Value, node: ir.Node) -> None:
        """Find all of a stream, and what has to change."""
        turn = rotation(stream.size)
        stream.add(value, node)
        while (value_at := stream.next()) is not None:
            if value_at.is_graph_output() or not value_at.uses():
                raise _Unfit(f"'{value_at.name}' is an output of the model")
            if value_at in stream.rotated:
                self._produced(model, stream, value_at, turn)
            for use in value_at.uses():
                if value_at in stream.rotated:
                    self._used(model, stream, value_at, use.node, use.idx, turn)
                else:
                    self._read(model, stream, value_at, use.node, use.idx, turn)

    # -- what computes a rotated value

    def _produced(self, model: ir.Model, stream: _Stream, value: ir.Value, turn: Array) -> None:
        node = value.producer()
        if node is None:
            raise _Unfit(f"'{value.name}' is not computed in the model")
        if node.op_type in LINEAR:
            self._edit(stream, node, "written", lambda: self._write(model, node, turn), _matrix(node))
        elif node.op_type == "Gather" and values.constant(node.inputs[0]) is not None:
            table = values.constant(node.inputs[0])
            if table is None or table.ndim != 2 or int_attribute(node, "axis", 0) != 0:
                raise _Unfit(f"'{node.name}' (Gather) does not read rows of a table")
            self._edit(stream, node, "table", lambda: self._turn_constant(model, node, 0, turn))
        elif node.op_type in ("Add", "Sub", "Mul", "Div", *MOVES, *SKIP_NORMS):
            self._operands(model, stream, node, turn)
        else:
            raise _Unfit(f"'{node.name}' ({node.op_type}) computes it")

    def _operands(self, model: ir.Model, stream: _Stream, node: ir.Node, turn: Array) -> None:
        """Let the operands of a sum, of a product with a number for each row, or of a move be rotated."""
        sums = node.op_type in ("Add", "Sub", "Concat")
        if node.op_type == "Concat" and int_attribute(node, "axis", 0) in (-1, _rank(node.inputs[0]) - 1):
            raise _Unfit(f"'{node.name}' (Concat) joins channels")
        count = {"Concat": len(node.inputs), "Add": 2, "Sub": 2, "Mul": 2, "Div": 2}.get(node.op_type, 1)
        count = 2 if node.op_type in SKIP_NORMS else count
        for index, each in enumerate(node.inputs[:count]):
            constant = values.constant(each)
            width = _width(each) if each is not None else None
            if sums and constant is not None and width == stream.size > 1:
                self._edit(stream, node, f"operand {index}", self._turning(model, node, index, turn))
            elif constant is None and width == stream.size:
                stream.add(each, node)
            elif width != 1 and not (constant is not None and constant.ndim == 0):
                raise _Unfit(f"'{node.name}' ({node.op_type}) has an operand of another size")

    # -- what reads a rotated value

    def _used(self, model: ir.Model, stream: _Stream, value: ir.Value, node: ir.Node, index: int, turn: Array) -> None:
        op_type = node.op_type
        if op_type in NORMS or op_type in SKIP_NORMS:
            self._normalize(model, stream, node, index)
        elif op_type in LINEAR and index == 0:
            plain = (np.ones(stream.size), np.zeros(stream.size))
            self._edit(stream, node, "read", lambda: self._reweigh(model, node, *plain, turn), _matrix(node))
        elif op_type in SQUARES and self._is_square(node):
            self._check_sums(node)
        elif op_type == "ReduceL2":
            self._check_axis(node)
        elif op_type == "Mul" and (scale := self._other_vector(node, index, stream.size)) is not None:
            stream.behind_norm(node.outputs[0], scale, np.zeros(stream.size), node)
            self._edit(stream, node, "scale", lambda: self._set(model, node, 1 - index, np.ones(stream.size)))
        elif op_type in ("Add", "Sub", "Mul", "Div") or (op_type in MOVES and (index == 0 or op_type == "Concat")):
            self._check_move(node)
            stream.add(node.outputs[0], node)
        else:
            raise _Unfit(f"'{node.name}' ({op_type}) reads '{value.name}'")

    def _read(self, model: ir.Model, stream: _Stream, value: ir.Value, node: ir.Node, index: int, turn: Array) -> None:
        """Look at what reads a value behind a norm."""
        scale, shift = stream.normed[value]
        if node.op_type in LINEAR and index == 0:
            self._edit(stream, node, "read", lambda: self._reweigh(model, node, scale, shift, turn), _matrix(node))
        elif node.op_type == "Add" and (more := self._other_vector(node, index, stream.size)) is not None:
            stream.behind_norm(node.outputs[0], scale, shift + more, node)
            self._edit(stream, node, "shift", lambda: self._set(model, node, 1 - index, np.zeros(stream.size)))
        elif node.op_type in MOVES and node.op_type != "Concat" and index == 0:
            self._check_move(node)
            if _width(node.outputs[0]) != stream.size:
                raise _Unfit(f"'{node.name}' ({node.op_type}) divides channels")
            stream.behind_norm(node.outputs[0], scale, shift, node)
        else:
            raise _Unfit(f"'{node.name}' ({node.op_type}) reads what the norm before it returns")

    def _normalize(self, model: ir.Model, stream: _Stream, node: ir.Node, index: int) -> None:
        skip = node.op_type in SKIP_NORMS
        at = 2 if skip else 1
        scale, shift = values.constant(values.input_at(node, at)), values.constant(values.input_at(node, at + 1))
        has_shift = node.op_type in ("LayerNormalization", "SkipLayerNormalization")
        more = [each for each in node.inputs[at + 1 + has_shift :] if each is not None]
        axis = -1 if skip else int_attribute(node, "axis", -1)
        if index > (1 if skip else 0) or scale is None or more or axis not in (-1, _rank(node.inputs[0]) - 1):
            raise _Unfit(f"'{node.name}' ({node.op_type}) is not a norm over its channels with constant scales")
        if has_shift and values.input_at(node, at + 1) is not None and shift is None:
            raise _Unfit(f"'{node.name}' ({node.op_type}) has a shift that is not constant")
        if any(each.uses() for each in node.outputs[1:3]):
            raise _Unfit(f"'{node.name}' ({node.op_type}) returns its mean")
        wide = np.zeros(stream.size) if shift is None or not has_shift else as_float64(shift)
        for each in node.inputs[: 2 if skip else 1]:
            stream.add(each, node)
        if len(node.outputs) > 3 and node.outputs[3].uses():
            stream.add(node.outputs[3], node)
        stream.behind_norm(node.outputs[0], np.broadcast_to(as_float64(scale), (stream.size,)), wide, node)
        self._edit(stream, node, "scale", lambda: self._set(model, node, at, np.ones(stream.size)))
        if shift is not None and has_shift:
            self._edit(stream, node, "shift", lambda: self._set(model, node, at + 1, np.zeros(stream.size)))

    def _is_square(self, node: ir.Node) -> bool:
        if node.op_type == "Mul":
            return node.inputs[0] is node.inputs[1]
        exponent = values.constant(node.inputs[1])
        return exponent is not None and exponent.size == 1 and float(exponent.reshape(())) == 2.0

    def _check_sums(self, node: ir.Node) -> None:
        """Raise _Unfit unless squares are only summed over the channels, which a rotation does not change."""
        for use in node.outputs[0].uses():
            if use.node.op_type not in SUMS or node.outputs[0].is_graph_output():
                raise _Unfit(f"'{use.node.name}' ({use.node.op_type}) reads squares of it")
            self._check_axis(use.node)

    def _check_axis(self, node: ir.Node) -> None:
        if axes_of(node) not in ([-1], [_rank(node.inputs[0]) - 1]):
            raise _Unfit(f"'{node.name}' ({node.op_type}) sums over more than its channels")

    def _check_move(self, node: ir.Node) -> None:
        """Raise _Unfit for a choice among channels."""
        last = (-1, _rank(node.inputs[0]) - 1)
        if node.op_type == "Gather" and int_attribute(node, "axis", 0) in last:
            raise _Unfit(f"'{node.name}' (Gather) chooses channels")
        axes = values.constant(values.input_at(node, 3))
        if node.op_type == "Slice" and (axes is None or any(int(axis) in last for axis in axes.reshape(-1))):
            raise _Unfit(f"'{node.name}' (Slice) chooses channels")

    def _other_vector(self, node: ir.Node, index: int, size: int) -> Array | None:
        """Return the other operand of a node if it is one constant for each channel."""
        other = values.constant(node.inputs[1 - index])
        fits = other is not None and other.size == size > 1 and other.shape[-1] == size
        return as_float64(other).reshape(-1) if fits and other is not None else None

    # -- the changes

    def _edit(self, stream: _Stream, node: ir.Node, what: str, edit: Callable[[], None], reason: str = "") -> None:
        if reason:
            raise _Unfit(reason)
        stream.edits.setdefault((node, what), edit)

    def _set(self, model: ir.Model, node: ir.Node, index: int, array: Array) -> None:
        """Replace a constant operand, in its own type; others may read the old one."""
        before = values.constant(node.inputs[index])
        dtype = np.dtype(np.float32) if before is None else before.dtype
        values.set_input(node, index, self.initializer(model, node, f"rotated_{index}", array.astype(dtype)))

    def _turning(self, model: ir.Model, node: ir.Node, index: int, turn: Array) -> Callable[[], None]:
        return lambda: self._turn_constant(model, node, index, turn)

    def _turn_constant(self, model: ir.Model, node: ir.Node, index: int, turn: Array) -> None:
        """Rotate the rows of a constant."""
        self._set(model, node, index, _of(node, index) @ turn)

    def _write(self, model: ir.Model, node: ir.Node, turn: Array) -> None:
        """Rotate what a layer computes."""
        weight = _of(node, 1)
        self._set(model, node, 1, turn.T @ weight if _is_transposed(node) else weight @ turn)
        if values.input_at(node, 2) is not None:
            bias = _of(node, 2)
            # One number for all channels stays: ones are not rotated.
            self._set(model, node, 2, bias @ turn if bias.ndim and bias.shape[-1] == len(turn) else bias)

    def _reweigh(self, model: ir.Model, node: ir.Node, scale: Array, shift: Array, turn: Array) -> None:
        """Let a layer read the rotated values, with the scale and shift of the norm in its weights."""
        weight = _of(node, 1)
        columns = weight.T if _is_transposed(node) else weight
        rotated = turn.T @ (scale[:, None] * columns)
        self._set(model, node, 1, rotated.T if _is_transposed(node) else rotated)
        more = shift @ columns
        if np.any(more):
            self._add_bias(model, node, more)

    def _add_bias(self, model: ir.Model, node: ir.Node, more: Array) -> None:
        if node.op_type == "Gemm":
            alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
            bias = _of(node, 2) * beta if values.input_at(node, 2) is not None else np.zeros(1)
            array = (bias + alpha * more).astype(values.constant(node.inputs[1]).dtype)  # type: ignore[union-attr]
            values.set_input(node, 2, self.initializer(model, node, "rotated_2", array))
            node.attributes.add(ir.AttrFloat32("beta", 1.0))
            return
        result = node.outputs[0]
        users = list(result.uses())
        if len(users) == 1 and users[0].node.op_type == "Add" and not result.is_graph_output():
            add, other = users[0].node, 1 - users[0].idx
            present = values.constant(add.inputs[other])
            if present is not None and present.size == more.size and present.shape[-1] == more.size:
                self._set(model, add, other, as_float64(present) + more)
                return
        dtype = values.constant(node.inputs[1]).dtype  # type: ignore[union-attr]  # a layer has a constant weight
        shift = self.initializer(model, node, "rotated_shift", more.astype(dtype))
        add = ir.Node("", "Add", [result, shift], name=self.fresh(model, node, "shift"))
        model.graph.insert_after(node, add)
        name = result.name
        result.name = self.fresh(model, node, "before_shift")
        add.outputs[0].name, add.outputs[0].type, add.outputs[0].shape = name, result.type, result.shape
        for use in users:
            use.node.replace_input_with(use.idx, add.outputs[0])
        if result.is_graph_output():
            at = list(model.graph.outputs).index(result)
            model.graph.outputs[at] = add.outputs[0]


def _matrix(node: ir.Node) -> str:
    """Return why a layer cannot follow; "" if its weight is a constant matrix and its bias constant."""
    weight, bias = values.constant(values.input_at(node, 1)), values.input_at(node, 2)
    plain = weight is not None and weight.ndim == 2 and int_attribute(node, "transA", 0) == 0
    fixed = bias is None or values.constant(bias) is not None
    return "" if plain and fixed else f"'{node.name}' ({node.op_type}) has no constant matrix of weights"


def _is_transposed(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and int_attribute(node, "transB", 0) == 1


def _of(node: ir.Node, index: int) -> Array:
    array = values.constant(node.inputs[index])
    assert array is not None, "looked at before"
    return as_float64(array)


def _width(value: ir.Value | None) -> int | None:
    """Return the last dimension, if it is known."""
    constant = values.constant(value)
    shape = values.static_shape(value) if constant is None else list(constant.shape)
    return shape[-1] if shape else None


def _rank(value: ir.Value | None) -> int:
    return len(value.shape) if value is not None and value.shape is not None else 0
