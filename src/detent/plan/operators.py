"""What quantizing an operator means: which of its inputs carry data, which is the bias, and what its output shares.

One table, read by everything that must know. An operator that is not in it stays float.

A scale per channel goes along the output channels. A block that shares an exponent, or a group that shares a scale,
lies along the axis that products are summed over, because a device multiplies whole blocks:

| tensor                     | channels           | summed                                          |
| -------------------------- | ------------------ | ----------------------------------------------- |
| Conv weight, input, output | 0                  | 1                                               |
| ConvTranspose weight       | 1 (without groups) | 0                                               |
| MatMul A, output           |                    | last                                            |
| MatMul B                   | last               | last but one                                    |
| Gemm A                     |                    | 1, or 0 with transA                             |
| Gemm B                     | 1, or 0 (transB)   | 0, or 1 with transB                             |
| table of a Gather          | its axis           |                                                 |
| Softmax input              |                    | its axis                                        |
| anything else              |                    | 1, or of a vector 0                             |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import onnx_ir as ir

from detent.graph.values import constant, constant_scalar


@dataclass(frozen=True)
class Operator:
    """How one operator type is quantized.

    `data`: the inputs that are quantized (None: all of them); the others are shapes, axes or bounds.
    `bias`: the input that is added to the products of the others.
    `moves_data`: the output holds values of the input and nothing new, so both live on one grid.
    `largest`: the largest magnitude of the output, where the operator alone settles it.
    `spread`: that is shared out among many numbers, so that few come near it.
    `declines`: a reason not to quantize this particular node, or None.
    """

    data: tuple[int, ...] | None = None
    bias: int | None = None
    moves_data: bool = False
    largest: float | None = None
    spread: bool = False
    declines: Callable[[ir.Node], str | None] | None = None


def _unusual_hard_sigmoid(node: ir.Node) -> str | None:
    alpha = node.attributes.get_float("alpha", 0.2)
    beta = node.attributes.get_float("beta", 0.5)
    if math.isclose(alpha, 1 / 6, abs_tol=1e-6) and math.isclose(beta, 0.5, abs_tol=1e-6):
        return None
    return f"the device has only HardSigmoid with alpha 1/6 and beta 0.5, not {alpha:g} and {beta:g}"


def _dilated(node: ir.Node) -> str | None:
    if set(node.attributes.get_ints("dilations", [1]) or [1]) == {1}:
        return None
    return "it is dilated, which onnxruntime's pool on codes does not know"


def _unsteady_power(node: ir.Node) -> str | None:
    exponent = constant_scalar(node, 1)
    if exponent is None:
        return "its exponent is not a single constant"
    return None if exponent >= 0 else "a negative power of what is rounded to zero is infinite"


_FIRST = Operator(data=(0,))
_MOVES = Operator(data=(0,), moves_data=True)
_PRODUCT = Operator(data=(0, 1), bias=2)
_ALL = Operator()
_NONE = Operator(data=())

OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), _PRODUCT),
    **dict.fromkeys(("MatMul", "PRelu"), _ALL),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Min", "Max", "Concat"), _ALL),
    **dict.fromkeys(
        ("Relu", "Clip", "LeakyRelu", "Tanh", "Erf", "Gelu", "HardSwish", "GlobalAveragePool",
         "ReduceMean", "ReduceSum", "Sqrt", "Reciprocal", "Neg", "LogSoftmax", "Slice", "Split", "Pad",
         "LpNormalization", "ArgMax", "GroupNormalization", "RMSNormalization", "RotaryEmbedding"),
        _FIRST,
    ),
    **dict.fromkeys(
        ("MaxPool", "GlobalMaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Resize", "Gather",
         "DepthToSpace", "SpaceToDepth", "Expand", "ReduceMax", "ReduceMin"),
        _MOVES,
    ),
    "AveragePool": Operator(data=(0,), declines=_dilated),
    "Sigmoid": Operator(data=(0,), largest=1.0),
    "HardSigmoid": Operator(data=(0,), largest=1.0, declines=_unusual_hard_sigmoid),
    "Softmax": Operator(data=(0,), largest=1.0, spread=True),
    "Pow": Operator(data=(0,), declines=_unsteady_power),
    # Queries, keys and values; a mask and what was computed before are not on their grids.
    "Attention": Operator(data=(0, 1, 2)),
    # The input and the weights: the loop inside is computed in float, from them and from the states and biases.
    **dict.fromkeys(("LSTM", "GRU", "RNN"), Operator(data=(0, 1, 2))),
    "Where": Operator(data=(1, 2)),
    "InstanceNormalization": Operator(data=(0, 1, 2)),
    # Its scale and bias stay float: a few numbers, which save nothing. In transformers a few of them are many times as
    # large as the others, and on one grid with these, the others would be lost.
    "LayerNormalization": _FIRST,
}  # fmt: skip

# Operators that are quantized only in recipes that ask for them, and have inputs that must not be.
_ASKED_FOR: dict[str, Operator] = {
    # Probabilities, thresholds and coordinates are not data.
    **dict.fromkeys(
        ("Dropout", "TopK", "GridSample", "RoiAlign", "Upsample", "BatchNormalization", "CumSum", "Trilu"),
        _FIRST,
    ),
    **dict.fromkeys(
        ("Shape", "Size", "NonMaxSuppression", "Range", "OneHot", "NonZero", "IsNaN", "IsInf",
         "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        _NONE,
    ),
}  # fmt: skip

# The bounds of Clips that the device computes together with the layer before them.
DEVICE_CLIPS = ((0.0, 6.0), (0.0, 1.0))

_FUSING_PRODUCERS = frozenset(
    ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "MaxPool", "AveragePool", "GlobalAveragePool")
)


def operator_of(node: ir.Node) -> Operator:
    """Return how a node is quantized. Of an operator that is asked for and not in the table, all float data is."""
    return OPERATORS.get(node.op_type) or _ASKED_FOR.get(node.op_type, _ALL)


def is_fused_edge(producer: ir.Node, consumer: ir.Node, fuse: Collection[str]) -> bool:
    """Return whether the device computes both nodes at once: the value between them never exists as 8-bit codes.

    `fuse` are the activation functions for which it does.
    """
    if producer.op_type == "Pad":
        return consumer.op_type in ("AveragePool", "GlobalAveragePool")
    if producer.op_type not in _FUSING_PRODUCERS or consumer.op_type not in fuse:
        return False
    if consumer.op_type == "Clip":
        return (constant_scalar(consumer, 1), constant_scalar(consumer, 2)) in DEVICE_CLIPS
    return True


def channel_axis(node: ir.Node, weight: ir.Value, bias: ir.Value | None) -> int | None:
    """Return the axis of the output channels of a layer's weight, or of a table's entries; None if it has none."""
    if node.op_type == "Gather" and weight is node.inputs[0]:
        # Entries are read one by one: each may have a scale, and those of rare words are far smaller than the largest.
        return node.attributes.get_int("axis", 0) if _rank(weight) > 1 else None
    if len(node.inputs) < 2 or weight is not node.inputs[1] or _rank(weight) < 2:
        return None
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        # With groups the axis holds the channels of one group, and no scale per output channel can be written there.
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if node.op_type == "Gemm":
        axis = 0 if node.attributes.get_int("transB", 0) else 1
        # One number that is added to all channels cannot be counted in a unit of each.
        added = constant(bias)
        channels = None if weight.shape is None else weight.shape[axis]
        return axis if added is None or added.shape[-1:] == (channels,) else None
    return _rank(weight) - 1 if node.op_type == "MatMul" else None


def summed_axis(value: ir.Value) -> int:
    """Return the axis along which a value's neighbours meet in a sum, as the first reader that settles it has it."""
    for node, index in value.uses():
        axis = _read_along(node, index, value)
        if axis is not None:
            return axis
    producer = value.producer()
    if producer is not None and producer.op_type == "MatMul":
        return max(_rank(value) - 1, 0)
    return min(1, max(_rank(value) - 1, 0))


def _read_along(node: ir.Node, index: int, value: ir.Value) -> int | None:
    rank = _rank(value)
    if node.op_type == "MatMul" and rank:
        return rank - 1 if index == 0 else max(rank - 2, 0)
    if node.op_type == "Gemm" and index < 2:
        transposed = node.attributes.get_int("transA" if index == 0 else "transB", 0)
        return int(bool(transposed)) if index else 1 - int(bool(transposed))
    if node.op_type == "ConvTranspose" and index == 1:
        return 0
    if node.op_type == "Softmax" and rank:
        return node.attributes.get_int("axis", -1) % rank
    return None


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)
