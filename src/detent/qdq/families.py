"""The families of quantizing operators: one table of what each tool calls them, and which codes they hold.

Linear operators of all families compute the same:

    code = saturate(round_half_even(x / scale) + zero_point)        x = (code - zero_point) * scale

A family has a pair of operators, one to codes and one back, or fused operators that do both in one node, float to
float. Two generations of the same tools named their own: com.vai.quantize is the older one, com.amd.quark the newer,
and only the names differ. FixNeuron is older still; its compiler looks for it in ai.onnx.contrib.

Operators on codes (QLinearConv and the like) take codes, scales and zero points, and write codes: see `ON_CODES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

QUARK = "com.amd.quark"
VITIS_DOMAIN = "com.vai.quantize"
CONTRIB = "ai.onnx.contrib"
# Domains whose operators need a model-local function: no runtime has them.
FOREIGN_DOMAINS = (QUARK, VITIS_DOMAIN, CONTRIB)


class OperatorName(NamedTuple):
    """An operator by its domain and its name."""

    domain: str
    name: str

    @classmethod
    def of(cls, node: ir.Node) -> OperatorName:
        return cls(node.domain, node.op_type)

    def __str__(self) -> str:
        return f"{self.domain}::{self.name}" if self.domain else self.name


@dataclass(frozen=True, eq=False)
class Family:
    """The quantizing operators of one tool. An empty name means that the family has no such operator.

    `code_types` maps each type of codes to the least opset of the model at which the family holds it;
    `only_dequantized` are types that it reads and does not write. `layers` are other operators that the other
    generation of the tools has under another name. `has_blocks`: it can have a scale for each block along an axis.
    """

    domain: str
    quantize: str = ""
    dequantize: str = ""
    fix_neuron: str = ""
    block_float: str = ""
    microscaling: str = ""
    code_types: Mapping[str, int] = field(default_factory=dict)
    only_dequantized: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    has_blocks: bool = False

    def holds(self, dtype: str, opset: int, *, quantizes: bool = False) -> bool:
        """Return whether the family has codes of a type in a model of this opset."""
        if quantizes and dtype in self.only_dequantized:
            return False
        return opset >= self.code_types.get(dtype, opset + 1)

    @property
    def operators(self) -> tuple[str, ...]:
        """All names, in an order that is the same for every family."""
        return (self.quantize, self.dequantize, self.fix_neuron, self.block_float, self.microscaling, *self.layers)


_BYTES = {"int8": 10, "uint8": 10, "int32": 10}
_SMALL_AND_WIDE = ("int4", "uint4", "int16", "uint16")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_OWN_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16")

STANDARD = Family(
    "",
    "QuantizeLinear",
    "DequantizeLinear",
    code_types={**_BYTES, **dict.fromkeys(_SMALL_AND_WIDE, 21), **dict.fromkeys(_FLOAT8, 19)},
    only_dequantized=("int32",),
    has_blocks=True,
)
MICROSOFT = Family(
    "com.microsoft",
    "QuantizeLinear",
    "DequantizeLinear",
    code_types=dict.fromkeys(_SMALL_AND_WIDE, 1),
    has_blocks=True,
)
EXTENDED = Family(
    QUARK,
    "ExtendedQuantizeLinear",
    "ExtendedDequantizeLinear",
    block_float="BFPQuantizeDequantize",
    microscaling="MXQuantizeDequantize",
    code_types=dict.fromkeys(_OWN_TYPES, 1),
    layers=("ExtendedInstanceNormalization", "ExtendedLSTM"),
)
VITIS = Family(
    VITIS_DOMAIN,
    "VitisQuantizeLinear",
    "VitisDequantizeLinear",
    block_float="BFPFixNeuron",
    microscaling="MXFixNeuron",
    code_types=dict.fromkeys(_OWN_TYPES, 1),
    layers=("VitisInstanceNormalization", "VitisLSTM"),
)
VAI = Family(CONTRIB, "VaiQuantize", "VaiDeQuantize", code_types=dict.fromkeys(_OWN_TYPES, 1))
FIX_NEURON = Family(CONTRIB, fix_neuron="FixNeuron", code_types={"int8": 1, "int16": 1})
FAMILIES = (STANDARD, MICROSOFT, EXTENDED, VITIS, VAI, FIX_NEURON)

_QUANTIZE = {(family.domain, family.quantize): family for family in FAMILIES if family.quantize}
_DEQUANTIZE = {(family.domain, family.dequantize): family for family in FAMILIES if family.dequantize}
_BLOCKS = {(family.domain, name) for family in FAMILIES for name in (family.block_float, family.microscaling) if name}


def native_family(dtype: str, opset: int, *, quantizes: bool) -> Family | None:
    """Return the family with kernels in onnxruntime that holds codes of a type at an opset; None if there is none.

    ONNX's operators are preferred. Before the opset that brought a type to them (21 for 16 bits), their twins in
    com.microsoft hold it.
    """
    # Standard operators first: device compilers know these, and not all know onnxruntime's.
    return next((family for family in (STANDARD, MICROSOFT) if family.holds(dtype, opset, quantizes=quantizes)), None)


def quantize_family(node: ir.Node | None) -> Family | None:
    """Return the family of an operator from float to codes, or None for any other operator."""
    return None if node is None else _QUANTIZE.get((node.domain, node.op_type))


def dequantize_family(node: ir.Node | None) -> Family | None:
    """Return the family of an operator from codes to float, or None for any other operator."""
    return None if node is None else _DEQUANTIZE.get((node.domain, node.op_type))


def is_native_quantize(node: ir.Node | None) -> bool:
    """Return whether the node is a QuantizeLinear of ONNX or of onnxruntime."""
    return quantize_family(node) in (STANDARD, MICROSOFT)


def is_native_dequantize(node: ir.Node | None) -> bool:
    """Return whether the node is a DequantizeLinear of ONNX or of onnxruntime."""
    return dequantize_family(node) in (STANDARD, MICROSOFT)


def is_fix_neuron(node: ir.Node | None) -> bool:
    """Return whether the node rounds to integer codes and back at once."""
    return node is not None and (node.domain, node.op_type) == (FIX_NEURON.domain, FIX_NEURON.fix_neuron)


def is_block_format(node: ir.Node | None) -> bool:
    """Return whether the node rounds to a block format and back at once."""
    return node is not None and (node.domain, node.op_type) in _BLOCKS


def twin_name(node: ir.Node, family: Family) -> str | None:
    """Return the name that a family has for a node's operator of the other generation; None for other operators."""
    other = {EXTENDED: VITIS, VITIS: EXTENDED}.get(family)
    if other is None or node.domain != other.domain or node.op_type not in other.operators:
        return None
    return family.operators[other.operators.index(node.op_type)]


