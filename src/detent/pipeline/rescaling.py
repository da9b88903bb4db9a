"""What is done to a float model before it is observed: smoothing, absorbing and equalizing, anew or as before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from detent.equalize.absorb import Absorption, absorb, absorb_again
from detent.equalize.equalize import Equalization, equalize, equalize_again
from detent.equalize.smooth_quant import Smoothing, SmoothQuant
from detent.numerics.formats import is_integer
from detent.numerics.interface import NumberFormat
from detent.observe.samples import PendingSample
from detent.observe.statistics_file import StatisticsFile
from detent.recipe import Recipe
from detent.recipe.recipe import EQUALIZING_SAMPLES

SIGNIFICANT_BITS = 8
"""Of small floats and blocks, near enough."""


@dataclass(frozen=True)
class Rescaling:
    """What was done: each is None if the recipe did not ask for it."""

    smoothing: Smoothing | None = None
    absorption: Absorption | None = None
    equalization: Equalization | None = None

    @property
    def changed(self) -> bool:
        """Whether the model may differ from the prepared one in more than names."""
        return self.smoothing is not None or self.equalization is not None

    @property
    def factors(self) -> tuple[float, ...] | None:
        """The factors of channels, for a file of statistics."""
        return None if self.equalization is None else self.equalization.factors

    @property
    def absorbed(self) -> Mapping[str, tuple[float, ...]] | None:
        """The biases that layers gave to those behind, for a file of statistics."""
        return None if self.absorption is None else self.absorption.amounts

    @property
    def smoothed(self) -> Mapping[str, tuple[float, ...]] | None:
        """The factors of smoothed values, for a file of statistics."""
        return None if self.smoothing is None else self.smoothing.factors


def _bits(fmt: NumberFormat | None) -> int:
    """Return the bits of a number that decide how coarsely it is rounded; those of float32 if it is not."""
    if fmt is None:
        return 24
    return fmt.bits if is_integer(fmt) else SIGNIFICANT_BITS


def _codes(formats: Mapping[str, NumberFormat]) -> dict[str, int]:
    """Return the number of codes above zero of each value whose scale is one power of two, and 0 for the others."""
    return {
        name: fmt.levels[1] if is_integer(fmt) and fmt.power_of_two and fmt.granularity == "per_tensor" else 0
        for name, fmt in formats.items()
    }


def rescale(
    model: ir.Model,
    formats: Mapping[str, NumberFormat],
    recipe: Recipe,
    samples: Sequence[PendingSample],
    saved: StatisticsFile | None,
    threads: int = 0,
) -> Rescaling:
    """Smooth, absorb and equalize `model` in place, as the recipe says; as it was done for `saved` statistics, if any.

    `formats` are those of all values that will be quantized.
    """
    smoothing = absorption = equalization = None
    few = samples[:EQUALIZING_SAMPLES]
    if recipe.smooth is not None:
        known = None if saved is None else saved.smoothed
        bits = _bits(recipe.activations), _bits(recipe.weights)
        strategy = SmoothQuant(recipe.smooth)
        smoothing = (
            strategy.smooth(model, few, threads, bits=bits) if known is None else strategy.smooth_again(model, known)
        )
    if recipe.equalize is not None:
        if recipe.equalize.absorb:
            given = None if saved is None else saved.absorbed
            absorption = absorb(model, few, threads) if given is None else absorb_again(model, given)
        if saved is not None and saved.factors is not None:
            equalization = equalize_again(model, saved.factors)
        else:
            equalization = equalize(model, recipe.equalize, few, threads, codes=_codes(formats))
    return Rescaling(smoothing, absorption, equalization)
