"""The operators outside of ONNX that quantized models are written with, and what each of them does.

Two generations of the same tools named them: com.vai.quantize is the older one, com.amd.quark the newer. Only the
names differ. FixNeuron is older still: it stood in ai.onnx.contrib, where its compiler looks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

QUARK = "com.amd.quark"
VITIS = "com.vai.quantize"
CONTRIB = "ai.onnx.contrib"
DOMAINS = (QUARK, VITIS, CONTRIB)

DOMAIN_VERSION = 1


class Operator(NamedTuple):
    """An operator by its domain and its name."""

    domain: str
    name: str

    @classmethod
    def of(cls, node: ir.Node) -> Operator:
        """The operator that a node calls."""
        return cls(node.domain, node.op_type)

    def __str__(self) -> str:
        return f"{self.domain}::{self.name}"


QUARK_OF_VITIS: Mapping[str, str] = MappingProxyType(
    {
        "VitisQuantizeLinear": "ExtendedQuantizeLinear",
        "VitisDequantizeLinear": "ExtendedDequantizeLinear",
        "VitisInstanceNormalization": "ExtendedInstanceNormalization",
        "VitisLSTM": "ExtendedLSTM",
        "BFPFixNeuron": "BFPQuantizeDequantize",
        "MXFixNeuron": "MXQuantizeDequantize",
    }
)
"""The name in com.amd.quark of each operator of com.vai.quantize: same inputs, attributes and meaning."""

VITIS_OF_QUARK: Mapping[str, str] = MappingProxyType({new: old for old, new in QUARK_OF_VITIS.items()})


def both_generations(quark_name: str) -> tuple[Operator, Operator]:
    """An operator of com.amd.quark and its twin in com.vai.quantize."""
    return Operator(QUARK, quark_name), Operator(VITIS, VITIS_OF_QUARK[quark_name])


FIX_NEURON = Operator(CONTRIB, "FixNeuron")

QUANTIZERS = frozenset(both_generations("ExtendedQuantizeLinear"))
"""Those that turn numbers into codes."""

DEQUANTIZERS = frozenset(both_generations("ExtendedDequantizeLinear"))
"""Those that turn codes into numbers."""

BLOCK_QUANTIZERS = frozenset((*both_generations("BFPQuantizeDequantize"), *both_generations("MXQuantizeDequantize")))
"""Those that do both at once, with an exponent for each block of neighbours and no scale of their own."""

FUSED = BLOCK_QUANTIZERS | {FIX_NEURON}
"""All that quantize and dequantize in one node."""
