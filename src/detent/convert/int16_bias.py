"""Biases of 32 bits to 16 bits, with a scale of their own.

A bias of 32 bits has the product of its layer's scales, which is so fine that 16 bits may not reach. The new scale is
the old one times the least power of two at which no element clips:

    scale' = scale * 2^k        code' = round_half_even(code / 2^k)

So a power of two stays one, and a bias that fits is unchanged to the bit. With a scale for each channel, each has a k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.domains import settle_domains
from detent.convert.linear import Linear, code_range, linear_of
from detent.convert.operators import MICROSOFT, STANDARD, dequantize_family
from detent.convert.rewriting import retarget
from detent.convert.step import Notes, Step
from detent.convert.to_qdq import family_for
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant, input_at, set_input
from detent.prepare.base import main_opset

_BIAS_INPUT = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}


@dataclass(frozen=True)
class Int16Bias(Step):
    """Int32 biases of Conv, ConvTranspose, Gemm, and Add behind a MatMul, to int16."""

    nothing: ClassVar[str] = "it has no int32 bias behind a DequantizeLinear."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        names, opset = Names(model), main_opset(model)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                linear = linear_of(node) if dequantize_family(node) else None
                codes = None if linear is None else constant(node.inputs[0])
                if linear is None or codes is None or codes.dtype != np.int32:
                    continue
                if linear.zero_point.any() or not all(_reads_bias(use.node, use.idx) for use in node.outputs[0].uses()):
                    notes.decline(node, "it is int32, but not a bias with zero point 0")
                    continue
                _convert(graph, node, codes, linear, opset, names, notes)
        settle_domains(model)
        return model


def _reads_bias(node: ir.Node, index: int) -> bool:
    return _BIAS_INPUT.get(node.op_type) == index or node.op_type == "Add"


def shifts_needed(codes: npt.NDArray[Any], channels: int) -> npt.NDArray[np.int64]:
    """For each scale, the least k with which all its codes fit 16 bits."""
    _, high = code_range(np.dtype(np.int16))
    largest = np.abs(codes.astype(np.int64).reshape(channels, -1)).max(axis=1)
    shifts = np.zeros(channels, np.int64)
    for k in range(1, 18):
        # rounded half to even: what is compared is what will be stored
        shifts[np.rint(largest / 2.0 ** (k - 1)) > high] = k
    return shifts


def _convert(
    graph: ir.Graph, node: ir.Node, codes: npt.NDArray[Any], linear: Linear, opset: int, names: Names, notes: Notes
) -> None:
    shifts = shifts_needed(codes, linear.scale.size)
    factor = np.ldexp(1.0, shifts)
    spread = factor.reshape(linear.scale.shape) if not linear.per_tensor else factor.reshape(())
    narrowed = np.rint(codes / (spread if linear.per_tensor else factor)).astype(np.int16)
    base = str(node.outputs[0].name)
    source, scale, zero_point = node.inputs[0], node.inputs[1], input_at(node, 2)
    assert source is not None and scale is not None
    new_scale = (linear.scale.astype(np.float64) * factor.reshape(linear.scale.shape)).astype(linear.scale.dtype)
    set_input(node, 0, add_initializer(graph, names.fresh(f"{source.name}_int16"), narrowed))
    set_input(node, 1, add_initializer(graph, names.fresh(f"{scale.name}_int16"), new_scale))
    point = names.fresh(f"{base}_zero_point" if zero_point is None else f"{zero_point.name}_int16")
    set_input(node, 2, add_initializer(graph, point, np.zeros(linear.scale.shape, np.int16)))
    family = family_for("int16", opset, quantizes=False)
    if dequantize_family(node) in (STANDARD, MICROSOFT) and family is not None and family != dequantize_family(node):
        retarget(graph, node, family, linear, names)
    moved = int(shifts.max())
    notes.changed(node, "bias is int16 now" + (f", its scale up to 2^{moved} times as large" if moved else ", exactly"))
