"""The ways to equalize channels by name: each is a value with its settings, and carries the code that chooses."""

from __future__ import annotations

from collections.abc import Mapping

from detent.equalizations.channel_problem import Equalizer
from detent.equalizations.cross_layer import CrossLayer
from detent.equalizations.global_equalization import GlobalEqualization
from detent.settings import parse_choice

EQUALIZATIONS: Mapping[str, Equalizer | None] = {
    **{each.name: each for each in (GlobalEqualization(), CrossLayer())},
    "none": None,
}


def parse_equalization(text: str) -> Equalizer | None:
    """Return a way to equalize by name, in any case, with settings after a colon: `CrossLayer:steps=3`."""
    return parse_choice(text, EQUALIZATIONS, "equalization")


def equalization_of(switch: bool) -> Equalizer | None:
    """Return what plain on and off stand for."""
    return GlobalEqualization() if switch else None


__all__ = ["EQUALIZATIONS", "CrossLayer", "Equalizer", "GlobalEqualization", "equalization_of", "parse_equalization"]
