"""LayerwisePercentile: of several percentages the one whose parameters round the tensor with the least error.

The error is that of the parameters which the range leads to, so a candidate is judged by what it will do: symmetric or
not, with a float or a power-of-two scale.
"""

from __future__ import annotations

from collections.abc import Callable

from detent.methods import LayerwisePercentile
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.observe.methods.percentile import percentile_ranges
from detent.observe.methods.points import Points
from detent.observe.methods.ranges import Range
from detent.observe.methods.rounding import absolute_error, squared_error


def layerwise_params(
    points: Points, fmt: IntegerFormat, method: LayerwisePercentile, fit: Callable[[Range], QuantParams]
) -> QuantParams:
    """The parameters that `fit` makes of the best candidate; on ties the first."""
    error = absolute_error if method.metric == "mae" else squared_error

    def error_of(params: QuantParams) -> float:
        zero_point = int(params.zero_point)
        low, high = float(fmt.low - zero_point), float(fmt.high - zero_point)
        return error(points.lower, points.upper, points.counts, float(params.scale), low, high)

    return min(map(fit, percentile_ranges(points, method.candidates, fmt.symmetric)), key=error_of)
