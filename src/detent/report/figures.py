"""Figures as people read them: sizes, ratios, decibels and steps, the same in a terminal and on a page."""

from __future__ import annotations

import math

from detent.results.evaluated import CHANGED, POINTS
from detent.results.paired import Interval
from detent.results.tensors import TensorReport

PERCENTAGES = (POINTS.format(top=1), POINTS.format(top=5), CHANGED)


def size(count: int) -> str:
    """Bytes, in the unit that leaves three digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def ratio(before: int, after: int) -> str:
    """How much smaller, or larger: nodes for each tensor make small models larger."""
    if f"{max(before, after) / max(min(before, after), 1):.1f}" == "1.0":
        return "about the same"
    if after > before:
        return f"{after / max(before, 1):.1f} times larger"
    return f"{before / max(after, 1):.1f} times smaller"


def decibels(value: float) -> str:
    """A ratio of powers; infinite where nothing differs."""
    return "exact" if value == math.inf else f"{value:.1f}"


def step(tensor: TensorReport) -> str:
    """The distance between two codes, or what the format is where it has none."""
    if tensor.position is not None:
        return f"2^{-tensor.position}"
    return tensor.dtype if tensor.scale is None or tensor.scale == 1.0 else f"{tensor.scale:.4g}"


def extent(low: float | None, high: float | None) -> str:
    """From where to where."""
    return "-" if low is None or high is None else f"{low:.4g} .. {high:.4g}"


def form_of(*values: float | None) -> str:
    """One form for numbers that stand together: as many digits behind the point as leave the largest four in all."""
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    if largest == 0.0 or not 1e-4 <= largest < 1e6:
        return ".4g"
    return f".{max(0, 3 - math.floor(math.log10(largest)))}f"


def loss_form(unit: str, loss: float, ends: Interval | None) -> str:
    """How a loss and the ends of its interval are written: percentages with two digits, all else with four."""
    return ".2f" if unit in PERCENTAGES else form_of(loss, *(ends or ()))


def probability(value: float | None) -> str:
    """A p-value, to three digits behind the point."""
    return "-" if value is None else "<0.001" if value < 0.0005 else f"{value:.3f}"
