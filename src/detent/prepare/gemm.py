"""Bring fully connected layers into one form: a Gemm without factors.

MatMulToGemm: for a matrix x, Gemm computes x @ W + b in one node: the same products and the same sum as MatMul and Add.
With more dimensions Gemm does not apply, so the rank of x has to be known.

NormalizeGemm: Gemm computes alpha * A @ B + beta * C = A @ (alpha * B) + (beta * C). With B and C constant the factors
are multiplied in once, and a plain fully connected layer is left.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from detent.graph import values
from detent.prepare.affine import per_channel
from detent.prepare.base import OperatorPass, as_float64


class MatMulToGemm(OperatorPass):
    """Merge MatMul and the Add after it.

    Cases:
    - the weight is a constant matrix and the bias a constant with one entry, or one per column, on either side of Add;
    - declined: the input's rank is not known to be 2, or the product is used elsewhere;
    - left alone without a note: a MatMul of two computed values, and an Add of two computed values.
    """

    operators = ("Add",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        """Merge the Add with a MatMul on either side of it."""
        for index in (0, 1):
            layer = values.made_by(node.inputs[index], "MatMul")
            if layer is not None:
                return self._merge(model, layer, node, node.inputs[1 - index])
        return None

    def _merge(self, model: ir.Model, layer: ir.Node, add: ir.Node, bias: ir.Value | None) -> str | None:
        (product,), weight, shift = layer.outputs, values.constant(layer.inputs[1]), values.constant(bias)
        if weight is None or weight.ndim != 2 or shift is None:
            return None
        if values.rank(layer.inputs[0]) != 2:
            return f"the input of MatMul '{layer.name}' is not known to have rank 2"
        if weight.dtype not in (np.float32, np.float64):
            return f"the weight of MatMul '{layer.name}' is {weight.dtype}"
        if values.sole_use(product, model.graph) is None:
            return values.why_not_sole(product)
        vector = per_channel(shift, 2)
        columns = weight.shape[1]
        if vector is None or vector.size not in (1, columns):
            return f"the bias of shape {list(shift.shape)} is not one number per column"
        stored = np.broadcast_to(vector, (columns,)).astype(weight.dtype)
        layer.op_type = "Gemm"
        values.set_input(layer, 2, self.initializer(model, layer, "bias", stored))
        self.absorbed(model, add, layer, f"merged with MatMul '{layer.name}' into a Gemm")
        return None


class NormalizeGemm(OperatorPass):
    """Make alpha and beta of Gemm 1.

    Cases:
    - alpha goes into a constant B, beta into a constant C;
    - beta without C is dropped, and C with a beta of 0 is dropped;
    - declined, each on its own: a factor whose matrix is not constant.
    """

    operators = ("Gemm",)

    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        """Multiply both factors in."""
        self._absorb(model, node, "alpha", 1)
        self._absorb(model, node, "beta", 2)
        return None

    def _absorb(self, model: ir.Model, node: ir.Node, factor: str, index: int) -> None:
        number = node.attributes.get_float(factor, 1.0)
        value = values.input_at(node, index)
        if number == 1.0:
            return
        array = values.constant(value)
        if value is not None and number == 0.0 and factor == "beta":
            values.cut_inputs(node, 2)
        elif value is not None:
            if array is None or array.dtype not in (np.float32, np.float64):
                self.decline(node, f"{factor} is {number:g} and '{value.name}' is not constant")
                return
            role = "scaled_weight" if index == 1 else "scaled_bias"
            scaled = (as_float64(array) * number).astype(array.dtype)
            values.set_input(node, index, self.initializer(model, node, role, scaled))
        node.attributes.pop(factor)
        self.changed(node, f"{factor} {number:g} folded into its constants")