@dataclass(frozen=True)
class OnCodes:
    """The float operator that an operator on codes stands for, and where its inputs are.

    Codes, scale and zero point of each operand follow each other. `plain` inputs are not codes. Without `operands`,
    all inputs behind the scale and zero point of the result are operands.
    """

    op_type: str
    operands: tuple[int, ...] = (0,)
    result: int = 3
    bias: int | None = None
    plain: tuple[int, ...] = ()


ON_CODES: Mapping[str, OnCodes] = MappingProxyType(
    {
        "QLinearConv": OnCodes("Conv", (0, 3), 6, bias=8),
        "QLinearMatMul": OnCodes("MatMul", (0, 3), 6),
        "QGemm": OnCodes("Gemm", (0, 3), 7, bias=6),
        "QLinearAdd": OnCodes("Add", (0, 3), 6),
        "QLinearMul": OnCodes("Mul", (0, 3), 6),
        "QLinearWhere": OnCodes("Where", (1, 4), 7, plain=(0,)),
        "QLinearConcat": OnCodes("Concat", (), 0),
        "QLinearSigmoid": OnCodes("Sigmoid"),
        "QLinearLeakyRelu": OnCodes("LeakyRelu"),
        "QLinearSoftmax": OnCodes("Softmax"),
        "QLinearAveragePool": OnCodes("AveragePool"),
        "QLinearGlobalAveragePool": OnCodes("GlobalAveragePool"),
    }
)
# Operators of dynamic quantization: scales are computed while the model runs.
DYNAMIC_LSTM = "DynamicQuantizeLSTM"
DYNAMIC = ("DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", DYNAMIC_LSTM)

# Operators that only select, repeat or rearrange elements of their first input: they can work on codes as well.
MOVES_CODES = (
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "GatherElements", "GatherND",
    "Expand", "Tile", "Identity",
)  # fmt: skip


def on_codes(node: ir.Node) -> OnCodes | None:
    """Return the form of an operator on codes, or None for any other operator."""
    return ON_CODES.get(node.op_type) if node.domain in (STANDARD.domain, MICROSOFT.domain) else None


def computes_on_codes(node: ir.Node) -> bool:
    """Return whether the node computes on codes, whether its scales are constant or not."""
    return node.op_type in ON_CODES or node.op_type in (*DYNAMIC, "MatMulNBits")


def is_quantizing(node: ir.Node) -> bool:
    """Return whether the node has to do with quantization at all."""
    named = quantize_family(node) or dequantize_family(node)
    return bool(named) or is_fix_neuron(node) or is_block_format(node) or computes_on_codes(node)
