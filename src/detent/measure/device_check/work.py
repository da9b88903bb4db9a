"""How much a node multiplies: the products that it sums up, for one sample.

    Conv            output elements * (input channels / groups) * window
    ConvTranspose   input elements * (output channels / groups) * window
    MatMul, Gemm    output elements * length of the sums

A batch that is not fixed counts as one sample; where any other size is unknown, so is the number.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from detent.graph.values import input_at, is_standard, rank, static_shape, tensor_of

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def macs_of(node: ir.Node) -> int | None:
    """The multiplications of a node; 0 for one that is no layer, None where they are not known."""
    if not is_standard(node, *LAYERS):
        return 0
    source, weight = _sizes(input_at(node, 0)), _sizes(input_at(node, 1))
    result = _sizes(node.outputs[0])
    if not source or not weight or (result is None and node.op_type != "ConvTranspose"):
        return None
    if node.op_type == "ConvTranspose":
        return math.prod(source) * math.prod(weight[1:])
    assert result is not None
    if node.op_type == "Conv":
        return math.prod(result) * math.prod(weight[1:])
    if node.op_type == "Gemm":
        return math.prod(result) * source[0 if node.attributes.get_int("transA", 0) else -1]
    return math.prod(result) * source[-1]


def _sizes(value: ir.Value | None) -> list[int] | None:
    """The shape as numbers, an unknown batch being 1."""
    tensor = tensor_of(value)
    shape = static_shape(value) if tensor is None else [int(size) for size in tensor.shape.numpy()]
    if shape is None:
        return None
    if tensor is None and rank(value) and shape[0] is None:
        shape = [1, *shape[1:]]
    sizes = [size for size in shape if size is not None]
    return sizes if len(sizes) == len(shape) else None
