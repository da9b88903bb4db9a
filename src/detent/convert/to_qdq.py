"""The operators of other tools to QuantizeLinear and DequantizeLinear of the standard domain.

16-bit codes came to them with opset 21; below it the twins in com.microsoft hold them. Codes of bfloat16 or float16
they do not hold at all: with scale 1 and zero point 0 such a pair is a pair of Casts, and becomes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from detent.convert.domains import settle_domains
from detent.convert.linear import Linear, linear_of
from detent.convert.operators import (
    MICROSOFT,
    STANDARD,
    Family,
    dequantize_family,
    is_block_format,
    is_fix_neuron,
    quantize_family,
)
from detent.convert.rewriting import retarget, split_fix_neuron
from detent.convert.step import Notes, Step
from detent.graph.names import Names
from detent.graph.values import cut_inputs
from detent.prepare.base import main_opset

_SINCE = {"int8": 10, "uint8": 10, "int32": 10, "int16": 21, "uint16": 21, "int4": 21, "uint4": 21}
_SINCE |= dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 19)
_HALF = ("bfloat16", "float16")
_PER_AXIS_OPSET = 13


def family_for(dtype: str, opset: int, *, quantizes: bool) -> Family | None:
    """The operators that hold codes of a type at an opset; None where there are none."""
    if dtype == "int32" and quantizes:
        return None
    if opset >= _SINCE.get(dtype, opset + 1):
        return STANDARD
    return MICROSOFT if dtype in ("int16", "uint16") else None


@dataclass(frozen=True)
class ToQdq(Step):
    """Extended, Vitis and Vai Q/DQ, FixNeuron, and Q/DQ of com.microsoft where the standard domain can hold them."""

    nothing: ClassVar[str] = (
        "it has no FixNeuron, Vitis or Extended Q/DQ, nor Q/DQ in com.microsoft that the standard ones could replace."
    )

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        names, opset = Names(model), main_opset(model)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if is_fix_neuron(node):
                    split_fix_neuron(graph, node, _family_of_fix_neuron(node, opset), names)
                    notes.changed(node, "FixNeuron became QuantizeLinear and DequantizeLinear")
                elif is_block_format(node):
                    notes.decline(node, f"{node.op_type} has an exponent for each block, which Q/DQ cannot express")
                elif (quantize_family(node) or dequantize_family(node)) not in (None, STANDARD):
                    _convert(graph, node, opset, names, notes)
        settle_domains(model)
        return model


def _family_of_fix_neuron(node: ir.Node, opset: int) -> Family:
    attribute = node.attributes.get("bit_width")
    narrow = attribute is None or str(attribute.value) == "8"
    return STANDARD if narrow or opset >= _SINCE["int16"] else MICROSOFT


def _convert(graph: ir.Graph, node: ir.Node, opset: int, names: Names, notes: Notes) -> None:
    linear, old = linear_of(node), f"{node.domain}::{node.op_type}"
    if linear is None:
        notes.decline(node, "its scale or zero point is not constant")
        return
    if linear.dtype.name in _HALF:
        _to_cast(node, linear, notes)
        return
    family = family_for(linear.dtype.name, opset, quantizes=quantize_family(node) is not None)
    if family is None:
        notes.decline(node, f"QuantizeLinear and DequantizeLinear of opset {opset} do not hold {linear.dtype.name}")
    elif not linear.per_tensor and opset < _PER_AXIS_OPSET:
        notes.decline(node, f"a scale for each channel needs opset 13 or newer, and the model has {opset}")
    elif family.domain != node.domain:
        retarget(graph, node, family, linear, names)
        notes.changed(node, f"{old} became {node.op_type}" + (f" of {family.domain}" if family.domain else ""))


def _to_cast(node: ir.Node, linear: Linear, notes: Notes) -> None:
    """A pair through a half type with neither scale nor zero point is a pair of Casts."""
    if (linear.scale != 1).any() or np.asarray(linear.zero_point, np.float32).any():
        notes.decline(node, f"{linear.dtype.name} with a scale or zero point is no Cast, and Q/DQ do not hold it")
        return
    quantizes = quantize_family(node) is not None
    target = ir.DataType.from_numpy(linear.dtype if quantizes else linear.scale.dtype)
    old = f"{node.domain}::{node.op_type}"
    cut_inputs(node, 1)
    node.op_type, node.domain, node.overload = "Cast", "", ""
    node.attributes.clear()
    node.attributes["to"] = ir.AttrInt64("to", int(target))
    notes.changed(node, f"{old} became Cast to {target}")
