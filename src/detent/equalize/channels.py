"""Which channels of a network can be rescaled, and what has to follow when one is.

Multiplying channel c of a value by a > 0 changes nothing in float if the layer that computes it multiplies row c of its
weight (and its bias) by a, and every layer that reads it divides column c by a. Between the two may stand anything that
a positive factor passes through: Relu, pooling, padding with zeros, and so on. An Add ties the channels of both sides
together, a Concat lines them up, and whatever else reads a value fixes its channels at 1.

A product with a constant, or with a gate such as that of squeeze-and-excite, lets factors of the other operand through.

Every channel of every value is given a *variable*: the logarithm of its factor. Channels that must have the same factor
have the same variable, and FIXED is that of channels that must keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.equalizations.channel_problem import FIXED, Variables
from detent.graph.values import constant, constant_ints, constant_scalar, input_at, is_constant, rank, static_shape

POOLS = frozenset(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
PASSING = POOLS | {"Relu", "LeakyRelu", "Identity", "Dropout"}


@dataclass(frozen=True, eq=False)
class ScaledLayer:
    """A layer whose weight can follow its channels.

    `inputs` has the variables of the input channels, groups x channels of a group, and `outputs` those of the output.
    """

    node: ir.Node
    inputs: Variables
    outputs: Variables

    @property
    def weight(self) -> npt.NDArray[np.float32]:
        """The weight as groups x outputs x inputs x taps of the kernel."""
        weight = constant(self.node.inputs[1])
        assert weight is not None, "a scaled layer's weight is a constant"
        if self.node.op_type == "Conv":
            groups, outputs, inputs = len(self.inputs), self.outputs.shape[1], self.inputs.shape[1]
            return weight.reshape(groups, outputs, inputs, -1)
        return (weight if _transposed(self.node) else weight.T)[None, :, :, None]

    @property
    def bias(self) -> npt.NDArray[np.float32] | None:
        """The bias, if there is one."""
        return constant(self.node.inputs[2]) if input_name(self.node, 2) else None

    def ungrouped(self, weight: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return an array like `weight` in the shape that the node reads."""
        if self.node.op_type == "Conv":
            shape = constant(self.node.inputs[1]).shape  # type: ignore[union-attr]  # a scaled layer's weight is one
            return weight.reshape(shape)
        return weight[0, :, :, 0] if _transposed(self.node) else weight[0, :, :, 0].T


@dataclass(frozen=True, eq=False)
class Ceiling:
    """A Clip at 0 and `bound`, which limits how much its channels may grow."""

    node: ir.Node
    bound: float

    @property
    def value(self) -> str:
        """What it cuts off."""
        return "" if self.node.inputs[0] is None else str(self.node.inputs[0].name)

    @property
    def result(self) -> str:
        """What is left of it."""
        return str(self.node.outputs[0].name)


@dataclass(frozen=True, eq=False)
class ChannelMap:
    """The variables of every value that has any, the layers that follow them, and the Clips that limit them."""

    count: int
    of_value: Mapping[str, Variables]
    layers: Sequence[ScaledLayer]
    ceilings: Sequence[Ceiling]


def map_channels(model: ir.Model, *, through_pools: bool = True) -> ChannelMap:
    """Find every channel that can be rescaled; without `through_pools`, none that passes a pooling operator."""
    return _Mapper().run(model, frozenset() if through_pools else POOLS)


