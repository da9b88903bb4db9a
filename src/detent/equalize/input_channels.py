"""Move factors of channels from a value that matrix products read into the rows of their weights.

A value x that MatMul or Gemm multiplies with a constant weight W may be divided by a factor s[j] for each channel j, if
row j of W is multiplied by it:

    x @ W  =  (x / s) @ (s * W)

The division costs nothing if the node that computes x takes it into its constants:

    LayerNormalization, MatMul, Gemm, Mul    divide a constant of theirs: the scale and bias, the columns, the factor
    Add, Sub                                 divide their constant, and what they are added to
    Mul of two computed values               divide one of them, as the gated layers of decoders have it
    Relu, LeakyRelu, Gather, Identity        divide what is before them: a positive factor passes through
    attention, up to its merged heads        divide its values: their weighted means have the same factors

Channels lie along the last axis, and a Gather must pick along another one. If x cannot be divided, its layers are left
as they are; with `insert`, a Mul divides it before them. If x can be divided but other nodes read it too, as the sum
around an attention block does, `insert` puts a Mul by s before these instead. In float the model computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from detent.equalizations.channel_problem import Floats
from detent.errors import UsageError
from detent.graph import values


@dataclass(frozen=True)
class Smoothing:
    """What was smoothed: the layers, the largest factor up or down, and why other layers were not.

    `inserted` counts the Mul nodes. `factors` are those of each value that was divided, to do the same again.
    """

    layers: tuple[str, ...] = ()
    largest_factor: float = 1.0
    declined: Mapping[str, str] = field(default_factory=dict)
    inserted: int = 0
    factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Group:
    """The layers that read one value."""

    source: ir.Value
    layers: tuple[ir.Node, ...]

    @property
    def others(self) -> list[tuple[ir.Node, int]]:
        """Other readers of the value."""
        return [(node, index) for node, index in self.source.uses() if node not in self.layers or index != 0]


@dataclass(frozen=True)
class Smoother:
    """A way to find factors. `insert` lets it add nodes: lay the model out afterwards."""

    insert: bool = field(default=False, kw_only=True)

    def smooth_again(self, model: ir.Model, factors: Mapping[str, Sequence[float]]) -> Smoothing:
        """Smooth by factors that an earlier run on the same model found."""
        groups = groups_of(model.graph)
        known = {str(group.source.name) for group in groups}
        for name in factors:
            if name not in known:
                raise UsageError(
                    f"The model has no layer that reads '{name}', which was smoothed when its statistics were counted. "
                    "Prepare it in the same way, or calibrate again."
                )
        return apply_all(model, groups, {name: np.array(each) for name, each in factors.items()}, {}, self.insert)


def groups_of(graph: ir.Graph) -> list[Group]:
    """Return the layers with a constant weight, by the value that they read."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        source = values.input_at(node, 0)
        if source is not None and not values.is_constant(source) and row_axis(node) is not None:
            found.setdefault(source, []).append(node)
    return [Group(source, tuple(layers)) for source, layers in found.items()]


def row_axis(node: ir.Node) -> int | None:
    """Return the axis of a layer's weight that its input's channels meet; None if the node is not such a layer."""
    weight = values.constant(values.input_at(node, 1)) if values.is_standard(node, "MatMul", "Gemm") else None
    if weight is None or weight.dtype != np.float32 or weight.ndim < 2 or not weight.size:
        return None
    if node.op_type == "Gemm":
        transposed = node.attributes.get_int("transB", 0)
        return None if node.attributes.get_int("transA", 0) else (-1 if transposed else -2)
    return -2


def rows_of(node: ir.Node) -> Floats:
    """Return the weight of a layer with a row for each channel of its input."""
    weight, axis = values.constant(node.inputs[1]), row_axis(node)
    assert weight is not None and axis is not None, "a group holds layers"
    rows = np.moveaxis(weight.astype(np.float64), axis, 0)
    return rows.reshape(rows.shape[0], -1)


