"""The calibration methods by name: what a user chooses, as comparable values. How each one works is in `observe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from detent.errors import UsageError
from detent.settings import parse_choice

Metric = Literal["mae", "mse"]
MinMSEMode = Literal["All", "MostCommon", "Percentile"]
Scenario = Literal["same", "p3"]


def _check_percentage(what: str, percentile: float) -> None:
    if not 0.0 < percentile <= 100.0:
        raise UsageError(f"{what} is {percentile}: it must be above 0 and at most 100, such as 99.999.")


def _check_choice(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{what} is '{value}'. Choose from {', '.join(known)}.")


@dataclass(frozen=True)
class MinMax:
    """The whole observed range; with `moving_average`, the mean over the samples of each one's minimum and maximum.

    The mean is that of all samples, whatever their order. (The averaging constant of other tools acts only between
    the blocks of a calibration set that is collected in several; all that they collect at once is averaged as here.)
    """

    moving_average: bool = False


@dataclass(frozen=True)
class Percentile:
    """The range that holds `percentile` percent of the values; `by_tensor` names tensors with another percentage.

    A symmetric format cuts the largest magnitudes, an asymmetric one half of the rest at either end.
    """

    percentile: float = 99.999
    by_tensor: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        _check_percentage("Percentile", self.percentile)
        for tensor, percentile in self.by_tensor:
            _check_percentage(f"Percentile for '{tensor}'", percentile)

    def of(self, tensor: str) -> float:
        """The percentage for one tensor."""
        return dict(self.by_tensor).get(tensor, self.percentile)


@dataclass(frozen=True)
class LayerwisePercentile:
    """For each tensor, the one of several percentages that rounds it with the least error; on ties the first.

    `metric` is the mean absolute error or the mean squared error.
    """

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    metric: Metric = "mae"

    def __post_init__(self) -> None:
        if not self.candidates:
            raise UsageError("LayerwisePercentile has no candidates. Give at least one percentage, such as 99.999.")
        for percentile in self.candidates:
            _check_percentage("A candidate of LayerwisePercentile", percentile)
        _check_choice("The metric of LayerwisePercentile", self.metric, get_args(Metric))


@dataclass(frozen=True)
class Entropy:
    """The range whose rounded distribution differs least from the original one, in Kullback-Leibler divergence.

    The distribution is taken over `bins` bins of equal width, and rounded to `quantized_bins` groups of them; 0 means
    one group for each code of the format, at most one for each bin.

    With 128 and 128, as other tools have it, the only window with a bin for each group is the whole range: that is
    MinMax with more work. 2048 bins leave windows to choose from, and a group per code makes the rounding that is
    compared the one that will happen. (16-bit formats have more codes than bins: rounding loses nothing that could be
    seen, and the whole range is the answer.)
    """

    bins: int = 2048
    quantized_bins: int = 0

    def __post_init__(self) -> None:
        if self.bins < 2 or self.bins % 2:
            raise UsageError(f"Entropy needs an even number of bins, at least 2; not {self.bins}.")
        if not 0 <= self.quantized_bins <= self.bins or self.quantized_bins == 1:
            raise UsageError(
                f"Entropy's quantized_bins is {self.quantized_bins}: it must be 2 to {self.bins} (the number of bins), "
                "or 0 for one per code."
            )


@dataclass(frozen=True)
class MinMSE:
    """The scale with the least sum of squared errors.

    `mode`: "All" searches over all values, "Percentile" over the values within `percentile` percent; "MostCommon", for
    power-of-two scales only, over each sample apart and takes the position that won most often.
    """

    mode: MinMSEMode = "All"
    percentile: float = 99.999

    def __post_init__(self) -> None:
        _check_choice("The mode of MinMSE", self.mode, get_args(MinMSEMode))
        _check_percentage("The percentile of MinMSE", self.percentile)


@dataclass(frozen=True)
class NonOverflow:
    """The finest power-of-two scale at which no observed value saturates."""


@dataclass(frozen=True)
class Distribution:
    """For float8: the scale that gives the values the spread of the format's own numbers.

    `scenario` "same" compares the values with the numbers of the format, "p3" the cube roots of both.
    """

    scenario: Scenario = "same"

    def __post_init__(self) -> None:
        _check_choice("The scenario of Distribution", self.scenario, get_args(Scenario))


Method = MinMax | Percentile | LayerwisePercentile | Entropy | MinMSE | NonOverflow | Distribution

METHODS: Mapping[str, Method] = {
    type(method).__name__: method
    for method in (MinMSE(), NonOverflow(), MinMax(), Percentile(), LayerwisePercentile(), Entropy(), Distribution())
}


def parse_method(text: str) -> Method:
    """A method by name, in any case, with settings after a colon: `Percentile:percentile=99.99`."""
    return parse_choice(text, METHODS, "method", unsettable=("by_tensor",))