def input_name(node: ir.Node, index: int) -> str:
    """Return the name of an input; empty if there is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return "" if value is None else str(value.name)


def _transposed(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))


class _Mapper:
    """Walks the graph once. Variables are united as it goes, and numbered anew at the end."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._fixed: set[int] = set()
        self._values: dict[str, Variables] = {}
        self._layers: list[ScaledLayer] = []
        self._ceilings: list[Ceiling] = []

    def run(self, model: ir.Model, without: frozenset[str]) -> ChannelMap:
        for value in model.graph.inputs:
            self._values[str(value.name)] = _all_fixed(_channels(value))
        for node in model.graph:
            rule = _RULES.get(node.op_type, _Mapper._fix_everything) if node.domain in ("", "ai.onnx") else None
            if rule is None or node.op_type in without or not rule(self, node):
                self._fix_everything(node)
        for value in (*model.graph.outputs, *_captured(model)):
            self._fix(self._values.get(str(value.name)))
        return self._numbered()

    def _numbered(self) -> ChannelMap:
        roots = np.array([self._root(number) for number in range(len(self._parents))], np.int64)
        fixed = {self._root(number) for number in self._fixed}
        free = sorted(set(roots.tolist()) - fixed)
        number_of = {root: number for number, root in enumerate(free)}
        final = np.array([number_of.get(root, FIXED) for root in roots.tolist()] + [FIXED], np.int64)

        def settle(variables: Variables) -> Variables:
            return final[variables]  # FIXED is the last one: -1

        values = {name: settle(variables) for name, variables in self._values.items()}
        return ChannelMap(
            len(free),
            values,
            [ScaledLayer(each.node, settle(each.inputs), settle(each.outputs)) for each in self._layers],
            [each for each in self._ceilings if (values[str(each.node.outputs[0].name)] != FIXED).any()],
        )

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    def _new(self, count: int) -> Variables:
        first = len(self._parents)
        self._parents += range(first, first + count)
        return np.arange(first, first + count)

    def _fix(self, variables: Variables | None) -> None:
        if variables is not None:
            self._fixed.update(number for number in variables.tolist() if number != FIXED)

    def _tie(self, one: Variables, other: Variables) -> None:
        for left, right in zip(one.tolist(), other.tolist(), strict=True):
            if FIXED in (left, right):
                self._fix(np.array([left, right]))
            else:
                self._parents[self._root(left)] = self._root(right)

    def _of(self, value: ir.Value | None) -> Variables | None:
        return None if value is None else self._values.get(str(value.name))

    def _fix_everything(self, node: ir.Node) -> bool:
        for value in node.inputs:
            self._fix(self._of(value))
        for value in node.outputs:
            self._values[str(value.name)] = _all_fixed(_channels(value))
        return True

    def _layer(self, node: ir.Node) -> bool:
        source, weight = self._of(node.inputs[0]), constant(node.inputs[1])
        if source is None or weight is None or not _writable(node.inputs[1]) or not _bias_follows(node):
            return False
        groups = node.attributes.get_int("group", 1) if node.op_type == "Conv" else 1
        outputs = weight.shape[0] if node.op_type == "Conv" or _transposed(node) else weight.shape[1]
        inputs = weight.size // outputs // max(int(np.prod(weight.shape[2:])), 1)
        if weight.ndim < 2 or source.size != groups * inputs:
            return False
        result = self._new(outputs)
        self._values[str(node.outputs[0].name)] = result
        self._layers.append(ScaledLayer(node, source.reshape(groups, -1), result.reshape(groups, -1)))
        return True

    def _pass(self, node: ir.Node) -> bool:
        source = self._of(node.inputs[0])
        if source is None:
            return False
        self._values[str(node.outputs[0].name)] = source
        for other in node.outputs[1:]:  # the indices of a MaxPool, the mask of a Dropout
            self._values[str(other.name)] = _all_fixed(None)
        return True

    def _pad(self, node: ir.Node) -> bool:
        mode = node.attributes.get_string("mode", "constant")
        filled = len(node.inputs) > 2 and node.inputs[2] is not None and constant_scalar(node, 2) != 0.0
        return not (mode == "constant" and filled) and _pads_no_channels(node) and self._pass(node)

    def _prelu(self, node: ir.Node) -> bool:
        return constant(node.inputs[1]) is not None and self._pass(node)

    def _clip(self, node: ir.Node) -> bool:
        low = constant_scalar(node, 1)
        high = constant_scalar(node, 2) if len(node.inputs) > 2 and node.inputs[2] is not None else np.inf
        if low != 0.0 or high is None or high <= 0.0 or not self._pass(node):
            return False
        if np.isfinite(high):
            self._ceilings.append(Ceiling(node, high))
        return True

    def _mul(self, node: ir.Node) -> bool:
        """Pass on the factors of an operand that has the shape of the result; the other one keeps its own."""
        shape = static_shape(node.outputs[0])
        whole = [value for value in node.inputs if not is_constant(value) and static_shape(value) == shape]
        sources = {value: source for value in whole if (source := self._of(value)) is not None}
        if node.inputs[0] is node.inputs[1] or not sources:
            return False
        taken, passed = next(
            ((value, source) for value, source in sources.items() if (source != FIXED).any()),
            next(iter(sources.items())),
        )
        for value in node.inputs:
            if value is not taken:  # which may have the same factors, as in x * Relu(x): then they are fixed, too
                self._fix(self._of(value))
        self._values[str(node.outputs[0].name)] = passed
        return True

    def _resize(self, node: ir.Node) -> bool:
        """Interpolate within channels; what lies outside of the image is never a constant here."""
        inside = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
        same = _channels(node.inputs[0]) if node.inputs[0] is not None else None
        return inside and same is not None and same == _channels(node.outputs[0]) and self._pass(node)

    def _slice(self, node: ir.Node) -> bool:
        """Take some channels, or some positions of all."""
        source, known = self._of(node.inputs[0]), rank(node.inputs[0])
        starts, ends, axes = (constant_ints(input_at(node, index)) for index in (1, 2, 3))
        steps = [1] * len(starts or ()) if input_at(node, 4) is None else constant_ints(input_at(node, 4))
        if source is None or not known or starts is None or ends is None or steps is None:
            return False
        axes = list(range(len(starts))) if input_at(node, 3) is None else axes
        if axes is None or not len(starts) == len(ends) == len(axes) == len(steps):
            return False
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if axis % known == 1:
                source = source[start:end:step] if step > 0 else source[:0]
        if source.size != _channels(node.outputs[0]):
            return False
        self._values[str(node.outputs[0].name)] = source
        return True

    def _split(self, node: ir.Node) -> bool:
        source, known = self._of(node.inputs[0]), rank(node.inputs[0])
        sizes = [_channels(value) for value in node.outputs]
        if source is None or not known or node.attributes.get_int("axis", 0) % known != 1 or None in sizes:
            return False
        ends = np.cumsum([size for size in sizes if size is not None])
        if ends[-1] != source.size:
            return False
        for value, part in zip(node.outputs, np.split(source, ends[:-1]), strict=True):
            self._values[str(value.name)] = part
        return True

    def _mean(self, node: ir.Node) -> bool:
        return _keeps_channels(node) and self._pass(node)

    def _reshape(self, node: ir.Node) -> bool:
        """Make a row of channels of one number per channel; or a run of neighbours of each channel."""
        source, before, after = self._of(node.inputs[0]), static_shape(node.inputs[0]), static_shape(node.outputs[0])
        if source is None or before is None or after is None or len(before) < 2 or len(after) != 2:
            return False
        places = _product(before[2:])
        if places is None or before[1] != source.size or after[1] != source.size * places:
            return False  # a row of the result is not one sample
        self._values[str(node.outputs[0].name)] = np.repeat(source, places)
        return True

    def _add(self, node: ir.Node) -> bool:
        one, other = self._of(node.inputs[0]), self._of(node.inputs[1])
        if one is None or other is None or one.size != other.size or one.size != _channels(node.outputs[0]):
            return False
        if rank(node.inputs[0]) != rank(node.inputs[1]):  # axis 1 of the one is not added to axis 1 of the other
            return False
        self._tie(one, other)
        self._values[str(node.outputs[0].name)] = one
        return True

    def _concat(self, node: ir.Node) -> bool:
        parts = [self._of(value) for value in node.inputs]
        if node.attributes.get_int("axis", 0) != 1 or any(part is None for part in parts):
            return False
        joined = np.concatenate([part for part in parts if part is not None])
        if joined.size != _channels(node.outputs[0]):
            return False
        self._values[str(node.outputs[0].name)] = joined
        return True


