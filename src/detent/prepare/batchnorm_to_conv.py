"""BatchNormalization that no layer could absorb becomes a 1x1 depthwise Conv.

At inference it is y = scale * x + shift per channel (see `batchnorm`). A Conv with one group per channel and a kernel
of one element multiplies every channel by its weight and adds its bias: the same function, in an operator that NPUs
run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant, cut_inputs, is_standard, rank, set_input
from detent.prepare.affine import Affine
from detent.prepare.base import Pass
from detent.prepare.batchnorm import read_batchnorm


class BatchNormToConv(Pass):
    """Replace BatchNormalization by a depthwise Conv.

    Cases:
    - parameters are constant and the input has 3, 4 or 5 dimensions;
    - declined: another rank or an unknown one, training mode, parameters that are not constant.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every BatchNormalization of the main graph."""
        for node in model.graph:
            if is_standard(node, "BatchNormalization"):
                reason = self._convert(model, node)
                if reason is not None:
                    self.decline(node, reason)

    def _convert(self, model: ir.Model, node: ir.Node) -> str | None:
        affine = read_batchnorm(node)
        if isinstance(affine, str):
            return affine
        dims = rank(node.inputs[0])
        if dims not in (3, 4, 5):
            return "the rank of its input is not known" if dims is None else f"its input has {dims} dimensions"
        gamma = constant(node.inputs[1])
        if gamma is None or gamma.dtype not in (np.float32, np.float64):
            return "its parameters are not float32"
        self._rewrite(model, node, affine, [1] * (dims - 2), gamma.dtype)
        self.changed(node, f"became a depthwise Conv over {affine.scale.size} channels")
        return None

    def _rewrite(
        self, model: ir.Model, node: ir.Node, affine: Affine, kernel: list[int], dtype: np.dtype[np.generic]
    ) -> None:
        channels = affine.scale.size
        weight = affine.scale.reshape(channels, 1, *kernel).astype(dtype)
        cut_inputs(node, 3)
        set_input(node, 1, self.initializer(model, node, "conv_weight", weight))
        set_input(node, 2, self.initializer(model, node, "conv_bias", affine.shift.astype(dtype)))
        node.resize_outputs(1)
        node.op_type = "Conv"
        node.attributes.clear()
        node.attributes["group"] = ir.AttrInt64("group", channels)
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", kernel)
