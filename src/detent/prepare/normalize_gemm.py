"""The factors of Gemm are folded into its constants.

Gemm computes alpha * A @ B + beta * C = A @ (alpha * B) + (beta * C). With B and C constant the factors can be
multiplied in once, and a plain fully connected layer is left.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.graph.values import constant, cut_inputs, input_at, is_standard, set_input
from detent.prepare.base import Pass, as_float64


class NormalizeGemm(Pass):
    """Make alpha and beta of Gemm 1.

    Cases:
    - alpha goes into a constant B, beta into a constant C;
    - beta without C is dropped, and C with a beta of 0 is dropped;
    - declined, each on its own: a factor whose matrix is not constant.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every Gemm of the main graph."""
        for node in model.graph:
            if is_standard(node, "Gemm"):
                self._absorb(model, node, "alpha", 1)
                self._absorb(model, node, "beta", 2)

    def _absorb(self, model: ir.Model, node: ir.Node, factor: str, index: int) -> None:
        number = node.attributes.get_float(factor, 1.0)
        value = input_at(node, index)
        if number == 1.0:
            return
        array = constant(value)
        if value is not None and number == 0.0 and factor == "beta":
            cut_inputs(node, 2)
        elif value is not None:
            if array is None or array.dtype not in (np.float32, np.float64):
                self.decline(node, f"{factor} is {number:g} and '{value.name}' is not constant")
                return
            role = "scaled_weight" if index == 1 else "scaled_bias"
            scaled = (as_float64(array) * number).astype(array.dtype)
            set_input(node, index, self.initializer(model, node, role, scaled))
        node.attributes.pop(factor)
        self.changed(node, f"{factor} {number:g} folded into its constants")
