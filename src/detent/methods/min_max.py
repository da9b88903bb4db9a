"""MinMax and NonOverflow: the observed range.

    moving average:   low = sum(min(sample)) / samples        high = sum(max(sample)) / samples

The sums are exact, so the mean does not depend on the order of the samples. NonOverflow takes the largest position of a
power-of-two scale at which neither end of the range saturates; MinMax takes the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import UsageError
from detent.methods.method import Method, ObservedTensor, Points, Range, alternatives, fit
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat, QuantParams, non_overflow_position


class OfExtremes(Method):
    """A method that asks for the extremes alone."""

    def choose(self, points: Points, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters of the observed range."""
        return self.choose_extremes(Range(points.minimum, points.maximum), fmt)

    def choose_values(
        self,
        values: npt.NDArray[np.float32],
        fmt: IntegerFormat,
        tensor: str,
        points_of: Callable[[Any], Points],
    ) -> QuantParams:
        """Return the parameters of a constant; its extremes need no points."""
        return self.choose_extremes(Range(float(values.min(initial=0.0)), float(values.max(initial=0.0))), fmt)

    def choose_each(
        self,
        rows: Iterable[npt.NDArray[np.float32]],
        fmt: IntegerFormat,
        tensor: str,
        points_of: Callable[[Any], Points],
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the scale and zero point of each of several channels or groups of a constant."""
        if fmt.power_of_two:
            return super().choose_each(rows, fmt, tensor, points_of)
        ends = [(row.min(initial=0.0), row.max(initial=0.0)) for row in rows]
        return fmt.fit_each(*np.array(ends, np.float64).reshape(-1, 2).T)


@dataclass(frozen=True)
class MinMax(OfExtremes):
    """The whole observed range; with `moving_average`, the mean over the samples of each one's minimum and maximum.

    The mean is over all samples, so their order does not matter. (Other tools have an averaging constant, which acts
    only between separately collected blocks of samples; within a block they average as here.)
    """

    moving_average: bool = False

    @property
    def averages(self) -> bool:  # type: ignore[override]
        """Whether it takes the mean over the samples."""
        return self.moving_average

    def check_float(self, fmt: FloatFormat) -> None:
        """Accept every small float: its scale follows from the largest magnitude."""

    def choose_observed(self, observed: ObservedTensor, fmt: IntegerFormat, tensor: str) -> QuantParams:
        """Return the parameters of the whole range, or of the mean one."""
        if self.moving_average:
            return fit(fmt, Range(*observed.mean_extremes))
        return super().choose_observed(observed, fmt, tensor)


@dataclass(frozen=True)
class NonOverflow(OfExtremes):
    """The finest power-of-two scale at which no observed value saturates."""

    def check(self, fmt: IntegerFormat) -> None:
        """Raise UsageError for a format with float scales."""
        if not fmt.power_of_two:
            raise UsageError(
                f"{self.name} chooses a power-of-two scale, and this {fmt.dtype} has float scales. With those MinMax "
                f"is the method that saturates nothing. Choose {alternatives(fmt)}."
            )

    def choose_extremes(self, extremes: Range, fmt: IntegerFormat) -> QuantParams:
        """Return the largest position at which neither end saturates."""
        return QuantParams.at(fmt, non_overflow_position(min(extremes.low, 0.0), max(extremes.high, 0.0), fmt))
