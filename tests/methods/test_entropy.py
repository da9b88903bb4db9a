from __future__ import annotations

import math

import numpy as np
import pytest
from onnxruntime.quantization.calibrate import HistogramCollector

from detent.methods import Entropy
from detent.methods.entropy import EMPTY_GROUP, entropy_range, rebinned
from detent.methods.method import Points
from detent.numerics.formats import IntegerFormat
from tests.methods.data import DISTRIBUTIONS, binned, distributions, squared_error

MANY = distributions(100_000)
INT8, UINT8 = IntegerFormat("int8"), IntegerFormat("uint8", symmetric=False)


def by_definition(counts, first, last, groups):
    """Every window of bins and its divergence, from P and Q written out."""
    middle, found = len(counts) // 2, {}
    for half in range(1, middle + 1):
        start, stop = max(middle - half, first), min(middle + half, last)
        size = stop - start
        if size < groups or not sum(counts[start:stop]):
            continue
        p = list(counts[start:stop])
        p[0] += sum(counts[:start])
        p[-1] += sum(counts[stop:])
        q = [0.0] * size
        for group in range(groups):
            members = range(group * size // groups, (group + 1) * size // groups)
            occupied = [i for i in members if p[i] > 0]
            mass = sum(counts[start + i] for i in members)
            for i in occupied:
                q[i] = max(mass, EMPTY_GROUP) / len(occupied)
        inside, total = sum(counts[start:stop]), sum(p)
        divergence = math.fsum(
            a / total * math.log((a / total) / (b / inside)) for a, b in zip(p, q, strict=True) if a > 0
        )
        found.setdefault((start, stop), divergence)
    return found


@pytest.mark.parametrize("name", ["normal", "laplace", "relu", "bimodal", "outlier", "negative", "relu6"])
@pytest.mark.parametrize("fmt", [INT8, UINT8], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("groups", [16, 60])
def test_the_window_with_the_least_divergence_wins(name, fmt, groups):
    bins = 128
    points = Points.of_values(DISTRIBUTIONS[name])
    counts = rebinned(points, bins)
    occupied = np.flatnonzero(counts)
    bounds = (0, bins) if fmt.symmetric else (min(occupied[0], bins // 2), max(occupied[-1] + 1, bins // 2))
    windows = by_definition(counts.tolist(), *bounds, groups)
    start, stop = min(windows, key=lambda window: (round(windows[window], 12), window[1] - window[0]))
    width = points.largest / (bins // 2)
    low, high = entropy_range(points, Entropy(bins, groups), fmt)
    assert low == pytest.approx(max((start - bins // 2) * width, points.minimum))
    assert high == pytest.approx(min((stop - bins // 2) * width, points.maximum))


def test_rebinned_keeps_every_value_but_the_zeros():
    for name, values in DISTRIBUTIONS.items():
        for points in (Points.of_values(values), binned(values)):
            counts = rebinned(points, 128)
            assert counts.sum() == pytest.approx((values != 0).sum(), abs=2), name
    counts = rebinned(Points.of_values([-2.0, -1.0, -0.5, 0.0, 0.5, 1.5, 2.0]), 4)
    assert counts.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("name", ["normal", "laplace", "bimodal", "relu"])
def test_as_many_groups_as_bins_leave_the_whole_range_here_and_in_onnxruntime(name, capsys):
    values = DISTRIBUTIONS[name]
    collector = HistogramCollector("entropy", False, 128, 128, 99.0, "same")
    collector.collect({"x": [values]})
    theirs = [float(end) for end in collector.compute_collection_result()["x"][:2]]
    assert theirs == [values.min(), values.max()]
    assert entropy_range(binned(values), Entropy(128, 128), INT8) == (values.min(), values.max())


@pytest.mark.parametrize("fmt", [INT8, UINT8, IntegerFormat("int4")], ids=["int8", "uint8", "int4"])
def test_it_is_of_use(fmt):
    """Nearer to the least error than the whole range is, where there are tails to clip."""
    for name in ("normal", "laplace"):
        values = MANY[name]
        chosen = fmt.fit(*entropy_range(binned(values), Entropy(), fmt))
        everything = fmt.fit(float(values.min()), float(values.max()))
        assert squared_error(values, chosen) < 0.9 * squared_error(values, everything)
    # A lone outlier is given up, and all else is finer.
    values = MANY["outlier"]
    chosen = fmt.fit(*entropy_range(binned(values), Entropy(), fmt))
    everything = fmt.fit(float(values.min()), float(values.max()))
    assert squared_error(values[values < 10], chosen) < 0.1 * squared_error(values[values < 10], everything)


def test_zeros_do_not_decide():
    values = DISTRIBUTIONS["laplace"]
    positive = values[values > 0]
    with_zeros = np.concatenate((positive, np.zeros(20 * positive.size, np.float32)))
    assert entropy_range(Points.of_values(with_zeros), Entropy(), UINT8).high == pytest.approx(
        entropy_range(Points.of_values(positive), Entropy(), UINT8).high
    )


def test_sixteen_bits_keep_the_whole_range():
    values = DISTRIBUTIONS["laplace"]
    assert entropy_range(binned(values), Entropy(), IntegerFormat("int16")) == (values.min(), values.max())


def test_nothing_zero_and_constant():
    for points in (Points.of_values([]), Points.of_values([0.0])):
        assert entropy_range(points, Entropy(), INT8) == (0.0, 0.0)
    constant = float(np.float32(0.7))
    assert entropy_range(binned([0.7] * 9), Entropy(), INT8) == (constant, constant)
