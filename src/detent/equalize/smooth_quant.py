"""SmoothQuant: channels that are much larger than the others hand some of their size to the weights that read them.

A value x that MatMul or Gemm multiplies with a constant weight W may be divided by a factor s[j] for each channel j, if
row j of W is multiplied by it:

    x @ W  =  (x / s) @ (s * W)          s[j] = max|x[j]|^alpha / max|W[j]|^(1 - alpha)

With alpha = 1/2 both become equally large, and both are rounded equally well. Several layers that read one x (query,
key and value behind one normalization) share its factors, from the largest of their rows. Only the ratios of factors
matter, so their geometric mean is made 1; a channel that is zero in x or in W has the factor 1.

Rounding x costs each output (step of x)^2 / 12 times the sum of squares of its column, and rounding W costs it (step of
W)^2 / 12 times the power of x; a step is the largest magnitude over the number of codes. Where the factors do not lower
the sum of both, as beside activations of 16 bits, the layers are left as they are.

The division costs nothing if the node that computes x takes it into its constants:

    LayerNormalization, MatMul, Gemm, Mul    divide a constant of theirs: the scale and bias, the columns, the factor
    Add, Sub                                 divide their constant, and what they are added to
    Relu, LeakyRelu, Gather, Identity        divide what is before them: a positive factor passes through

Channels lie along the last axis, and a Gather must pick along another one. If that is not possible, the layers are left
too; or, with `insert`, a Mul is put before them. If x can be divided but other nodes read it too, as the sum around an
attention block does, `insert` puts a Mul by s before these instead. In float the function of the model stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from detent.equalizations.channel_problem import ChannelMoments, Floats
from detent.equalize.moments import observe_channels
from detent.errors import UsageError
from detent.graph import values
from detent.observe.samples import PendingSample

# Of the largest channel: a smaller one counts as this much, or what calibration hardly saw would be scaled up.
LEAST_SHARE = 1e-3


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
class _Group:
    """The layers that read one value."""

    source: ir.Value
    layers: tuple[ir.Node, ...]

    @property
    def others(self) -> list[tuple[ir.Node, int]]:
        """Other readers of the value."""
        return [(node, index) for node, index in self.source.uses() if node not in self.layers or index != 0]


@dataclass(frozen=True)
class SmoothQuant:
    """Hands the size of large channels to the weights that read them.

    `alpha` is from 0 (weights only become smaller) to 1 (activations only). `insert` lets it add nodes: lay the model
    out afterwards.
    """

    alpha: float = 0.5
    insert: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0.0 <= self.alpha <= 1.0:
            raise UsageError(
                f"alpha of SmoothQuant is {self.alpha:g}: it must be from 0 (weights only) to 1 (activations only)."
            )

    def smooth(
        self,
        model: ir.Model,
        samples: Sequence[PendingSample],
        threads: int = 0,
        *,
        bits: tuple[int, int] = (8, 8),
    ) -> Smoothing:
        """Smooth every layer of `model` that gains by it, in place. `bits` are those of activations and of weights."""
        groups = _groups(model.graph)
        if not groups or not samples:
            return Smoothing()
        editor = _Editor(model, self.insert)
        idle = {str(group.source.name): reason for group in groups if (reason := editor.why_not(group)) is not None}
        possible = [group for group in groups if str(group.source.name) not in idle]
        # Only what can be divided is observed: most networks have a last layer, and few another that could be.
        names = [str(group.source.name) for group in possible]
        moments = observe_channels(model, names, samples, threads, last=True) if names else {}
        factors: dict[str, Floats] = {}
        for group in possible:
            name = str(group.source.name)
            if name not in moments or not np.isfinite(moments[name].power).all():
                continue  # the sweep will name what is not finite
            found = _factors(moments[name].largest, _row_sizes(group.layers), self.alpha)
            # The usual formula always smooths. It may cost the weights more than it gains the activations.
            if _noise(group, moments[name], found, bits) < _noise(group, moments[name], np.ones_like(found), bits):
                factors[name] = found
            else:
                idle[name] = f"rounding '{name}' and the weights that it meets would not get better by it"
        return _apply_all(model, groups, factors, idle, self.insert)

    def smooth_again(self, model: ir.Model, factors: Mapping[str, Sequence[float]]) -> Smoothing:
        """Smooth by factors that an earlier run on the same model found."""
        groups = _groups(model.graph)
        known = {str(group.source.name) for group in groups}
        for name in factors:
            if name not in known:
                raise UsageError(
                    f"The model has no layer that reads '{name}', which was smoothed when its statistics were counted. "
                    "Prepare it in the same way, or calibrate again."
                )
        return _apply_all(model, groups, {name: np.array(each) for name, each in factors.items()}, {}, self.insert)


def _groups(graph: ir.Graph) -> list[_Group]:
    """Return the layers with a constant weight, by the value that they read."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        source = values.input_at(node, 0)
        if source is not None and not values.is_constant(source) and _row_axis(node) is not None:
            found.setdefault(source, []).append(node)
    return [_Group(source, tuple(layers)) for source, layers in found.items()]


def _row_axis(node: ir.Node) -> int | None:
    """Return the axis of a layer's weight that its input's channels meet; None if the node is not such a layer."""
    weight = values.constant(values.input_at(node, 1)) if values.is_standard(node, "MatMul", "Gemm") else None
    if weight is None or weight.dtype != np.float32 or weight.ndim < 2 or not weight.size:
        return None
    if node.op_type == "Gemm":
        transposed = node.attributes.get_int("transB", 0)
        return None if node.attributes.get_int("transA", 0) else (-1 if transposed else -2)
    return -2


