"""What the report's pictures are drawn from: few numbers for each tensor, however large the model or the data.

Of an activation: a histogram of at most 64 columns, and the ends of the numbers that have a code. Of a layer's weight:
the largest magnitude of its output channels, largest channel first, before and after channels were rescaled; of more
than 64 channels, 64 that are evenly spaced in that order. Rounding to one step for all channels is fair to all of them
where that curve is flat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant
from detent.observe.histogram import Histogram
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Layout, Role
from detent.plan.plan import Plan
from detent.report.columns import Column, columns_of

COLUMNS = 64
CURVE = 64

Magnitudes = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Distribution:
    """The columns of an activation's histogram. `span` are the ends of the codes; None where blocks follow the values.

    `values` were counted.
    """

    columns: tuple[Column, ...]
    span: tuple[float, float] | None
    values: int


@dataclass(frozen=True)
class ChannelSizes:
    """The largest magnitudes of a weight's channels, the largest first: of all or of 64, before and after rescaling.

    The spread is the largest channel over the middle one.
    """

    channels: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    spread_before: float
    spread_after: float


@dataclass(frozen=True)
class Pictures:
    """By the names of tensors. Activations that share another's scale are not in it, weights only if rescaled."""

    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    channels: Mapping[str, ChannelSizes] = field(default_factory=dict)


def distributions_of(plan: Plan, statistics: Mapping[str, TensorStatistics]) -> dict[str, Distribution]:
    """The histogram of every activation that was counted, with the span of its final parameters."""
    return {
        name: distribution(seen.histogram, plan.of(name).span)
        for name, seen in statistics.items()
        if seen.histogram.total and name in plan.layout.sites
    }


def distribution(histogram: Histogram, span: tuple[float, float]) -> Distribution:
    """The picture of one histogram; values may all be the same."""
    low, high = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
    margin = (high - low) / COLUMNS or histogram.width  # what sits at an extreme, as behind a Clip, has a column too
    columns = columns_of(histogram, low - margin, high + margin, COLUMNS)
    return Distribution(tuple(columns), span if all(map(math.isfinite, span)) else None, histogram.total)


def channel_magnitudes(model: ir.Model, layout: Layout) -> dict[str, Magnitudes]:
    """The largest magnitude of each output channel of every layer's weight."""
    found = {}
    for site in layout.of_role(Role.WEIGHT):
        array = constant(model.graph.initializers[site.value])
        if array is None or site.axis is None or array.ndim < 2 or not array.size:
            continue
        others = tuple(axis for axis in range(array.ndim) if axis != site.axis % array.ndim)
        found[site.value] = np.maximum(array.max(axis=others), -array.min(axis=others)).astype(np.float64)
    return found


def channel_sizes(before: Mapping[str, Magnitudes], after: Mapping[str, Magnitudes]) -> dict[str, ChannelSizes]:
    """Both curves of every weight that has other channels than before."""
    return {
        name: ChannelSizes(was.size, _curve(was), _curve(after[name]), _spread(was), _spread(after[name]))
        for name, was in before.items()
        if name in after and not np.array_equal(was, after[name])
    }


def _curve(magnitudes: Magnitudes) -> tuple[float, ...]:
    ordered = np.sort(magnitudes)[::-1]
    chosen = np.linspace(0, ordered.size - 1, min(CURVE, ordered.size)).round().astype(int)
    return tuple(ordered[chosen].tolist())


def _spread(magnitudes: Magnitudes) -> float:
    middle = float(np.median(magnitudes))
    return float(magnitudes.max()) / middle if middle else math.inf