def apply_all(
    model: ir.Model,
    groups: Sequence[Group],
    factors: Mapping[str, Floats],
    idle: Mapping[str, str],
    insert: bool,
) -> Smoothing:
    """Smooth the groups that have factors. `idle` are reasons why others have none."""
    layers: list[str] = []
    declined: dict[str, str] = {}
    done: dict[str, Floats] = {}
    editor = Editor(model, insert)
    for group in groups:
        name = str(group.source.name)
        names = [str(node.name) for node in group.layers]
        unknown = idle.get(name, f"no factors are known for '{name}'")
        reason = editor.apply(group, factors[name]) if name in factors else unknown
        if reason is None:
            layers += names
            done[name] = factors[name]
        else:
            declined.update(dict.fromkeys(names, reason))
    largest = max((float(np.exp(np.abs(np.log(each)).max())) for each in done.values()), default=1.0)
    return Smoothing(
        tuple(layers), largest, declined, editor.inserted, {name: tuple(each.tolist()) for name, each in done.items()}
    )


class Editor:
    """Moves factors from values into weights."""

    def __init__(self, model: ir.Model, insert: bool) -> None:
        self._graph = model.graph
        self._names = values.Names(model)
        self._insert = insert
        self.inserted = 0

    def why_not(self, group: Group) -> str | None:
        """Return the reason why the value that a group reads cannot be divided, or its weights not multiplied."""
        weights = [node.inputs[1] for node in group.layers]
        for value in weights:
            if value is not None and (len(value.uses()) > 1 or value.is_graph_output()):
                return f"the weight '{value.name}' has several uses"
        divisions = find_divisions(group.source, self._graph, len(rows_of(group.layers[0])))
        reason = divisions if isinstance(divisions, str) else _why_others_matter(group)
        return None if self._insert else reason

    def apply(self, group: Group, factors: Floats) -> str | None:
        """Divide the value that a group reads, and multiply its weights; return the reason if that cannot be."""
        reason = self.why_not(group)
        if reason is not None:
            return reason
        divisions = find_divisions(group.source, self._graph, factors.size)
        # Where the producer cannot take the factors, or the user must see the value as it was, a Mul takes them, which
        # costs a node on the device.
        if isinstance(divisions, str) or group.source.is_graph_output():
            self._multiply(group.source, 1.0 / factors, [(node, 0) for node in group.layers])
        else:
            self._divide(group, divisions, factors)
        for node in group.layers:
            axis = row_axis(node)
            assert axis is not None, "a group holds layers"
            divide(Division(node, 1, axis), 1.0 / factors)
        return None

    def _divide(self, group: Group, divisions: Sequence[Division], factors: Floats) -> None:
        """Divide the value where it is computed; its other readers get it back as it was."""
        for division in divisions:
            divide(division, factors)
        if group.others:
            self._multiply(group.source, factors, group.others)

    def _multiply(self, source: ir.Value, factors: Floats, readers: Sequence[tuple[ir.Node, int]]) -> None:
        """Let `readers` read the value times the factors."""
        stem = self._names.fresh(f"{source.name}/smooth")
        constant_value = values.add_initializer(
            self._graph, self._names.fresh(f"{stem}/factors"), factors.astype(np.float32)
        )
        node = ir.node("Mul", [source, constant_value], name=stem)
        result = node.outputs[0]
        result.name, result.type, result.shape = self._names.fresh(f"{stem}/result"), source.type, source.shape
        for reader, index in readers:
            reader.replace_input_with(index, result)
        producer = source.producer()
        if producer is None:
            self._graph.insert_before(next(iter(self._graph)), node)
        else:
            self._graph.insert_after(producer, node)
        self.inserted += 1


def _why_others_matter(group: Group) -> str | None:
    """Say why the value must keep its channels for another reader, or return None."""
    if group.source.is_graph_output():
        return f"'{group.source.name}' is a graph output"
    for node, _ in group.others:
        return f"{node.op_type} '{node.name}' reads '{group.source.name}' too"
    return None


