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
    a choice                        TopK, NonMaxSuppression and their like

Then all of the tail that leads to the same outputs is post-processing. Names play no part, so exports of every origin
are treated alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, constant_scalar

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "FusedConv", "FusedGemm", "FusedMatMul")
_TRAINED = (
    "LSTM",
    "GRU",
    "RNN",
    "BatchNormalization",
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "SkipLayerNormalization",
    "PRelu",
    "Attention",
    "MultiHeadAttention",
)
_CHOOSING = (
    "TopK",
    "NonMaxSuppression",
    "RoiAlign",
    "EfficientNMS_TRT",
    "BatchedNMS_TRT",
    "BatchedNMSDynamic_TRT",
    "TRTBatchedNMS",
)
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_SHAPING = (
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Identity",
    "Cast",
    "Slice",
    "Split",
    "Gather",
    "Expand",
    "Tile",
)
_BOUNDED = ("Sigmoid", "HardSigmoid", "Softmax")

POSITIONS = 16
"""The fewest positions of a grid of anchors: a constant with fewer numbers is a mean, a factor or a bias."""


@dataclass(frozen=True)
class Postprocessing:
    """What decodes detections: the names of its nodes, the values it starts from, and how it was recognised."""

    nodes: frozenset[str]
    starts: tuple[str, ...]
    outputs: tuple[str, ...]
    sign: str

    @property
    def reason(self) -> str:
        """Why its nodes stay float."""
        return f"post-processing of detections ({self.sign}): boxes and scores have no grid in common"


def find_postprocessing(graph: ir.Graph) -> Postprocessing | None:
    """Return the post-processing of a detector, or None if the graph has none."""
    tail = _tail(graph)
    inside = set(tail)
    signs = {node: sign for node in tail if (sign := _sign(node, inside)) is not None}
    if not signs:
        return None
    after: dict[ir.Node, frozenset[ir.Value]] = {}
    for node in reversed(tail):
        reached = {value for value in node.outputs if value.is_graph_output()}
        reached.update(*(after[user] for value in node.outputs for user in value.consumers() if user in after))
        after[node] = frozenset(reached)
    outputs = frozenset[ir.Value]().union(*(after[node] for node in signs))
    members = [node for node in tail if after[node] & outputs]
    return Postprocessing(
        nodes=frozenset(str(node.name) for node in members),
        starts=tuple(_starts(members)),
        outputs=tuple(str(value.name) for value in graph.outputs if value in outputs),
        sign=next(iter(signs.values())),
    )


def _tail(graph: ir.Graph) -> Sequence[ir.Node]:
    """Return the nodes that no trained layer follows, and that are none, in the order of the graph."""
    followed: set[ir.Node] = set()
    nodes = list(graph)
    for node in reversed(nodes):
        users = [user for value in node.outputs for user in value.consumers()]
        # A reader in a body of If or Loop belongs to no list here: take it as a trained layer, to be safe.
        if any(user in followed or user.graph is not graph or _is_trained(user) for user in users):
            followed.add(node)
    return [node for node in nodes if node not in followed and not _is_trained(node)]


def _is_trained(node: ir.Node) -> bool:
    if node.op_type in _TRAINED:
        return True
    if any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values()
    ):
        return True
    if node.op_type not in _PRODUCTS:
        return False
    weights = [array for value in node.inputs if (array := constant(value)) is not None and array.dtype.kind == "f"]
    return any(array.ndim >= 2 and not _counts(array) for array in weights)


def _counts(weights: npt.NDArray[np.generic]) -> bool:
    """Whether weights are 0, 1, 2, ...: they turn shares of distances into the expected distance."""
    return bool(np.array_equal(weights.reshape(-1), np.arange(weights.size)))


def _sign(node: ir.Node, tail: set[ir.Node]) -> str | None:
    """Return how this node shows that detections are decoded, or None."""
    if node.op_type in _CHOOSING:
        return node.op_type
    if node.op_type in _PRODUCTS:
        return "expected distances" if any(_is_counting(value) for value in node.inputs) else None
    if node.op_type in _ARITHMETIC and any(_is_anchors(value) for value in node.inputs):
        return "a grid of anchors"
    if node.op_type == "Concat":
        bounded = [_is_bounded(value, tail) for value in node.inputs if value is not None and constant(value) is None]
        if any(bounded) and not all(bounded):
            return "boxes and scores side by side"
    return None


def _is_counting(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and array.size > 2 and _counts(array)


def _is_anchors(value: ir.Value | None) -> bool:
    array = constant(value)
    if array is None or array.dtype.kind != "f" or array.size < POSITIONS or bool((array == array.flat[0]).all()):
        return False
    # Trained numbers are never all whole or half; centers and strides of cells are.
    if bool((np.rint(array * 2) == array * 2).all()):
        return True
    sides = [size for size in array.shape if size > 1]
    return len(sides) == 2 and min(sides) in (2, 4) and max(sides) >= POSITIONS


def _is_bounded(value: ir.Value | None, tail: set[ir.Node]) -> bool:
    """Whether a value is scores: what a Sigmoid or Softmax gives, however reshaped and joined."""
    node = None if value is None else value.producer()
    if node is None or node not in tail:
        return False
    if node.op_type in _BOUNDED:
        return True
    if node.op_type == "Clip":
        return constant_scalar(node, 1) == 0.0 and constant_scalar(node, 2) == 1.0
    if node.op_type == "Concat":
        return all(_is_bounded(one, tail) for one in node.inputs)
    if node.op_type in ("Mul", "Sqrt", "Pow"):  # objectness times class; its root
        operands = [one for one in node.inputs if constant(one) is None]
        return all(_is_bounded(one, tail) for one in operands) and len(operands) == len(node.inputs)
    return node.op_type in _SHAPING and _is_bounded(node.inputs[0], tail)


def _starts(members: Iterable[ir.Node]) -> list[str]:
    """Return the values that come into the post-processing from the network before it."""
    inside = set(members)
    entering = dict.fromkeys(
        str(value.name)
        for node in members
        for value in node.inputs
        if value is not None and value.producer() is not None and value.producer() not in inside
    )
    return list(entering)
