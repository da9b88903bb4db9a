"""Which axis of a tensor means what: the output channels of a weight, and the numbers that are summed up.

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
| Softmax input              |                    | its axis                                        |
| anything else              |                    | 1, or of a vector 0                             |
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import constant


def channel_axis(node: ir.Node, weight: ir.Value, bias: ir.Value | None) -> int | None:
    """The axis of the output channels of a layer's weight; None where there is no such axis."""
    if len(node.inputs) < 2 or weight is not node.inputs[1]:
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
    return _rank(weight) - 1 if node.op_type == "MatMul" and _rank(weight) > 1 else None


def summed_axis(value: ir.Value) -> int:
    """The axis along which a value's neighbours meet in a sum, as the first reader that settles it has it."""
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