@dataclass(frozen=True)
class Division:
    """A constant input of a node, and its axis that the factors lie along; `spread`: one number may serve them all.

    The channels that are divided begin at `start`; all others stay.
    """

    node: ir.Node
    index: int
    axis: int = -1
    spread: bool = False
    start: int = 0


def divide(division: Division, factors: Floats) -> None:
    """Divide a constant by the factors, in place. It becomes as wide as these if it was one number for all."""
    value = division.node.inputs[division.index]
    array = values.constant(value)
    assert value is not None and array is not None, "only constants are divided"
    along = np.moveaxis(array.astype(np.float64), division.axis, -1) if array.ndim else array.astype(np.float64)
    # In float64: weights that are divided here and multiplied there must cancel to the last bit of float32 as far as
    # possible.
    last = division.start + factors.size
    whole = np.ones(along.shape[-1] if along.ndim and along.shape[-1] > last else last)
    whole[division.start : last] = factors
    divided = along / whole
    result = np.ascontiguousarray(np.moveaxis(divided, -1, division.axis), np.float32)
    value.const_value = ir.tensor(result, name=value.name)
    value.shape = ir.Shape(result.shape)


def find_divisions(value: ir.Value, graph: ir.Graph, channels: int) -> list[Division] | str:
    """Find the constants to divide so that `value` is; or return the reason why it cannot be divided there."""
    node = value.producer()
    if node is None:
        return f"'{value.name}' comes from outside"
    if values.is_standard(node, "LayerNormalization"):
        return _of_layer_norm(node, value, channels)
    if values.is_standard(node, "MatMul", "Gemm"):
        return _of_layer(node, channels)
    if values.is_standard(node, "Mul", "Add", "Sub"):
        return _of_arithmetic(node, graph, channels)
    if values.is_standard(node, "Relu", "LeakyRelu", "Identity", "Dropout") or _keeps_last_axis(node):
        return _before(node.inputs[0], graph, channels)
    if values.is_standard(node, "Split"):
        return _of_split(node, value, graph)
    if values.is_standard(node, "Reshape") and (mixed := _merged_heads(value, graph, channels)) is not None:
        return _before(mixed, graph, channels)
    return f"{node.op_type} '{node.name}' does not pass a factor for each channel on"


def _of_layer_norm(node: ir.Node, value: ir.Value, channels: int) -> list[Division] | str:
    axis, dims = node.attributes.get_int("axis", -1), values.rank(value)
    if value is not node.outputs[0] or axis not in (-1, None if dims is None else dims - 1):
        return f"LayerNormalization '{node.name}' normalizes several axes"
    return _constants(node, [Division(node, 1), Division(node, 2)], channels)


def _of_layer(node: ir.Node, channels: int) -> list[Division] | str:
    # Its result has no axis for the channels to lie along.
    if values.rank(node.inputs[1]) == 1:
        return f"MatMul '{node.name}' has a single column"
    transposed = bool(node.attributes.get_int("transB", 0))
    return _constants(node, [Division(node, 1, 0 if transposed else -1), Division(node, 2, spread=True)], channels)


def _of_arithmetic(node: ir.Node, graph: ir.Graph, channels: int) -> list[Division] | str:
    known = [index for index in (0, 1) if values.constant(values.input_at(node, index)) is not None]
    if not known:
        for value in node.inputs if node.op_type == "Mul" else ():
            if (values.static_shape(value) or [])[-1:] == [channels]:
                found = _before(value, graph, channels)
                if not isinstance(found, str):
                    return found
        return f"{node.op_type} '{node.name}' joins two computed values"
    own = _constants(node, [Division(node, known[0], spread=True)], channels)
    if node.op_type == "Mul" or isinstance(own, str):
        return own
    before = _before(node.inputs[1 - known[0]], graph, channels)
    return before if isinstance(before, str) else own + before


