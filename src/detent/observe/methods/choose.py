"""From statistics, a format and a method to quantization parameters: the one way in to all the methods.

On a power-of-two scale MinMax and Percentile take the scale nearest to the one that fits their range; NonOverflow and
MinMSE search positions themselves; Entropy is refused. A constant is its own only sample: the mean of its extremes is
its extremes, and the most common position the one it has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.methods import Distribution, Entropy, LayerwisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.numerics.power_of_two import min_mse_position_of
from detent.observe.histogram import Histogram
from detent.observe.methods.check import check_method
from detent.observe.methods.entropy import entropy_range
from detent.observe.methods.layerwise import layerwise_params
from detent.observe.methods.min_mse import min_mse_range
from detent.observe.methods.minmax import mean_range, observed_range
from detent.observe.methods.percentile import percentile_range
from detent.observe.methods.points import Points
from detent.observe.methods.positions import min_mse, min_mse_within, non_overflow, range_position
from detent.observe.methods.ranges import Range
from detent.observe.statistics import TensorStatistics

__all__ = [
    "check_method",
    "choose_params",
    "choose_params_of_groups",
    "choose_params_of_values",
    "method_choices",
    "settled_params",
]

RAW_LIMIT = 1 << 14
"""A constant of more values is counted into a histogram first: finer than its rounding needs, and far quicker."""


def choose_params(statistics: TensorStatistics, fmt: IntegerFormat, method: Method, tensor: str) -> QuantParams:
    """The parameters of an activation, for the whole tensor."""
    check_method(fmt, method)
    if isinstance(method, MinMSE) and fmt.power_of_two:
        return QuantParams.at(fmt, min_mse(statistics, fmt, method, tensor))
    if isinstance(method, MinMax) and method.moving_average:
        return _fit(fmt, mean_range(statistics))
    return _choose(Points.of_histogram(statistics.histogram), fmt, method, tensor)


def choose_params_of_values(
    values: npt.NDArray[Any], fmt: IntegerFormat, method: Method, tensor: str, axis: int | None
) -> QuantParams:
    """The parameters of a constant: for the whole tensor, or for each index along `axis` apart."""
    check_method(fmt, method)
    array = np.asarray(values, np.float32)
    if axis is None or array.size == 0:
        return _choose_of_values(array, fmt, method, tensor)
    channels = np.moveaxis(array, axis, 0)
    chosen = [_choose_of_values(channel, fmt, method, tensor) for channel in channels]
    return QuantParams.stack(chosen, axis % array.ndim)


def choose_params_of_groups(
    values: npt.NDArray[Any], fmt: IntegerFormat, method: Method, tensor: str, axis: int
) -> QuantParams:
    """The parameters of a constant, for each `fmt.group_size` elements along `axis` that follow each other."""
    check_method(fmt, method)
    array = np.moveaxis(np.asarray(values, np.float32), axis, -1)
    size = min(fmt.group_size, array.shape[-1])
    starts = range(0, array.shape[-1], size)
    rows = array.reshape(-1, array.shape[-1])
    chosen = [[_choose_of_values(row[at : at + size], fmt, method, tensor) for at in starts] for row in rows]
    shape = (*array.shape[:-1], len(starts))
    scales = np.array([[params.scale for params in row] for row in chosen], np.float64).reshape(shape)
    zero_points = np.array([[params.zero_point for params in row] for row in chosen], np.int64).reshape(shape)
    return QuantParams(fmt, np.moveaxis(scales, -1, axis), np.moveaxis(zero_points, -1, axis), axis, size)


def settled_params(largest: float, fmt: IntegerFormat, method: Method) -> QuantParams:
    """The parameters of an output that the operator itself keeps within 0..largest, whatever the data."""
    check_method(fmt, method)
    return _of_extremes(Range(0.0, largest), fmt, method)


def method_choices(
    statistics: TensorStatistics, fmt_float: IntegerFormat, fmt_power_of_two: IntegerFormat, tensor: str
) -> dict[str, Range]:
    """What each method would choose for one activation: the range that its codes would reach."""
    wanted: dict[str, tuple[IntegerFormat, Method]] = {
        "MinMax": (fmt_float, MinMax()),
        "MinMax (moving average)": (fmt_float, MinMax(moving_average=True)),
        "Percentile": (fmt_float, Percentile()),
        "LayerwisePercentile": (fmt_float, LayerwisePercentile()),
        "Entropy": (fmt_float, Entropy()),
        "MinMSE": (fmt_float, MinMSE()),
        "MinMSE (power of two)": (fmt_power_of_two, MinMSE()),
        "NonOverflow": (fmt_power_of_two, NonOverflow()),
    }
    if statistics.votes:
        wanted["MinMSE (MostCommon)"] = (fmt_power_of_two, MinMSE("MostCommon"))
    return {name: Range(*choose_params(statistics, fmt, method, tensor).span) for name, (fmt, method) in wanted.items()}


def _choose_of_values(values: npt.NDArray[np.float32], fmt: IntegerFormat, method: Method, tensor: str) -> QuantParams:
    """The parameters of a constant, or of one of its channels."""
    if isinstance(method, MinMax | NonOverflow):
        return _of_extremes(Range(float(values.min(initial=0.0)), float(values.max(initial=0.0))), fmt, method)
    if isinstance(method, MinMSE) and fmt.power_of_two and method.mode != "Percentile":
        return QuantParams.at(fmt, min_mse_position_of(values, fmt))
    return _choose(_points_of(values), fmt, method, tensor)


def _points_of(values: npt.NDArray[np.float32]) -> Points:
    if values.size <= RAW_LIMIT:
        return Points.of_values(values)
    histogram = Histogram()
    histogram.add(values)
    return Points.of_histogram(histogram)


def _choose(points: Points, fmt: IntegerFormat, method: Method, tensor: str) -> QuantParams:
    """The parameters that a method chooses from points alone."""
    match method:
        case MinMax() | NonOverflow():
            return _of_extremes(observed_range(points), fmt, method)
        case Percentile():
            return _fit(fmt, percentile_range(points, method.of(tensor), fmt.symmetric))
        case LayerwisePercentile():
            return layerwise_params(points, fmt, method, lambda candidate: _fit(fmt, candidate))
        case Entropy():
            return _fit(fmt, entropy_range(points, method, fmt))
        case MinMSE(mode="Percentile") if fmt.power_of_two:
            return QuantParams.at(fmt, min_mse_within(points, fmt, method.percentile))
        case MinMSE(mode="Percentile"):
            kept = points.within(*percentile_range(points, method.percentile, fmt.symmetric))
            return _fit(fmt, min_mse_range(kept, fmt))
        case MinMSE():
            return _fit(fmt, min_mse_range(points, fmt))
        case Distribution():
            raise AssertionError("check_method refuses Distribution for every integer format")


def _of_extremes(extremes: Range, fmt: IntegerFormat, method: Method) -> QuantParams:
    """The parameters where only the extremes are known; on power-of-two scales NonOverflow is strict about them."""
    if isinstance(method, NonOverflow):
        return QuantParams.at(fmt, non_overflow(extremes, fmt))
    return _fit(fmt, extremes)


def _fit(fmt: IntegerFormat, chosen: Range) -> QuantParams:
    if fmt.power_of_two:
        return QuantParams.at(fmt, range_position(chosen, fmt))
    return fmt.fit(chosen.low, chosen.high)
