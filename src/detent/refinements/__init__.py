"""The refinements by name: each is a value with its settings, and carries the code that solves a layer."""

from __future__ import annotations

from collections.abc import Mapping

from detent.refinements.adaquant import AdaQuant
from detent.refinements.adaround import AdaRound
from detent.refinements.bias_correction import BiasCorrection
from detent.refinements.gptq import Gptq
from detent.refinements.quick_rounding import QuickRounding
from detent.refinements.refinement import Refinement
from detent.refinements.rounding import Rounding
from detent.settings import parse_choice

REFINEMENTS: Mapping[str, Refinement | None] = {
    **{each.name: each for each in (QuickRounding(), BiasCorrection(), Rounding(), Gptq(), AdaRound(), AdaQuant())},
    "none": None,
}


def parse_refinement(text: str) -> Refinement | None:
    """Return a refinement by name, in any case, with settings after a colon: `Rounding:rows=128`."""
    return parse_choice(text, REFINEMENTS, "refinement", unsettable=("learning_rate_above",))


__all__ = [
    "REFINEMENTS",
    "AdaQuant",
    "AdaRound",
    "BiasCorrection",
    "Gptq",
    "QuickRounding",
    "Refinement",
    "Rounding",
    "parse_refinement",
]
