"""Q/DQ around an operator to one operator on codes (QLinearConv and the like), as `emit.qoperator` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.convert.domains import settle_domains
from detent.convert.step import Notes, Step
from detent.emit.qoperator import ToQOperator as Rewrite


@dataclass(frozen=True)
class ToQOperator(Step):
    """Integer operators wherever there is one; the others keep their Q/DQ, and the notes say why."""

    nothing: ClassVar[str] = "it has no operator between standard Q/DQ that computes on codes as well."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert the main graph."""
        notes.run(Rewrite(), model)
        settle_domains(model)
        return model
