"""The ways to equalize channels by name: what a user chooses, as comparable values. How they work is in `equalize`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from detent.errors import UsageError
from detent.settings import parse_choice

UNTIL_CONVERGED = -1


@dataclass(frozen=True)
class GlobalEqualization:
    """All channels of the network at once: the factors at which rounding weights, activations and biases adds the least
    noise, from what the channels were observed to hold.

    With `absorb`, what a channel holds at least is first added by the layers behind instead.
    """

    absorb: bool = False


@dataclass(frozen=True)
class CrossLayer:
    """Layer by layer, from the weights alone. Names in brackets are those of other tools' cross-layer equalization.

    A channel between two layers gets the factor at which the largest weights that compute it and that read it are
    equal; with a depthwise layer between them, the largest of all three. This is done `steps` times [CLESteps], or
    with -1 until a step changes the weights by less than `converged` [CLETotalLayerDiffThreshold], their mean changes
    summed over layers. Channels between two layers stay as they are where both maxima add up to less than `threshold`
    [CLEWeightThreshold; 0 is CLEScaleUseThreshold=False]. With `append_bias` [CLEScaleAppendBias] the bias counts among
    the weights that compute a channel, divided by 2 to 20: the more, the more it outweighs them. With `absorb`, what a
    channel was observed to hold at least is first added by the layers behind instead.
    """

    steps: int = 1
    converged: float = 1.9e-7
    threshold: float = 0.5
    append_bias: bool = True
    absorb: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 and self.steps != UNTIL_CONVERGED:
            raise UsageError(f"steps of CrossLayer is {self.steps}: it must be at least 1, or -1 (until converged).")
        for name in ("converged", "threshold"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} of CrossLayer is {getattr(self, name)}: it must not be negative.")


EqualizationChoice = GlobalEqualization | CrossLayer

EQUALIZATIONS: Mapping[str, EqualizationChoice | None] = {
    "GlobalEqualization": GlobalEqualization(),
    "CrossLayer": CrossLayer(),
    "none": None,
}


def parse_equalization(text: str) -> EqualizationChoice | None:
    """A way to equalize by name, in any case, with settings after a colon: `CrossLayer:steps=3`."""
    return parse_choice(text, EQUALIZATIONS, "equalization")


def equalization_of(switch: bool) -> EqualizationChoice | None:
    """What plain on and off stand for."""
    return GlobalEqualization() if switch else None
