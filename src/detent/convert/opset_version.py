"""Another version of the standard operators, up or down as far as onnx's version converter goes.

16-bit codes are standard from opset 21 on: below it their Q/DQ go to com.microsoft, and `qdq` brings them back.
Functions of quantization operators are written for an opset, so they are taken out before and written again after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx_ir as ir

from detent.convert.domains import settle_domains, take_out_functions
from detent.convert.linear import linear_of
from detent.convert.operators import MICROSOFT, STANDARD, dequantize_family, quantize_family
from detent.convert.rewriting import retarget
from detent.convert.step import Notes, Step
from detent.convert.to_qdq import family_for
from detent.errors import UsageError
from detent.graph.names import Names
from detent.graph.opset import change_opset
from detent.prepare.base import main_opset

_LEAST = 7
"""The oldest opset that onnxruntime takes."""


@dataclass(frozen=True)
class OpsetVersion(Step):
    """Convert to opset `version`."""

    version: int = 0
    nothing: ClassVar[str] = "it has that opset already."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert the model."""
        newest = onnx.defs.onnx_opset_version()
        if not _LEAST <= self.version <= newest:
            raise UsageError(f"Give a version from {_LEAST} to {newest}, such as opset:version=21; not {self.version}.")
        before = main_opset(model)
        if before == self.version:
            return model
        self._move_to_microsoft(model, notes)
        take_out_functions(model)
        model = change_opset(model, self.version, "The model")
        settle_domains(model)
        notes.changed("model", f"opset {before} became {self.version}")
        return model

    def _move_to_microsoft(self, model: ir.Model, notes: Notes) -> None:
        names = Names(model)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                quantizes = quantize_family(node)
                linear = linear_of(node) if (quantizes or dequantize_family(node)) == STANDARD else None
                if linear is None:
                    continue
                if family_for(linear.dtype.name, self.version, quantizes=bool(quantizes)) == MICROSOFT:
                    retarget(graph, node, MICROSOFT, linear, names)
                    notes.changed(node, f"{node.op_type} of {linear.dtype.name} moved to com.microsoft")
        settle_domains(model)
