"""A recipe: everything that decides how a model is quantized, as one comparable, printable value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from detent.errors import UsageError, nearest
from detent.methods import Method, MinMax, MinMSE, NonOverflow
from detent.numerics.formats import IntegerFormat
from detent.refinements import BiasCorrection, Refinement

POWER_OF_TWO_INT8 = IntegerFormat("int8", power_of_two=True)
POWER_OF_TWO_UINT8 = IntegerFormat("uint8", power_of_two=True)

EQUALIZING_SAMPLES = 64
"""Enough to see what each channel holds."""

ACTIVATION_TYPES = ("uint8", "int8", "uint16", "int16")


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized: the format of each role, the calibration method and the device it is for.

    `method` is that of the activations. Weights take it too where scales are powers of two, else the whole range
    (their elements are all known), unless there is a `weight_method`. The model's outputs take the whole range too,
    unless `clip_outputs`: the largest scores are those that decide, and must stay apart. Biases of 32 bits take the
    product of their layer's input and weight scales; narrower ones have a scale of their own. `equalize` rescales
    channels before anything is quantized, and the `refinement` chooses weights and biases anew afterwards.
    """

    name: str
    description: str
    activations: IntegerFormat = POWER_OF_TWO_UINT8
    weights: IntegerFormat = POWER_OF_TWO_INT8
    biases: IntegerFormat = POWER_OF_TWO_INT8
    method: Method = MinMSE()  # noqa: RUF009  (frozen: one instance serves all)
    weight_method: Method | None = None
    clip_outputs: bool = False
    target: str = "npu-cnn"
    equalize: bool = True
    refinement: Refinement | None = BiasCorrection()  # noqa: RUF009

    @property
    def method_of_weights(self) -> Method:
        """The method that weights, and biases with a scale of their own, are quantized with."""
        if self.weight_method is not None:
            return self.weight_method
        return self.method if self.weights.power_of_two else MinMax()

    @property
    def method_of_outputs(self) -> Method:
        """The method that the model's outputs are quantized with."""
        if self.clip_outputs:
            return self.method
        return NonOverflow() if self.activations.power_of_two else MinMax()

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
        for key, method in (("method", self.method), ("weight_method", self.method_of_weights)):
            plain[key] = {"name": type(method).__name__, **dataclasses.asdict(method)}
        if self.refinement is not None:
            plain["refinement"] = {"name": type(self.refinement).__name__, **dataclasses.asdict(self.refinement)}
        return plain
