"""Mul, Add, Sub and Div by a constant are folded into the layer before them.

With a constant c per channel, y * c, y / c, y + c, y - c and c - y are maps scale * y + shift. The layer that computes
y absorbs them by the algebra of `affine`. Conv without bias followed by Add is the most common of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, is_standard, rank, remove_node, sole_use, take_over, why_not_sole
from detent.prepare.affine import Affine, Array, fold_after
from detent.prepare.base import Pass, as_float64

_OPERATORS = ("Mul", "Add", "Sub", "Div")
_LAYERS = ("Conv", "ConvTranspose", "Gemm")


class FoldAffine(Pass):
    """Fold arithmetic with a constant into the Conv, ConvTranspose or Gemm before it.

    Cases:
    - the constant is a scalar or has one entry per output channel, and does not add dimensions to the result;
    - Mul and Add with the constant on either side, Sub on either side, Div by the constant;
    - chains fold from the layer outwards, one after the other;
    - declined: a constant per place or per sample, division by zero, and a layer whose output is used elsewhere or is a
      graph output, or whose parameters are not constant.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every such operator of the main graph."""
        for node in model.graph:
            if is_standard(node, *_OPERATORS):
                self._visit(model, node)

    def _visit(self, model: ir.Model, node: ir.Node) -> None:
        for index in (0, 1):
            source, array = node.inputs[index], constant(node.inputs[1 - index])
            layer = None if source is None else source.producer()
            if array is None or layer is None or not is_standard(layer, *_LAYERS):
                continue
            reason = self._fold(model, node, index, layer, array)
            if reason is not None:
                self.decline(node, reason)
            return

    def _fold(self, model: ir.Model, node: ir.Node, index: int, layer: ir.Node, array: npt.NDArray[Any]) -> str | None:
        """Fold the operator, which reads the layer at an input, into the layer; the reason where it cannot be."""
        (source,) = layer.outputs
        if sole_use(source, model.graph) is None:
            return why_not_sole(source)
        dims = 2 if layer.op_type == "Gemm" else rank(layer.inputs[1])
        vector = per_channel(array, dims)
        if vector is None:
            return f"its constant of shape {list(array.shape)} is not one number per channel"
        affine = _as_affine(node.op_type, vector, constant_first=index == 1)
        if affine is None:
            return "it divides by the layer's output" if index == 1 else "it divides by zero"
        reason = fold_after(self, model, layer, affine)
        if reason is not None:
            return reason
        take_over(node.outputs[0], source)
        remove_node(model.graph, node)
        self.merged(node, layer)
        self.changed(node, f"{node.op_type} folded into {layer.op_type} '{layer.name}'")
        return None


def per_channel(array: npt.NDArray[Any], dims: int | None) -> Array | None:
    """The constant as a vector over dimension 1 of a value with so many dimensions, or None where it is not one."""
    if dims is None or array.ndim > dims:
        return None
    shape = (1,) * (dims - array.ndim) + array.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    return as_float64(array).reshape(-1)


def _as_affine(op_type: str, vector: Array, constant_first: bool) -> Affine | None:
    """What the operator does to the layer's output, or None where that is not affine."""
    one, zero = np.ones_like(vector), np.zeros_like(vector)
    if op_type == "Mul":
        return Affine(vector, zero)
    if op_type == "Add":
        return Affine(one, vector)
    if op_type == "Sub":
        return Affine(-one, vector) if constant_first else Affine(one, -vector)
    if constant_first or not bool(np.all(vector)):
        return None
    return Affine(1.0 / vector, zero)