def _rows(node: ir.Node) -> Floats:
    """Return the weight of a layer with a row for each channel of its input."""
    weight, axis = values.constant(node.inputs[1]), _row_axis(node)
    assert weight is not None and axis is not None, "a group holds layers"
    rows = np.moveaxis(weight.astype(np.float64), axis, 0)
    return rows.reshape(rows.shape[0], -1)


def _row_sizes(layers: Sequence[ir.Node]) -> Floats:
    """Return the largest magnitude in each row of the layers' weights."""
    largest: Floats = np.max([np.abs(_rows(node)).max(axis=1, initial=0.0) for node in layers], axis=0)
    return largest


def _noise(group: _Group, moments: ChannelMoments, factors: Floats, bits: tuple[int, int]) -> float:
    """Return what rounding a value and its weights adds to the layers' outputs, relative to these, over all layers."""
    codes, weight_codes = 2.0 ** bits[0], 2.0 ** bits[1]
    step = float((moments.largest / factors).max()) / codes
    total = 0.0
    for node in group.layers:
        rows = _rows(node)
        scaled = rows * factors[:, None]
        weight_step = float(np.abs(scaled).max(initial=0.0)) / weight_codes
        noise = step**2 * (scaled**2).sum() + weight_step**2 * rows.shape[1] * (moments.power / factors**2).sum()
        signal = float((moments.power[:, None] * rows**2).sum())
        total += float(noise) / signal if signal else 0.0
    return total


def _factors(activations: Floats, weights: Floats, alpha: float) -> Floats:
    """Return the factor of each channel, from the largest magnitudes in the value and in the weights."""
    live = (activations > 0) & (weights > 0) & np.isfinite(weights)
    factors = np.ones_like(activations)
    if live.any():
        wanted = alpha * np.log(_floored(activations[live])) - (1 - alpha) * np.log(_floored(weights[live]))
        # A common factor of all channels changes nothing but the scale; without it, factors stay around 1.
        factors[live] = np.exp(wanted - wanted.mean())
    return factors


def _floored(magnitudes: Floats) -> Floats:
    # A channel that is almost dead would get a factor that makes its noise the largest of all.
    floored: Floats = np.maximum(magnitudes, LEAST_SHARE * magnitudes.max())
    return floored


def _apply_all(
    model: ir.Model,
    groups: Sequence[_Group],
    factors: Mapping[str, Floats],
    idle: Mapping[str, str],
    insert: bool,
) -> Smoothing:
    """Smooth the groups that have factors. `idle` are reasons why others have none."""
    layers: list[str] = []
    declined: dict[str, str] = {}
    done: dict[str, Floats] = {}
    editor = _Editor(model, insert)
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


class _Editor:
    """Moves factors from values into weights."""

    def __init__(self, model: ir.Model, insert: bool) -> None:
        self._graph = model.graph
        self._names = values.Names(model)
        self._insert = insert
        self.inserted = 0

    def why_not(self, group: _Group) -> str | None:
        """Return the reason why the value that a group reads cannot be divided, or its weights not multiplied."""
        weights = [node.inputs[1] for node in group.layers]
        for value in weights:
            if value is not None and (len(value.uses()) > 1 or value.is_graph_output()):
                return f"the weight '{value.name}' has several uses"
        divisions = find_divisions(group.source, self._graph, len(_rows(group.layers[0])))
        reason = divisions if isinstance(divisions, str) else _why_others_matter(group)
        return None if self._insert else reason

    def apply(self, group: _Group, factors: Floats) -> str | None:
        """Divide the value that a group reads, and multiply its weights; return the reason if that cannot be."""
        reason = self.why_not(group)
        if reason is not None:
            return reason
        divisions = find_divisions(group.source, self._graph, factors.size)
        # The producer cannot take the factors, so a Mul does, which costs a node on the device.
        if isinstance(divisions, str):
            self._multiply(group.source, 1.0 / factors, [(node, 0) for node in group.layers])
        else:
            self._divide(group, divisions, factors)
        for node in group.layers:
            axis = _row_axis(node)
            assert axis is not None, "a group holds layers"
            divide(Division(node, 1, axis), 1.0 / factors)
        return None

    def _divide(self, group: _Group, divisions: Sequence[Division], factors: Floats) -> None:
        """Divide the value where it is computed; its other readers get it back as it was."""
        for division in divisions:
            divide(division, factors)
        # Other readers, and the user, must see the value as it was.
        if group.others or group.source.is_graph_output():
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


def _why_others_matter(group: _Group) -> str | None:
    """Say why the value must keep its channels for another reader, or return None."""
    if group.source.is_graph_output():
        return f"'{group.source.name}' is a graph output"
    for node, _ in group.others:
        return f"{node.op_type} '{node.name}' reads '{group.source.name}' too"
    return None


@dataclass(frozen=True)
class Division:
    """A constant input of a node, and its axis that the factors lie along; `spread`: one number may serve them all."""

    node: ir.Node
    index: int
    axis: int = -1
    spread: bool = False


def divide(division: Division, factors: Floats) -> None:
    """Divide a constant by the factors, in place. It becomes as wide as these if it was one number for all."""
    value = division.node.inputs[division.index]
    array = values.constant(value)
    assert value is not None and array is not None, "only constants are divided"
    along = np.moveaxis(array.astype(np.float64), division.axis, -1) if array.ndim else array.astype(np.float64)
    # In float64: weights that are divided here and multiplied there must cancel to the last bit of float32 as far as
    # possible.
    divided = along / factors
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
        return f"{node.op_type} '{node.name}' joins two computed values"
    own = _constants(node, [Division(node, known[0], spread=True)], channels)
    if node.op_type == "Mul" or isinstance(own, str):
        return own
    before = _before(node.inputs[1 - known[0]], graph, channels)
    return before if isinstance(before, str) else own + before


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
