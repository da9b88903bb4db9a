"""What a calibration method is: a comparable value with settings, and the code that chooses parameters.

A method sees weighted points, never a file or a graph. It chooses a range, which the format fits its codes to. On a
power-of-two scale that is the position whose scale is nearest to the one that spreads the range over the codes; it may
clip by up to sqrt(2). A constant is its own only sample: the mean of its extremes is its extremes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.methods.points import Counts, Points, Range
from detent.numerics.floats import FloatFormat, FloatParams
from detent.numerics.formats import IntegerFormat, QuantParams, base_position

Vote = Callable[[Counts], int]  # the position that a method would choose for one sample alone


class ObservedTensor(Protocol):
    """What calibration remembers of one activation."""

    @property
    def histogram(self) -> Counts:
        """The values of all samples."""

    @property
    def samples(self) -> int:
        """How many samples there were."""

    @property
    def votes(self) -> Mapping[int, int]:
        """How many samples asked for each position."""

    @property
    def mean_extremes(self) -> tuple[float, float]:
        """The mean over the samples of their minima and of their maxima."""


class Method(ABC):
    """Chooses the parameters of a tensor."""

    averages: bool = False
    """Whether it wants the mean of each sample's extremes."""

    @property
    def name(self) -> str:
        """The name that users give."""
        return type(self).__name__

    def check(self, fmt: IntegerFormat) -> None:  # noqa: B027  (most methods take every integer format)
        """Raise UsageError where the method cannot choose parameters for integers of `fmt`."""

    def check_float(self, fmt: FloatFormat) -> None:
        """Raise UsageError where the method cannot choose the scale of a small float, if that has one."""
        if fmt.scaled:
            others = "MinMax or Distribution" if fmt.bits == 8 else "MinMax"
            raise UsageError(f"{self.name} chooses between integers, and this is {fmt.label}. Choose {others}.")

    def check_tensors(self, tensors: Collection[str]) -> None:  # noqa: B027  (most methods name no tensor)
        """Raise UsageError where the method names a tensor that is not among the quantized ones."""

    @abstractmethod
    def choose(self, points: Points, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters for points."""

    def choose_observed(self, observed: ObservedTensor, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters of an activation."""
        return self.choose(Points.of_histogram(observed.histogram), fmt, tensor)

    def choose_values(
        self, values: npt.NDArray[np.float32], fmt: IntegerFormat, tensor: str, points_of: Callable[[Any], Points]
    ) -> QuantParams:
        """Return the parameters of a constant, whose points are `points_of(values)`."""
        return self.choose(points_of(values), fmt, tensor)

    def choose_extremes(self, extremes: Range, fmt: IntegerFormat) -> QuantParams:
        """Return the parameters where only the extremes are known."""
        return fit(fmt, extremes)

    def choose_float(self, points_of: Callable[[], Points], largest: float, fmt: FloatFormat) -> FloatParams:
        """Return the scale of a small float from the largest magnitude, or from its points."""
        return fmt.fit(0.0, largest)

    def vote(self, fmt: IntegerFormat) -> Vote | None:
        """Return what each sample is asked while calibrating; None for a method that does not ask."""
        return None


def fit(fmt: IntegerFormat, chosen: Range) -> QuantParams:
    """Return the parameters of a range."""
    if fmt.power_of_two:
        return QuantParams.at(fmt, base_position(chosen.largest, fmt))
    return fmt.fit(chosen.low, chosen.high)


def alternatives(fmt: IntegerFormat) -> str:
    """Name the methods that can choose for `fmt`, for a message."""
    other = "NonOverflow" if fmt.power_of_two else "Entropy"
    return f"MinMSE, MinMax, Percentile, LayerwisePercentile or {other}"


def check_percentage(what: str, percentile: float) -> None:
    """Raise UsageError for a number that is no percentage."""
    if not 0.0 < percentile <= 100.0:
        raise UsageError(f"{what} is {percentile}: it must be above 0 and at most 100, such as 99.999.")


def check_choice(what: str, value: str, known: tuple[str, ...]) -> None:
    """Raise UsageError for a setting that is not one of the known ones."""
    if value not in known:
        raise UsageError(f"{what} is '{value}'. Choose from {', '.join(known)}.")
