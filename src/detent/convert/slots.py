"""Which inputs and outputs of a node may change from float32 to another float type, as the operator's schema says.

A slot is fixed where the schema writes tensor(float) itself, as for the scales of Resize. A node stays in float32 as a
whole where one of its type parameters does not have the other type, where its operator is not ONNX's own, and where
its attributes rather than its inputs decide the type of what it makes.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir

_FIXED = "tensor(float)"
_CARRIERS = ("If", "Loop", "Scan")
_MAKERS = (
    "Bernoulli",
    "BlackmanWindow",
    "EyeLike",
    "HammingWindow",
    "HannWindow",
    "MelWeightMatrix",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


class Slot(enum.Enum):
    """How an input or output may be typed."""

    FREE = "free"
    FIXED = "fixed"


def stays_float(node: ir.Node, opset: int, target: ir.DataType) -> bool:
    """Whether a node cannot compute in `target`."""
    if node.domain != "" or node.op_type in _MAKERS:
        return True
    if node.op_type in _CARRIERS:
        return False
    if node.op_type == "Constant":
        return "value" not in node.attributes
    schema = _schema(node.op_type, opset)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    name = f"tensor({target.name.lower()})"
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            if value is None or value.dtype != ir.DataType.FLOAT:
                continue
            kind = _formal(formals, index)
            if kind in allowed and name not in allowed[kind]:
                return True
    return False


def input_slot(node: ir.Node, index: int, opset: int) -> Slot:
    """How an input may be typed."""
    if node.domain != "" or node.op_type in _CARRIERS:
        return Slot.FREE
    return Slot.FIXED if _formal(_schema(node.op_type, opset).inputs, index) == _FIXED else Slot.FREE


def output_slot(node: ir.Node, index: int, opset: int) -> Slot:
    """How an output may be typed."""
    if node.domain != "" or node.op_type in _CARRIERS:
        return Slot.FREE
    return Slot.FIXED if _formal(_schema(node.op_type, opset).outputs, index) == _FIXED else Slot.FREE


@lru_cache(maxsize=512)
def _schema(op_type: str, opset: int) -> Any:
    return onnx.defs.get_schema(op_type, opset, "")


def _formal(formals: Any, index: int) -> str:
    """The type of a parameter; the last one may be variadic."""
    return str(formals[min(index, len(formals) - 1)].type_str)
