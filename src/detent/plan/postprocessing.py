"""The post-processing of a detector, recognised by what it computes.

A detector ends in arithmetic that nobody trained: distances become boxes in pixels, logits become scores, the best are
picked. On one 8-bit grid, boxes of 0..640 leave a single code for all scores of 0..1, and nothing is detected any more.
So this part stays float, and the convolutions before it end in grids of their own.

The *tail* of a graph is all that no trained layer follows. Most tails are harmless (a Softmax, a Resize). A tail
decodes detections if it has one of these:

    a Concat of scores and boxes    one operand is bounded by a Sigmoid or Softmax, another is not
    a grid of anchors               arithmetic with a constant that holds one number for each position, all of them
                                    whole or half, or with boxes: two or four numbers for each position
    an expected distance (DFL)      Softmax, then a weighted sum with the weights 0, 1, 2, ...
    sizes from exponents            exp(x) times a constant with more than one number
    reference points                log(x / (1 - x)), to which an offset is added before the last Sigmoid (DETR)
    corners from centers            x - w/2 beside x + w/2
    peaks                           what equals the maximum of its neighbours (CenterNet)
    a choice                        NonMaxSuppression and its like, or TopK if its indices pick from other values

Then all of the tail that leads to the same outputs is post-processing. Names play no part, so exports of every origin
are treated alike. Every question is answered in one walk along the nodes, so that deep graphs cost no recursion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import bodies_of, constant, constant_scalar, made_by, read_values

_PRODUCTS = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "FusedConv", "FusedGemm", "FusedMatMul"),
    *("QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger", "MatMulNBits"),
)
_TRAINED = (
    *("LSTM", "GRU", "RNN", "PRelu", "Attention", "MultiHeadAttention", "BatchNormalization", "LayerNormalization"),
    *("InstanceNormalization", "GroupNormalization", "RMSNormalization", "SkipLayerNormalization"),
)
_CHOOSING = (
    *("NonMaxSuppression", "RoiAlign", "EfficientNMS_TRT", "BatchedNMS_TRT", "BatchedNMSDynamic_TRT", "TRTBatchedNMS"),
)
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_SHAPING = (
    *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "Slice", "Split", "Gather"),
    *("Expand", "Tile"),
)
_PARTS = ("Slice", "Split", "Gather", "Squeeze", "Unsqueeze")
_BOUNDED = ("Sigmoid", "HardSigmoid", "Softmax")

Readers = Mapping[ir.Value, Sequence[ir.Node]]

POSITIONS = 16  # the fewest positions of a grid of anchors: a constant with fewer numbers is a mean, a factor or a bias


@dataclass(frozen=True)
class Postprocessing:
    """What decodes detections: the names of its nodes, the values it starts from, and how it was recognised."""

    nodes: frozenset[str]
    starts: tuple[str, ...]
    outputs: tuple[str, ...]
    sign: str
    suppresses: bool  # by a node that does non-maximum suppression: then rows may be of objects, as many as there are

    @property
    def reason(self) -> str:
        """Why its nodes stay float."""
        return f"post-processing of detections ({self.sign}): boxes and scores have no grid in common"

    def to_dict(self) -> dict[str, Any]:
        return {"sign": self.sign, "nodes": sorted(self.nodes), "starts": [*self.starts], "outputs": [*self.outputs]}

    @property
    def when_quantized(self) -> str:
        """What to know if its nodes are quantized all the same."""
        return (
            f"The post-processing of detections ({self.sign}, {len(self.nodes)} nodes) is quantized: scores beside "
            "boxes lose nearly all of their codes. Leave --postprocessing keep out, and it stays float."
        )


def find_postprocessing(graph: ir.Graph) -> Postprocessing | None:
    """Return the post-processing of a detector, or None if the graph has none, or nothing else."""
    readers = _readers(graph)
    tail = _tail(graph, readers)
    bounded = _bounded(tail)
    signs = {node: sign for node in tail if (sign := _sign(node, bounded)) is not None}
    corners = _corners(tail)
    if corners is not None:
        signs.setdefault(corners, "corners from centers")
    if not signs or len(tail) == len(graph):
        return None
    reached = _reached_outputs(graph, tail, readers)
    wanted = 0
    for node in signs:
        wanted |= reached[node]
    members: list[ir.Node] = []
    inside: set[ir.Node] = set()
    for node in tail:
        # What reads a member is one as well, so that nothing leads back from here into the rest.
        if reached[node] & wanted or any(value.producer() in inside for value in read_values(node)):
            members.append(node)
            inside.add(node)
            wanted |= reached[node]
    return Postprocessing(
        nodes=frozenset(str(node.name) for node in members),
        starts=tuple(_starts(members)),
        outputs=tuple(str(value.name) for index, value in enumerate(graph.outputs) if wanted >> index & 1),
        sign=next(iter(signs.values())),
        suppresses=not set(_CHOOSING).isdisjoint(signs.values()),
    )


def _reached_outputs(graph: ir.Graph, tail: Sequence[ir.Node], readers: Readers) -> dict[ir.Node, int]:
    """Return, for each node of the tail, the graph outputs that depend on it, as bits."""
    bits: dict[ir.Value, int] = {}
    for index, value in enumerate(graph.outputs):
        bits[value] = bits.get(value, 0) | 1 << index
    reached: dict[ir.Node, int] = {}
    for node in reversed(tail):
        found = 0
        for value in node.outputs:
            found |= bits.get(value, 0)
            for user in readers.get(value, ()):
                found |= reached[user]
        reached[node] = found
    return reached


def _readers(graph: ir.Graph) -> Readers:
    """Return the nodes of the graph that read each value, directly or in a body of theirs."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        for value in read_values(node):
            found.setdefault(value, []).append(node)
    return found


