"""float16 and float32: the whole model in another precision.

float16 computes what the model computed, with every number rounded to 11 bits. Where onnxruntime has no float16 kernel
for an operator on the CPU it computes in float32 by itself. float32 undoes it: each half-precision number is exactly a
float32 number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.convert.retype import Retyping, prepare_types, retype
from detent.convert.step import Notes, Step
from detent.graph.values import bypass, is_standard
from detent.prepare import HalfToFloat


@dataclass(frozen=True)
class ToFloat16(Step):
    """All float32 values to float16; with `keep_io`, inputs and outputs stay float32.

    A weight beyond 65504 is an error, or with `clip` becomes 65504.
    """

    keep_io: bool = True
    clip: bool = False
    nothing: ClassVar[str] = "it has no float32 values."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        prepare_types(model, notes)
        if has_float(model):
            retype(model, Retyping(ir.DataType.FLOAT16, self.keep_io, self.clip), notes)
        return model


@dataclass(frozen=True)
class ToFloat32(Step):
    """All float16 and bfloat16 values to float32, inputs and outputs too; Casts that are left without effect go."""

    nothing: ClassVar[str] = "it has no float16 or bfloat16 values."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert all graphs of the model."""
        notes.run(HalfToFloat(), model)
        if not notes.changes:
            return model
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if not is_standard(node, "Cast") or node.attributes.get_int("to", 0) != ir.DataType.FLOAT:
                    continue
                source = node.inputs[0]
                if source is not None and source.dtype == ir.DataType.FLOAT and bypass(graph, node) is None:
                    notes.changed(node, "Cast from float32 to float32 removed")
        return model


def has_float(model: ir.Model) -> bool:
    """Whether anything in the model is float32 and could be converted."""
    return any(
        value.dtype == ir.DataType.FLOAT
        for graph in model.graphs()
        for value in (*graph.initializers.values(), *(value for node in graph for value in node.outputs))
    )
