"""Model-local functions: quantization operators that ONNX does not have, defined in those that it has."""

from detent.emit.functions.library import add_functions
from detent.emit.functions.names import (
    BLOCK_QUANTIZERS,
    CONTRIB,
    DEQUANTIZERS,
    FIX_NEURON,
    FUSED,
    QUANTIZERS,
    QUARK,
    QUARK_OF_VITIS,
    VITIS,
    VITIS_OF_QUARK,
    Operator,
    both_generations,
)

__all__ = [
    "BLOCK_QUANTIZERS",
    "CONTRIB",
    "DEQUANTIZERS",
    "FIX_NEURON",
    "FUSED",
    "QUANTIZERS",
    "QUARK",
    "QUARK_OF_VITIS",
    "VITIS",
    "VITIS_OF_QUARK",
    "Operator",
    "add_functions",
    "both_generations",
]
