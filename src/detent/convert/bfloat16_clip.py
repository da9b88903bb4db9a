"""A Clip to the finite numbers of bfloat16 before every value that is rounded to it.

A float32 number above 3.3895e38 rounds to infinity in bfloat16, which turns into NaN at the next subtraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from detent.convert.linear import largest_of, linear_of
from detent.convert.operators import quantize_family
from detent.convert.step import Notes, Step
from detent.errors import ModelError
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant, is_standard
from detent.prepare.base import main_opset

_BFLOAT16 = ir.DataType.BFLOAT16
_CLIP_WITH_INPUTS = 11


@dataclass(frozen=True)
class Bfloat16Clip(Step):
    """Insert Clip before Cast to bfloat16 and before QuantizeLinear with bfloat16 codes; not behind constants."""

    nothing: ClassVar[str] = "no activation is cast or quantized to bfloat16 without a Clip before it."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Look at all graphs of the model."""
        if main_opset(model) < _CLIP_WITH_INPUTS:
            raise ModelError(f"bfloat16-clip needs opset 11 or newer; the model has {main_opset(model)}.")
        names = Names(model)
        largest = np.float32(largest_of(_BFLOAT16.numpy()))
        bounds: list[ir.Value] = []
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                source = node.inputs[0] if _rounds(node) else None
                if source is None or constant(source) is not None or _is_clip(source):
                    continue
                if not bounds:
                    bounds = [
                        add_initializer(model.graph, names.fresh(f"bfloat16_{name}"), np.array(bound, np.float32))
                        for name, bound in (("lowest", -largest), ("largest", largest))
                    ]
                clip = ir.node("Clip", [source, *bounds], name=names.fresh(f"{source.name}_Clip"))
                result = clip.outputs[0]
                result.name = names.fresh(f"{source.name}_clipped")
                result.type, result.shape = source.type, source.shape
                graph.insert_before(node, [clip])
                node.replace_input_with(0, result)
                notes.changed(source, "clipped to the finite bfloat16 numbers before it is rounded")
        return model


def _rounds(node: ir.Node) -> bool:
    """Whether the node makes bfloat16 of float32."""
    if is_standard(node, "Cast"):
        source = node.inputs[0]
        to_bfloat16 = node.attributes.get_int("to", 0) == _BFLOAT16
        return to_bfloat16 and source is not None and source.dtype in (None, ir.DataType.FLOAT)
    linear = linear_of(node) if quantize_family(node) else None
    return linear is not None and linear.dtype == _BFLOAT16.numpy()


def _is_clip(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and is_standard(producer, "Clip")
