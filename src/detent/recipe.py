"""A recipe: everything that decides how a model is quantized, as one comparable, printable value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from detent.errors import UsageError, nearest
from detent.methods import Method, MinMSE
from detent.numerics.integer import INT8, UINT8_ZERO_128, IntegerGrid

ACTIVATION_GRIDS: dict[str, IntegerGrid] = {"uint8": UINT8_ZERO_128, "int8": INT8}


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized: the grid of each role, the calibration method and the device it is for."""

    name: str
    description: str
    activations: IntegerGrid = UINT8_ZERO_128
    weights: IntegerGrid = INT8
    biases: IntegerGrid = INT8
    method: Method = MinMSE()  # noqa: RUF009  (frozen: one instance serves all)
    target: str = "npu-cnn"

    def replace(self, **changes: Any) -> Recipe:
        """The same recipe with some fields changed. An unknown field is an error that names the nearest known one."""
        known = [field.name for field in dataclasses.fields(self)]
        for key in changes:
            if key not in known:
                raise UsageError(f"A recipe has no field '{key}'.{nearest(key, known)} Fields: {', '.join(known)}.")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = dataclasses.asdict(self)
        plain["method"] = type(self.method).__name__
        return plain
