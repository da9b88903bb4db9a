"""The calibration methods by name: what a user chooses, as comparable values. How each one works is in `observe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MinMax:
    """The whole observed range; with `moving_average`, the mean over the samples of each one's minimum and maximum."""

    moving_average: bool = False


@dataclass(frozen=True)
class Percentile:
    """The range that holds `percentile` percent of the values; `by_tensor` names tensors with another percentage."""

    percentile: float = 99.999
    by_tensor: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class LayerwisePercentile:
    """For each tensor, the one of several percentages that rounds it with the least error."""

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    metric: Literal["mae", "mse"] = "mae"


@dataclass(frozen=True)
class Entropy:
    """The range whose rounded distribution differs least from the original one, in Kullback-Leibler divergence."""

    bins: int = 2048
    quantized_bins: int = 128


@dataclass(frozen=True)
class MinMSE:
    """The scale with the least sum of squared errors.

    `mode`, for power-of-two scales: "All" searches over all values, "MostCommon" over each sample apart and takes the
    position that won most often, "Percentile" over the values within `percentile` percent.
    """

    mode: Literal["All", "MostCommon", "Percentile"] = "All"
    percentile: float = 99.999


@dataclass(frozen=True)
class NonOverflow:
    """The finest power-of-two scale at which no observed value saturates."""


@dataclass(frozen=True)
class Distribution:
    """For float8: the scale that gives the values the spread of the format's own numbers.

    `scenario` "same" compares with all numbers of the format, "p3" with their cube roots.
    """

    scenario: Literal["same", "p3"] = "same"


Method = MinMax | Percentile | LayerwisePercentile | Entropy | MinMSE | NonOverflow | Distribution

METHODS: Mapping[str, Method] = {
    type(method).__name__: method
    for method in (MinMSE(), NonOverflow(), MinMax(), Percentile(), LayerwisePercentile(), Entropy(), Distribution())
}
