"""The ways to equalize channels by name: each is a value with its settings, and carries the code that chooses."""

from __future__ import annotations

from collections.abc import Mapping

from detent.equalizations.awq import Awq
from detent.equalizations.channel_problem import Equalizer
from detent.equalizations.cross_layer import CrossLayer
from detent.equalizations.global_equalization import GlobalEqualization
from detent.settings import choice_text, parse_choice

EQUALIZATIONS: Mapping[str, Equalizer | None] = {
    **{each.name: each for each in (GlobalEqualization(), CrossLayer())},
    "none": None,
}

# What a recipe's `smooth` may be beside the alpha of SmoothQuant.
SMOOTHINGS: Mapping[str, Awq | None] = {"Awq": Awq(), "none": None}


def parse_equalization(text: str) -> Equalizer | None:
    """Return a way to equalize by name, in any case, with settings after a colon: `CrossLayer:steps=3`."""
    return parse_choice(text, EQUALIZATIONS, "equalization")


def parse_smoothing(text: str) -> float | Awq | None:
    """Return a number as the alpha of SmoothQuant, else a way to smooth by name: `Awq:rows=1024`."""
    try:
        return float(text)
    except ValueError:
        return parse_choice(text, SMOOTHINGS, "smoothing")


def smoothing_text(smooth: float | Awq | None) -> str:
    """Write a smoothing as the text that `parse_smoothing` reads."""
    return f"{smooth:g}" if isinstance(smooth, float) else choice_text(smooth)


def equalization_of(switch: bool) -> Equalizer | None:
    """Return what plain on and off stand for."""
    return GlobalEqualization() if switch else None


__all__ = [
    "EQUALIZATIONS",
    "SMOOTHINGS",
    "Awq",
    "CrossLayer",
    "Equalizer",
    "GlobalEqualization",
    "equalization_of",
    "parse_equalization",
    "parse_smoothing",
    "smoothing_text",
]
