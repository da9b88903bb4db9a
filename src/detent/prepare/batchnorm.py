"""What a BatchNormalization computes at inference, as a map per channel.

    y = gamma * (x - mean) / sqrt(var + epsilon) + beta  =  scale * x + shift

with scale = gamma / sqrt(var + epsilon) and shift = beta - mean * scale. The default of epsilon is 1e-5.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant, input_at, is_unused
from detent.prepare.affine import Affine
from detent.prepare.base import as_float64, int_attribute

_PARAMETERS = ("scale", "bias", "mean", "variance")


def read_batchnorm(node: ir.Node) -> Affine | str:
    """The map that a BatchNormalization is, or the reason why it is not a fixed one."""
    if int_attribute(node, "training_mode", 0):
        return "it is in training mode"
    if any(not is_unused(value) for value in node.outputs[1:]):
        return "its running statistics are used"
    arrays = []
    for index, name in enumerate(_PARAMETERS, start=1):
        array = constant(input_at(node, index))
        if array is None:
            return f"its {name} is not constant"
        arrays.append(as_float64(array).reshape(-1))
    gamma, beta, mean, variance = arrays
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    if not bool(np.all(variance + epsilon > 0)):
        return "its variance is not positive"
    scale = gamma / np.sqrt(variance + epsilon)
    return Affine(scale, beta - mean * scale)
