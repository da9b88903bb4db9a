"""Fixed shapes: the graph inputs get the sizes that the user gives, and all shapes behind them follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from detent.convert.step import Notes, Step
from detent.errors import UsageError
from detent.prepare import FixShapes


@dataclass(frozen=True)
class FixedShapes(Step):
    """Fix free dimensions: `shapes` as `input=1/3/224/224+mask=1/77`, or `batch` for the first one of every input."""

    shapes: str = ""
    batch: int = 0
    nothing: ClassVar[str] = "the inputs have these shapes already."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Set the shapes and infer the others again."""
        wanted = dict(_parse(self.shapes))
        if self.batch < 0:
            raise UsageError(f"fixed-shapes: batch is {self.batch}; it has to be at least 1.")
        if self.batch:
            wanted = {**_batched(model.graph, self.batch, skip=wanted), **wanted}
        if not wanted:
            raise UsageError(
                "fixed-shapes needs to know which: fixed-shapes:shapes=input=1/3/224/224, or fixed-shapes:batch=1."
            )
        notes.run(FixShapes(wanted), model)
        return model


def _parse(text: str) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in filter(None, text.split("+")):
        name, separator, dims = part.rpartition("=")
        try:
            found[name] = [int(dim) for dim in dims.split("/")]
        except ValueError:
            separator = ""
        if not separator or not name:
            raise UsageError(f"fixed-shapes: '{part}' is no shape; expected INPUT=D/D/..., such as input=1/3/224/224.")
    return found


def _batched(graph: ir.Graph, batch: int, skip: Mapping[str, object]) -> dict[str, list[int]]:
    """The shapes of all inputs with the first dimension fixed, where it is free."""
    found: dict[str, list[int]] = {}
    for value in graph.inputs:
        if str(value.name) in skip or value.shape is None or not len(value.shape) or isinstance(value.shape[0], int):
            continue
        rest = value.shape[1:]
        numbers = [dim for dim in rest if isinstance(dim, int)]
        if len(numbers) != len(rest):
            listed = ", ".join(str(dim) for dim in value.shape)
            example = "/".join(str(dim) if isinstance(dim, int) else "1" for dim in value.shape)
            raise UsageError(
                f"Input '{value.name}' is [{listed}]: more than its batch is free. Give the whole shape, such as "
                f"fixed-shapes:shapes={value.name}={example}."
            )
        found[str(value.name)] = [batch, *numbers]
    return found
