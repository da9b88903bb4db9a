"""The operators that quantize, by the names that different tools gave them.

A family is a pair of operators, one to codes and one back. All of them compute the same:

    code = saturate(round_half_even(x / scale) + zero_point)        x = (code - zero_point) * scale

A fused operator does both in one node, float to float.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from detent.emit import functions
from detent.emit.functions import BLOCK_QUANTIZERS, FIX_NEURON, QUARK_OF_VITIS, VITIS_OF_QUARK, Operator


@dataclass(frozen=True)
class Family:
    """A pair of operators in a domain."""

    domain: str
    quantize: str
    dequantize: str


STANDARD = Family("", "QuantizeLinear", "DequantizeLinear")
MICROSOFT = Family("com.microsoft", "QuantizeLinear", "DequantizeLinear")
EXTENDED = Family(functions.QUARK, "ExtendedQuantizeLinear", "ExtendedDequantizeLinear")
VITIS = Family(functions.VITIS, "VitisQuantizeLinear", "VitisDequantizeLinear")
VAI = Family(functions.CONTRIB, "VaiQuantize", "VaiDeQuantize")

_QUANTIZE = {(family.domain, family.quantize): family for family in (STANDARD, MICROSOFT, EXTENDED, VITIS, VAI)}
_DEQUANTIZE = {(family.domain, family.dequantize): family for family in (STANDARD, MICROSOFT, EXTENDED, VITIS, VAI)}

_ON_CODES = (
    "QLinearConv",
    "QLinearMatMul",
    "QLinearAdd",
    "QLinearMul",
    "QGemm",
    "ConvInteger",
    "MatMulInteger",
    "DynamicQuantizeLinear",
    "MatMulNBits",
)


def quantize_family(node: ir.Node | None) -> Family | None:
    """The family of an operator from float to codes; None for any other."""
    return None if node is None else _QUANTIZE.get((node.domain, node.op_type))


def dequantize_family(node: ir.Node | None) -> Family | None:
    """The family of an operator from codes to float; None for any other."""
    return None if node is None else _DEQUANTIZE.get((node.domain, node.op_type))


def is_fix_neuron(node: ir.Node | None) -> bool:
    """Whether the node rounds to integer codes and back at once."""
    return node is not None and Operator.of(node) == FIX_NEURON


def is_block_format(node: ir.Node | None) -> bool:
    """Whether the node rounds to a block floating point format and back at once."""
    return node is not None and Operator.of(node) in BLOCK_QUANTIZERS


def renamed(node: ir.Node, family: Family) -> str | None:
    """What an operator besides Q and DQ is called in the generation of a family, where that is another name."""
    if node.domain == functions.QUARK and family == VITIS:
        return VITIS_OF_QUARK.get(node.op_type)
    return QUARK_OF_VITIS.get(node.op_type) if node.domain == functions.VITIS and family == EXTENDED else None


def computes_on_codes(node: ir.Node) -> bool:
    """Whether the node is an operator of the QOperator kind."""
    return node.op_type in _ON_CODES


def is_quantizing(node: ir.Node) -> bool:
    """Whether the node has to do with quantization at all."""
    named = quantize_family(node) or dequantize_family(node)
    return bool(named) or is_fix_neuron(node) or is_block_format(node) or computes_on_codes(node)