_RULES: Mapping[str, Callable[[_Mapper, ir.Node], bool]] = {
    **dict.fromkeys(PASSING, _Mapper._pass),
    "Conv": _Mapper._layer,
    "Gemm": _Mapper._layer,
    "PRelu": _Mapper._prelu,
    "Clip": _Mapper._clip,
    "Pad": _Mapper._pad,
    "ReduceMean": _Mapper._mean,
    "Flatten": _Mapper._reshape,
    "Reshape": _Mapper._reshape,
    "Squeeze": _Mapper._reshape,
    "Add": _Mapper._add,
    "Mul": _Mapper._mul,
    "Resize": _Mapper._resize,
    "Slice": _Mapper._slice,
    "Split": _Mapper._split,
    "Concat": _Mapper._concat,
}


MOST_CHANNELS = 1 << 24  # more is a size that a damaged file declares, and an array of so many numbers


def _channels(value: ir.Value) -> int | None:
    """Return the size of axis 1, where channels are; None if it is unknown, or past all reason."""
    size = value.shape[1] if value.shape is not None and len(value.shape) > 1 else None
    return size if isinstance(size, int) and size <= MOST_CHANNELS else None


def _all_fixed(count: int | None) -> Variables:
    return np.full(count or 0, FIXED, np.int64)


