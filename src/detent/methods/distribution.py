"""Distribution: a scale that gives the values the spread of a float8 format's own numbers.

    same:   scale = std(x) / std(f)                               f: all finite numbers of the format
    p3:     scale = (std(cbrt(x)) / std(cbrt(f)))^3               for values distributed like cubes of normal ones

Both are proportional to the data: twice the values, twice the scale. (onnxruntime's "p3" is not: it divides the
deviation of the cube roots by the deviation of the numbers themselves.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from detent.errors import UsageError
from detent.methods.method import FloatArray, Method, Points, alternatives, check_choice
from detent.numerics.floats import FloatFormat, FloatParams
from detent.numerics.formats import LEAST_SCALE, IntegerFormat, QuantParams

Scenario = Literal["same", "p3"]


@dataclass(frozen=True)
class Distribution(Method):
    """For float8: the scale that gives the values the spread of the format's own numbers.

    `scenario` "same" compares the values with the numbers of the format, "p3" the cube roots of both.
    """

    scenario: Scenario = "same"

    def __post_init__(self) -> None:
        check_choice("The scenario of Distribution", self.scenario, get_args(Scenario))

    def check(self, fmt: IntegerFormat) -> None:
        """Raise UsageError: integers are not for this method."""
        raise UsageError(
            f"Distribution chooses scales for float8 types, and {fmt.dtype} is an integer type. "
            f"Choose {alternatives(fmt)}."
        )

    def check_float(self, fmt: FloatFormat) -> None:
        """Raise UsageError where there is no scale of a float8 to choose."""
        if not (fmt.bits == 8 and fmt.scaled):
            raise UsageError(
                f"Distribution chooses the scale of a float8 type, and {fmt.label} has none to choose. Say scaled = "
                "true, or choose MinMax."
            )

    def choose(self, points: Points, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Never called: `check` refuses every integer format."""
        raise AssertionError("Distribution is refused for every integer format")

    def choose_float(self, points_of: Callable[[], Points], largest: float, fmt: FloatFormat) -> FloatParams:
        """Return the scale that gives the values the spread of the format's numbers."""
        return FloatParams(fmt, float8_scale(points_of(), fmt, self.scenario))


@lru_cache
def float8_numbers(fmt: FloatFormat) -> FloatArray:
    """Return all finite numbers of a float8 type in ascending order, both zeros among them."""
    numbers = np.arange(256, dtype=np.uint8).view(fmt.storage).astype(np.float64)
    return np.sort(numbers[np.isfinite(numbers)])


def float8_scale(points: Points, fmt: FloatFormat, scenario: Scenario) -> float:
    """Return the scale for a float8 type; 1 where the values do not vary."""
    numbers = float8_numbers(fmt)
    if not points.counts.size:
        return 1.0
    if scenario == "same":
        within = (points.upper - points.lower) ** 2 / 12.0
        deviation = _deviation(points.centres, points.counts, within)
        scale = deviation / float(numbers.std())
    else:
        deviation = _deviation(np.cbrt(points.centres), points.counts, np.zeros_like(points.counts))
        scale = (deviation / float(np.cbrt(numbers).std())) ** 3
    return float(np.float32(max(scale, LEAST_SCALE))) if scale else 1.0


def _deviation(values: FloatArray, counts: FloatArray, within: FloatArray) -> float:
    """Return the standard deviation of weighted values that vary by `within` (a variance) each."""
    total = counts.sum()
    mean = float(counts @ values) / total
    apart = values - mean
    return float(np.sqrt((counts @ (apart * apart + within)) / total))
