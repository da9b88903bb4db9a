"""The calibration methods, one module for each: its settings, its algebra and its code.

To add a method, write its class and name it in METHODS: recipes, the command line and the reference take it from there.
"""

from __future__ import annotations

from collections.abc import Mapping

from detent.methods.distribution import Distribution
from detent.methods.entropy import Entropy
from detent.methods.method import Method
from detent.methods.min_max import MinMax, NonOverflow
from detent.methods.min_mse import MinMSE
from detent.methods.percentile import LayerwisePercentile, Percentile
from detent.settings import parse_choice

__all__ = [
    "METHODS",
    "Distribution",
    "Entropy",
    "LayerwisePercentile",
    "Method",
    "MinMSE",
    "MinMax",
    "NonOverflow",
    "Percentile",
    "parse_method",
]

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (MinMSE(), NonOverflow(), MinMax(), Percentile(), LayerwisePercentile(), Entropy(), Distribution())
}


def parse_method(text: str) -> Method:
    """Return a method by name, in any case, with settings after a colon: `Percentile:percentile=99.99`."""
    return parse_choice(text, METHODS, "method", unsettable=("by_tensor",))
