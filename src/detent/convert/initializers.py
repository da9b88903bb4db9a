"""Initializers: one for each use, and none among the graph inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.convert.step import Notes, Step
from detent.prepare import SeparateInitializers


@dataclass(frozen=True)
class UniqueInitializers(Step):
    """Give every use of a float initializer a copy of its own."""

    nothing: ClassVar[str] = "no float initializer has more than one use."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Copy what is shared."""
        notes.run(SeparateInitializers(), model)
        return model


@dataclass(frozen=True)
class InputsWithoutInitializers(Step):
    """Take initializers out of the graph inputs, where they are defaults that a caller could override."""

    nothing: ClassVar[str] = "no initializer is a graph input."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Keep the inputs that have no default."""
        free_initializers(model, notes)
        return model


def free_initializers(model: ir.Model, notes: Notes) -> None:
    """Take the initializers out of the graph inputs."""
    kept = [value for value in model.graph.inputs if not value.is_initializer()]
    for value in model.graph.inputs:
        if value.is_initializer():
            notes.changed(value, "no longer a graph input, so its value is constant")
    model.graph.inputs.clear()
    model.graph.inputs.extend(kept)
