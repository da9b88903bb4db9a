"""The scores of a detector: one shift for each layer whose answers go through a Sigmoid to become scores.

Almost all positions of an image hold nothing. Bias correction, which looks at all alike, leaves the few that do hold
something with answers that are too low: what is rare and large is what noise on the way makes smaller. Where z are the
answers of such a layer in the float model and z' those in the quantized one, a single d is added to all its biases,

    minimize over d   sum over all positions and channels of (sigmoid(z' + d) - sigmoid(z))^2

in which only positions count that one of the two takes for an object. The order of scores within a layer stays as it
is; what changes is how many pass a threshold, and how the layers of several resolutions compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.execute.quantized_walk import Frontier
from detent.graph.values import constant_ints, input_at, static_shape
from detent.refine.layers import MatrixLayer
from detent.refinements.layer_problem import Floats

LARGEST_SHIFT = 4.0  # in logits: it takes a score of 0.5 to 0.98
STEP = 1 / 16
COLD = -6.0  # an answer below this is a score of less than 0.0025 either way: it says nothing about the shift


@dataclass(frozen=True, eq=False)
class ScoreHead:
    """A layer with the channels from `start` to `stop` being the logits of scores."""

    layer: MatrixLayer
    start: int
    stop: int

    def of(self, output: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the logits in an output of the layer."""
        return output[:, self.start : self.stop]

    def shifted(self, bias: Floats, shift: float) -> Floats:
        """Return the layer's biases with those of the logits shifted."""
        return bias + np.where((np.arange(bias.size) >= self.start) & (np.arange(bias.size) < self.stop), shift, 0.0)


class ScoreLogits:
    """What score heads answer to the first samples of a refinement, in the float model and in the quantized one."""

    def __init__(self, heads: Sequence[ScoreHead], samples: int) -> None:
        self.heads, self._samples = heads, samples
        self._wanted: dict[str, dict[int, npt.NDArray[np.float32]]] = {name: {} for name in self.names}
        self._pairs: dict[str, list[list[npt.NDArray[np.float32]]]] = {}

    @property
    def names(self) -> set[str]:
        """The values that are looked at."""
        return {head.layer.output for head in self.heads}

    def expect(self, sample: int, values: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Take what the float model answers to a sample, from its values."""
        for head in self.heads if sample < self._samples else ():
            # A copy: an array of onnxruntime's keeps the whole region of memory that it is in.
            self._wanted[head.layer.output][sample] = head.of(values[head.layer.output]).copy()

    def find(self, name: str, frontier: Frontier) -> None:
        """Take what the quantized model answers to the same samples: a value of the walk, when it is computed."""
        for head in self.heads:
            if head.layer.output == name:
                wanted = self._wanted.pop(name)
                self._pairs[name] = [
                    _hot((head.of(frontier.get(name, sample)), wanted[sample])) for sample in sorted(wanted)
                ]

    def shifts(self) -> list[float]:
        """Return the shift of each head."""
        return [common_shift(self._pairs[head.layer.output]) for head in self.heads]


def score_heads(model: ir.Model, layers: Mapping[ir.Node, MatrixLayer]) -> list[ScoreHead]:
    """Find the layers that compute the logits of scores: between them and a Sigmoid only shapes change, and no layer
    reads what is behind it."""
    heads: dict[str, ScoreHead] = {}
    for node in model.graph:
        if node.op_type != "Sigmoid" or node.inputs[0] is None or _feeds_layer(node, layers):
            continue
        channels = _channels(node.inputs[0])
        if channels is not None:
            found = list(_sources(node.inputs[0], 0, channels, layers))
            heads |= {head.layer.name: head for head in found if head.layer.bias is not None}
    return list(heads.values())


def common_shift(pairs: Sequence[Sequence[npt.NDArray[np.float32]]]) -> float:
    """Return the shift of the logits found in the quantized model that brings its scores closest to those wanted.

    `pairs` are the logits found and wanted, sample by sample.
    """
    found, wanted = (np.concatenate([_hot(pair)[side] for pair in pairs]).astype(np.float64) for side in (0, 1))
    if not found.size:
        return 0.0
    target = _sigmoid(wanted)
    shifts = np.arange(-LARGEST_SHIFT, LARGEST_SHIFT + STEP, STEP)
    errors = [float(np.square(_sigmoid(found + shift) - target).sum()) for shift in shifts]
    return float(shifts[int(np.argmin(errors))])


def _hot(pair: Sequence[npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
    found, wanted = pair
    kept = np.maximum(found, wanted) > COLD
    return [found[kept], wanted[kept]]


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-values)))


def _feeds_layer(node: ir.Node, layers: Mapping[ir.Node, MatrixLayer]) -> bool:
    """Tell whether any layer comes after a node: it is a gate then, not a score."""
    ahead, seen = [node], {node}
    while ahead:
        for reader in (reader for value in ahead.pop().outputs for reader in value.consumers()):
            if reader in layers:
                return True
            if reader not in seen:
                seen.add(reader)
                ahead.append(reader)
    return False


def _sources(value: ir.Value, start: int, stop: int, layers: Mapping[ir.Node, MatrixLayer]) -> Iterator[ScoreHead]:
    """Follow the channels from `start` to `stop` of a value backwards to the layers that compute them."""
    node = value.producer()
    if node is None:
        return
    if node in layers:
        if layers[node].convolves:
            yield ScoreHead(layers[node], start, stop)
    elif node.op_type == "Concat":
        yield from _joined(node, start, stop, layers)
    elif node.inputs and node.inputs[0] is not None:
        offset = _offset(node, value)
        if offset is not None:
            yield from _sources(node.inputs[0], start + offset, stop + offset, layers)


def _joined(node: ir.Node, start: int, stop: int, layers: Mapping[ir.Node, MatrixLayer]) -> Iterator[ScoreHead]:
    first = 0
    for operand in node.inputs:
        size = None if operand is None else _channels(operand)
        if operand is None or size is None:
            return
        if node.attributes.get_int("axis", 0) != 1:  # positions are joined, each with all channels
            yield from _sources(operand, start, stop, layers)
        elif start < first + size and stop > first:
            yield from _sources(operand, max(start - first, 0), min(stop - first, size), layers)
        first += size


def _offset(node: ir.Node, output: ir.Value) -> int | None:
    """Return which channel of a node's input the first one of its output is; None if channels do not stay together."""
    source = node.inputs[0]
    assert source is not None, "the caller has looked"
    if node.op_type in ("Split", "Slice"):
        return _cut(node, output)
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", ())
        return 0 if len(order) > 1 and order[1] == 1 else None
    if node.op_type not in ("Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze"):
        return None
    before, after = static_shape(source), static_shape(output)
    kept = before is not None and after is not None and len(before) > 1 and before[:2] == after[:2]
    return 0 if kept and before is not None and before[1] is not None else None


def _cut(node: ir.Node, output: ir.Value) -> int | None:
    if node.op_type == "Split":
        sizes = [_channels(value) for value in node.outputs]
        if node.attributes.get_int("axis", 0) != 1 or None in sizes:
            return None
        return sum(size for size in sizes[: node.outputs.index(output)] if size is not None)
    starts, axes = constant_ints(input_at(node, 1)), constant_ints(input_at(node, 3))
    steps = [1] if input_at(node, 4) is None else constant_ints(input_at(node, 4))
    if axes != [1] or starts is None or starts[0] < 0 or steps != [1]:
        return None
    return starts[0]


def _channels(value: ir.Value) -> int | None:
    shape = static_shape(value)
    return shape[1] if shape is not None and len(shape) > 1 else None
