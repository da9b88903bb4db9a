"""A model's proto without its large weights, for onnx's C++ functions.

These serialise what they are given, which fails past 2 GB and is slow below, and they need only the small constants
(axes, scales, shapes). So large initializers stand among the inputs instead, with their types and shapes.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

SMALL = 4096
"""Bytes; constants up to this size stay, since shapes may be computed from them."""


def light_proto(model: ir.Model) -> onnx.ModelProto:
    """The proto of `model` with every initializer above SMALL bytes turned into an input. The model is unchanged."""
    graph = model.graph
    inputs, initializers = list(graph.inputs), list(graph.initializers.values())
    tensors = {value: value.const_value for value in initializers}
    for value, tensor in tensors.items():
        if tensor is not None and tensor.nbytes > SMALL:
            del graph.initializers[str(value.name)]
            value.const_value = None
            value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
            graph.inputs.append(value)
    try:
        return ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()  # all of them, so that the order comes back as well
        for value, tensor in tensors.items():
            value.const_value = tensor
            graph.register_initializer(value)
