"""From what is known of a value, its format and a method to its parameters: for a tensor, a channel or a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.methods import Entropy, LayerwisePercentile, Method, MinMax, MinMSE, NonOverflow, Percentile
from detent.methods.method import ObservedTensor
from detent.methods.points import Points, Range
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.observe.histogram import Histogram

RAW_LIMIT = 1 << 14
"""A constant of more values is counted into a histogram first: finer than its rounding needs, and far quicker."""


def choose_params(observed: ObservedTensor, fmt: IntegerFormat, method: Method, tensor: str) -> QuantParams:
    """Return the parameters of an activation, for the whole tensor."""
    method.check(fmt)
    return method.choose_observed(observed, fmt, tensor)


def choose_params_of_values(
    values: npt.NDArray[Any], fmt: IntegerFormat, method: Method, tensor: str, axis: int | None
) -> QuantParams:
    """Return the parameters of a constant: for the whole tensor, or for each index along `axis` apart."""
    method.check(fmt)
    array = np.asarray(values, np.float32)
    if axis is None or array.size == 0:
        return method.choose_values(array, fmt, tensor, points_of)
    channels = np.moveaxis(array, axis, 0)
    chosen = [method.choose_values(channel, fmt, tensor, points_of) for channel in channels]
    return QuantParams.stack(chosen, axis % array.ndim)


def choose_params_of_groups(
    values: npt.NDArray[Any], fmt: IntegerFormat, method: Method, tensor: str, axis: int
) -> QuantParams:
    """Return the parameters of a constant, for each run of `fmt.group_size` elements along `axis`."""
    method.check(fmt)
    array = np.moveaxis(np.asarray(values, np.float32), axis, -1)
    size = min(fmt.group_size, array.shape[-1])
    starts = range(0, array.shape[-1], size)
    rows = array.reshape(-1, array.shape[-1])
    chosen = [
        method.choose_values(row[start : start + size], fmt, tensor, points_of) for row in rows for start in starts
    ]
    shape = (*array.shape[:-1], len(starts))
    scales = np.array([params.scale for params in chosen], np.float64).reshape(shape)
    zero_points = np.array([params.zero_point for params in chosen], np.int64).reshape(shape)
    return QuantParams(fmt, np.moveaxis(scales, -1, axis), np.moveaxis(zero_points, -1, axis), axis, size)


def settled_params(largest: float, fmt: IntegerFormat, method: Method) -> QuantParams:
    """Return the parameters of an output that the operator itself keeps within 0..largest, whatever the data."""
    method.check(fmt)
    return method.choose_extremes(Range(0.0, largest), fmt)


def points_of(values: npt.NDArray[np.float32]) -> Points:
    """Return the values of a constant as points."""
    if values.size <= RAW_LIMIT:
        return Points.of_values(values)
    histogram = Histogram()
    histogram.add(values)
    return Points.of_histogram(histogram)


def method_choices(
    observed: ObservedTensor, fmt_float: IntegerFormat, fmt_power_of_two: IntegerFormat, tensor: str
) -> dict[str, Range]:
    """Return what each method would choose for one activation: the range that its codes would reach."""
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
    if observed.votes:
        wanted["MinMSE (MostCommon)"] = (fmt_power_of_two, MinMSE("MostCommon"))
    return {name: Range(*choose_params(observed, fmt, method, tensor).span) for name, (fmt, method) in wanted.items()}
