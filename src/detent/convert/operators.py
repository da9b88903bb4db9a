"""The operators that quantize, by the names that different tools gave them.

A family is a pair of operators, one to codes and one back. All of them compute the same:

    code = saturate(round_half_even(x / scale) + zero_point)        x = (code - zero_point) * scale

A fused operator does both in one node, float to float.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

QUARK_DOMAIN = "com.amd.quark"
VITIS_DOMAIN = "com.vai.quantize"
CONTRIB_DOMAIN = "ai.onnx.contrib"
MICROSOFT_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class Family:
    """A pair of operators in a domain."""

    domain: str
    quantize: str
    dequantize: str


STANDARD = Family("", "QuantizeLinear", "DequantizeLinear")
MICROSOFT = Family(MICROSOFT_DOMAIN, "QuantizeLinear", "DequantizeLinear")
EXTENDED = Family(QUARK_DOMAIN, "ExtendedQuantizeLinear", "ExtendedDequantizeLinear")
VITIS = Family(VITIS_DOMAIN, "VitisQuantizeLinear", "VitisDequantizeLinear")
VAI = Family(CONTRIB_DOMAIN, "VaiQuantize", "VaiDeQuantize")

_QUANTIZE = {(family.domain, family.quantize): family for family in (STANDARD, MICROSOFT, EXTENDED, VITIS, VAI)}
_DEQUANTIZE = {(family.domain, family.dequantize): family for family in (STANDARD, MICROSOFT, EXTENDED, VITIS, VAI)}

QUARK_TO_VITIS = {
    "ExtendedInstanceNormalization": "VitisInstanceNormalization",
    "ExtendedLSTM": "VitisLSTM",
    "BFPQuantizeDequantize": "BFPFixNeuron",
    "MXQuantizeDequantize": "MXFixNeuron",
}
"""Operators besides Q and DQ that only changed their names from one generation to the next."""

_FIX_NEURON = {(domain, "FixNeuron") for domain in (CONTRIB_DOMAIN, VITIS_DOMAIN)}
_BLOCK = {(QUARK_DOMAIN, name) for name in ("BFPQuantizeDequantize", "MXQuantizeDequantize")} | {
    (VITIS_DOMAIN, name) for name in ("BFPFixNeuron", "MXFixNeuron")
}
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
    return node is not None and (node.domain, node.op_type) in _FIX_NEURON


def is_block_format(node: ir.Node | None) -> bool:
    """Whether the node rounds to a block floating point format and back at once."""
    return node is not None and (node.domain, node.op_type) in _BLOCK


def renamed(node: ir.Node, family: Family) -> str | None:
    """What an operator besides Q and DQ is called in the generation of a family, where that is another name."""
    names = QUARK_TO_VITIS if family == VITIS else {new: old for old, new in QUARK_TO_VITIS.items()}
    return names.get(node.op_type) if node.domain in (QUARK_DOMAIN, VITIS_DOMAIN) else None


def computes_on_codes(node: ir.Node) -> bool:
    """Whether the node is an operator of the QOperator kind."""
    return node.op_type in _ON_CODES


def is_quantizing(node: ir.Node) -> bool:
    """Whether the node has to do with quantization at all."""
    named = quantize_family(node) or dequantize_family(node)
    return bool(named) or is_fix_neuron(node) or is_block_format(node) or computes_on_codes(node)