def _tail(graph: ir.Graph, readers: Readers) -> Sequence[ir.Node]:
    """Return the nodes that are not trained layers, and that none follows, in the order of the graph."""
    nodes = list(graph)
    trained = {node for node in nodes if is_trained(node)}
    trained |= {node for node in nodes if _adds_bias(node, trained)}
    followed: set[ir.Node] = set()
    for node in reversed(nodes):
        users = (user for value in node.outputs for user in readers.get(value, ()))
        if any(user in followed or user in trained for user in users):
            followed.add(node)
    return [node for node in nodes if node not in followed and node not in trained]


def is_trained(node: ir.Node) -> bool:
    """Return whether a node, or one in its bodies, holds what training has found."""
    inner = [each for body in bodies_of(node) for each in body.all_nodes()]
    return any(each.op_type in _TRAINED or _has_weights(each) for each in (node, *inner))


def _adds_bias(node: ir.Node, trained: set[ir.Node]) -> bool:
    """Return whether a node adds one number for each channel to what a trained layer gives: part of that layer."""
    if node.op_type != "Add" or len(node.inputs) != 2:
        return False
    for source, other in (node.inputs, node.inputs[::-1]):
        array = constant(other)
        if source is not None and source.producer() in trained and array is not None:
            return array.size > 1 and array.size == max(array.shape)
    return False


def _has_weights(node: ir.Node) -> bool:
    if node.op_type not in _PRODUCTS:
        return False
    weights = [array for value in node.inputs if (array := _weights(value)) is not None]
    return any(array.ndim >= 2 and not (_counts(array) or _converts(array)) for array in weights)


def _weights(value: ir.Value | None) -> npt.NDArray[np.generic] | None:
    """Return a constant, also one behind a DequantizeLinear."""
    node = made_by(value)
    if node is not None and node.op_type == "DequantizeLinear":
        value = node.inputs[0]
    return constant(value)


def _counts(weights: npt.NDArray[np.generic]) -> bool:
    """Return whether weights are 0, 1, 2, ...: they turn shares of distances into the expected distance."""
    flat = weights.reshape(-1)
    # The first few alone rule out almost all weights, of which there may be a hundred million.
    return all(bool(np.array_equal(flat[:end], np.arange(min(end, flat.size)))) for end in (4, flat.size))


def _converts(weights: npt.NDArray[np.generic]) -> bool:
    """Return whether weights turn four numbers of a box into four others, such as center and size into corners."""
    return weights.shape[-2:] == (4, 4) and weights.size == 16 and _are_halves(weights)


def _are_halves(numbers: npt.NDArray[Any]) -> bool:
    """Return whether numbers are all whole or half, as trained ones never are."""
    return numbers.dtype.kind == "f" and bool((np.rint(numbers * 2) == numbers * 2).all())


def _sign(node: ir.Node, bounded: set[ir.Node]) -> str | None:
    """Return how this node shows that detections are decoded, or None."""
    op_type = node.op_type
    inside = [each.op_type for body in bodies_of(node) for each in body.all_nodes()]
    chosen = next((each for each in (op_type, *inside) if each in _CHOOSING), None)
    if chosen is not None or (op_type == "TopK" and _picks(node)):
        return chosen or op_type
    if op_type in _PRODUCTS:
        return "expected distances" if any(_is_counting(value) for value in node.inputs) else None
    if op_type == "Mul" and _scales_exponents(node):
        return "sizes from exponents"
    if op_type in _ARITHMETIC and any(_is_anchors(value) for value in node.inputs):
        return "a grid of anchors"
    if op_type == "Log" and _is_inverse_sigmoid(node):
        return "boxes around reference points"
    if op_type in ("Equal", "Sub") and _compares_peaks(node):
        return "peaks of a heat map"
    if op_type == "Concat":
        data = [value for value in node.inputs if value is not None and constant(value) is None]
        scores = [value.producer() in bounded for value in data]
        if any(scores) and not all(scores):
            return "boxes and scores side by side"
    return None


