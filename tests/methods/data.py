"""Tensors of many shapes, and what was observed of them."""

from __future__ import annotations

import numpy as np

from detent.methods.method import Points
from detent.numerics.formats import IntegerFormat
from detent.observe.counting import HALF
from detent.observe.statistics import Histogram, TensorStatistics
from tests.models import count_sample


def distributions(size=4000):
    rng = np.random.default_rng(7)
    normal = rng.normal(size=size)
    bimodal = np.where(rng.random(size) < 0.3, 0.3 * normal - 2.0, 0.2 * normal + 5.0)
    outlier = normal.copy()
    outlier[17] = 300.0
    shapes = {
        "normal": normal,
        "laplace": rng.laplace(size=size),
        "relu": np.maximum(normal - 0.5, 0.0),
        "relu6": np.clip(4.0 * normal, 0.0, 6.0),
        "negative": -np.abs(normal) - 1.0,
        "bimodal": bimodal,
        "outlier": outlier,
        "tiny": 1e-30 * normal,
        "huge": 3e37 * normal,
        "constant": np.full(100, 0.7),
    }
    return {name: values.astype(np.float32) for name, values in shapes.items()}


DISTRIBUTIONS = distributions()
FORMATS = [
    IntegerFormat(dtype, symmetric)
    for dtype in ("int4", "uint4", "int8", "uint8", "int16", "uint16")
    for symmetric in (True, False)
]


def observed(*samples):
    statistics = TensorStatistics()
    for sample in samples:
        count_sample(statistics, np.asarray(sample, np.float32))
    return statistics


def binned(values):
    histogram = Histogram()
    histogram.add(np.asarray(values, np.float32))
    return Points.of_histogram(histogram)


def squared_error(values, params):
    """The sum of squared errors on the data themselves."""
    data = np.asarray(values, np.float64)
    return float(((params.snap(data) - data) ** 2).sum())


def identifier(fmt):
    return f"{fmt.dtype}-{'symmetric' if fmt.symmetric else 'asymmetric'}"


def error_of_bins(histogram, position, grid):
    """The sum of squared errors at a position, each value taken as its bin's centre."""
    bins = np.flatnonzero(histogram.counts)
    centres = (bins - HALF + 0.5) * histogram.width
    difference = centres - grid.snap(centres, 2.0**-position)
    return float(np.vdot(histogram.counts[bins], difference * difference))