def _of_split(node: ir.Node, value: ir.Value, graph: ir.Graph) -> list[Division] | str:
    """Divide the part of the channels that a Split gives to a value."""
    whole, parts = values.static_shape(node.inputs[0]), [values.static_shape(part) for part in node.outputs]
    if whole is None or node.attributes.get_int("axis", 0) % len(whole) != len(whole) - 1:
        return f"Split '{node.name}' does not cut the last axis"
    sizes = [part[-1] for part in parts if part is not None]
    total, before = whole[-1], sizes[: node.outputs.index(value)]
    if len(sizes) < len(parts) or total is None or any(size is None for size in sizes):
        return f"the parts of Split '{node.name}' have no known size"
    found = _before(node.inputs[0], graph, total)
    if isinstance(found, str) or any(division.spread and _is_one(division) for division in found):
        return found if isinstance(found, str) else f"one number serves all parts of Split '{node.name}'"
    return [replace(each, start=each.start + sum(size or 0 for size in before)) for each in found]


def _is_one(division: Division) -> bool:
    array = values.constant(division.node.inputs[division.index])
    return array is None or not array.ndim or array.shape[division.axis] == 1


# The operators from merged heads back to the value that was split into them: each one's input to follow, and the axis
# of heads in its result.
_HEADS = (("Reshape", 0, None), ("Transpose", 0, 2), ("MatMul", 1, 1), ("Transpose", 0, 1), ("Reshape", 0, 2))


def _merged_heads(value: ir.Value, graph: ir.Graph, channels: int) -> ir.Value | None:
    """Return the value whose heads attention mixes and then merges into `value`; None if there is none.

        Reshape [N, T, H * D] -> [N, T, H, D] > Transpose [N, H, T, D] > MatMul with the weights of attention
            > Transpose [N, T, H, D] > Reshape [N, T, H * D]

    Head h's channel d is number h * D + d on both sides, and each is mixed with itself alone.
    """
    walked: ir.Value | None = value
    heads: list[list[int | None]] = []  # the number of heads and the channels of each, on the way
    for op_type, index, axis in _HEADS:
        node = None if walked is None else walked.producer()
        if node is None or not values.is_standard(node, op_type) or walked is None:
            return None
        if op_type == "Transpose" and [*node.attributes.get_ints("perm", ())] != [0, 2, 1, 3]:
            return None
        if walked is not value and values.sole_use(walked, graph) is None:
            return None
        if axis is not None:
            dims = values.static_shape(walked)
            heads.append([dims[axis], dims[3]] if dims is not None and len(dims) == 4 else [None])
        walked = node.inputs[index]
    dims = values.static_shape(walked)
    same = all(None not in each and each == heads[0] for each in heads)
    return walked if same and dims is not None and dims[-1] == channels == math.prod(filter(None, heads[0])) else None


def _keeps_last_axis(node: ir.Node) -> bool:
    """Tell whether a node picks along other axes than the last one."""
    dims = values.rank(node.inputs[0]) if node.inputs else None
    if dims is None or not values.is_standard(node, "Gather"):
        return False
    return node.attributes.get_int("axis", 0) % dims != dims - 1


def _before(value: ir.Value | None, graph: ir.Graph, channels: int) -> list[Division] | str:
    if value is None:
        return "an input is missing"
    return (
        values.why_not_sole(value) if values.sole_use(value, graph) is None else find_divisions(value, graph, channels)
    )


def _constants(node: ir.Node, divisions: list[Division], channels: int) -> list[Division] | str:
    """Return those of the divisions whose input is there; or the reason why one cannot be divided."""
    found = []
    for division in divisions:
        value = values.input_at(node, division.index)
        if value is None:
            continue
        array = values.constant(value)
        if array is None or array.dtype != np.float32:
            return f"'{value.name}' of {node.op_type} '{node.name}' is not a constant of float32"
        if len(value.uses()) > 1 or value.is_graph_output():
            return f"'{value.name}' of {node.op_type} '{node.name}' has several uses"
        size = array.shape[division.axis] if array.ndim else 1
        if size != channels and not (division.spread and size == 1):
            return f"'{value.name}' of {node.op_type} '{node.name}' has {size} channels and not {channels}"
        found.append(division)
    return found