def _picks(node: ir.Node) -> bool:
    """Return whether the indices of a TopK choose among other values; those of a classifier are just returned."""
    pending = [node.outputs[1]] if len(node.outputs) > 1 else []
    seen: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        for user in value.consumers():
            if user.op_type not in _SHAPING or user.inputs[0] is not value:
                return True
            fresh = [output for output in user.outputs if output not in seen]
            seen.update(fresh)
            pending += fresh
    return False


def _scales_exponents(node: ir.Node) -> bool:
    exponents = [maker for value in node.inputs if (maker := made_by(value)) is not None and maker.op_type == "Exp"]
    factors = [array for value in node.inputs if (array := constant(value)) is not None and array.size > 1]
    return bool(exponents) and bool(factors)


def _is_inverse_sigmoid(node: ir.Node) -> bool:
    """Return whether a Log is that of x / (1 - x), each of them maybe kept away from zero."""
    ratio = made_by(node.inputs[0], "Div")
    if ratio is None:
        return False
    below = _before(ratio.inputs[1], ("Clip", "Max", "Add"))
    return below is not None and below.op_type == "Sub" and constant_scalar(below, 0) == 1.0


def _compares_peaks(node: ir.Node) -> bool:
    makers = [made_by(value) for value in node.inputs]
    return any(maker is not None and maker.op_type == "MaxPool" and maker.inputs[0] in node.inputs for maker in makers)


def _before(value: ir.Value | None, passed: Sequence[str]) -> ir.Node | None:
    """Return the node that computes a value, looking through nodes of these types."""
    node = made_by(value)
    while node is not None and node.op_type in passed and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _corners(tail: Sequence[ir.Node]) -> ir.Node | None:
    """Return a sum whose operands also have a difference, if there is one: x + w/2 beside x - w/2."""
    differences = {operands for node in tail if node.op_type == "Sub" and None not in (operands := _operands(node))}
    return next((node for node in tail if node.op_type == "Add" and _operands(node) in differences), None)


def _operands(node: ir.Node) -> tuple[object, ...]:
    return tuple(_unscaled(value) for value in node.inputs)


def _unscaled(value: ir.Value | None) -> object:
    """Return what an operand is a multiple of; None for a constant.

    Exporters compute w/2 once for each corner, and take w out of the boxes again and again, so that equal values are
    different objects. They are known by what they are computed from.
    """
    node = made_by(value)
    if node is not None and node.op_type in ("Mul", "Div") and constant_scalar(node, 1) is not None:
        value = node.inputs[0]
    elif node is not None and node.op_type == "Mul" and constant_scalar(node, 0) is not None:
        value = node.inputs[1]
    node = made_by(value)
    if value is None or node is None or node.op_type not in _PARTS:
        return None if constant(value) is not None else value
    which = [None if (array := constant(each)) is None else array.tobytes() for each in node.inputs[1:]]
    return node.inputs[0], node.op_type, node.outputs.index(value), tuple(which)


def _is_counting(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and array.size > 2 and _counts(array)


def _is_anchors(value: ir.Value | None) -> bool:
    array = constant(value)
    if array is None or array.dtype.kind != "f" or array.size < POSITIONS or bool((array == array.flat[0]).all()):
        return False
    if _are_halves(array):  # centers and strides of cells
        return True
    sides = [size for size in array.shape if size > 1]
    return len(sides) == 2 and min(sides) in (2, 4) and max(sides) >= POSITIONS


def _bounded(tail: Sequence[ir.Node]) -> set[ir.Node]:
    """Return the nodes whose results are scores: what a Sigmoid or Softmax gives, however reshaped and joined."""
    found: set[ir.Node] = set()
    for node in tail:
        if _is_bounded(node, found):
            found.add(node)
    return found


def _is_bounded(node: ir.Node, before: set[ir.Node]) -> bool:
    """Return whether a result is scores, given which nodes before it have such results."""
    if node.op_type in _BOUNDED:
        return True
    if node.op_type == "Clip":
        return constant_scalar(node, 1) == 0.0 and constant_scalar(node, 2) == 1.0
    operands = [made_by(value) for value in node.inputs]
    if node.op_type in ("Concat", "Mul", "Sqrt", "Pow"):  # objectness times class; its root
        return bool(operands) and all(operand in before for operand in operands)
    return node.op_type in _SHAPING and operands[0] in before


def _starts(members: Iterable[ir.Node]) -> list[str]:
    """Return the values that come into the post-processing from the network before it."""
    inside = set(members)
    entering = dict.fromkeys(
        str(value.name)
        for node in members
        for value in read_values(node)
        if value.producer() is not None and value.producer() not in inside
    )
    return list(entering)