def _writable(value: ir.Value | None) -> bool:
    """Tell whether a constant may be changed for the one node that reads it."""
    if value is None or not is_constant(value) or value.dtype != ir.DataType.FLOAT:
        return False  # of a Constant node, say, or of doubles
    return len(value.uses()) == 1 and not value.is_graph_output()


def _bias_follows(node: ir.Node) -> bool:
    """Tell whether the bias, if there is one, is a constant of one number per output channel."""
    if node.attributes.get_int("transA", 0) != 0 or node.attributes.get_float("alpha", 1.0) != 1.0:  # of a Gemm
        return False
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    bias = constant(node.inputs[2])
    outputs = _channels(node.outputs[0])
    return bias is not None and _writable(node.inputs[2]) and bias.size == outputs and bias.shape[-1:] == (outputs,)


def _keeps_channels(node: ir.Node) -> bool:
    """Tell whether axis 1 of a ReduceMean's output is axis 1 of its input."""
    known = rank(node.inputs[0])
    axes = node.attributes.get_ints("axes") if "axes" in node.attributes else constant_ints(input_at(node, 1))
    if not known or not axes:
        return False
    gone = {axis % known for axis in axes}
    return 1 not in gone and (0 not in gone or bool(node.attributes.get_int("keepdims", 1)))


def _pads_no_channels(node: ir.Node) -> bool:
    """Tell whether a Pad leaves axis 1 as it is."""
    known, pads = rank(node.inputs[0]), constant_ints(input_at(node, 1))
    if not known or pads is None:
        return False
    named = input_at(node, 3)
    axes = list(range(known)) if named is None else constant_ints(named)
    if axes is None or len(pads) != 2 * len(axes):
        return False
    return all(pad == 0 for axis, pad in zip(axes + axes, pads, strict=True) if axis % known == 1)


def _product(sizes: Sequence[int | None]) -> int | None:
    """Return the product; None if a size is unknown."""
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _captured(model: ir.Model) -> list[ir.Value]:
    """Return values of the main graph that are read inside the bodies of an If, Loop or Scan."""
    values = (value for node in model.graph for value in node.outputs)
    return [value for value in values if any(user.graph is not model.graph for user in value.consumers())]
