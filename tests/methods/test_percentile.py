from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector

from detent.errors import UsageError
from detent.methods import MinMax, Percentile
from detent.methods.method import Points
from detent.methods.percentile import percentile_range
from tests.methods.data import DISTRIBUTIONS, binned


def test_known_answers():
    points = Points.of_values(range(-3, 1000))  # 1003 values
    assert percentile_range(points, 100.0, symmetric=True) == (-3.0, 999.0)
    assert percentile_range(points, 100.0, symmetric=False) == (-3.0, 999.0)
    # 0.1 % of 1003 is 1.003: one value may be outside; at either end none, as half of that is less than one.
    assert percentile_range(points, 99.9, symmetric=True) == (-3.0, 998.0)
    assert percentile_range(points, 99.9, symmetric=False) == (-3.0, 999.0)
    assert percentile_range(points, 99.0, symmetric=True) == (-3.0, 989.0)  # 10 outside
    assert percentile_range(points, 99.0, symmetric=False) == (2.0, 994.0)  # 5 at either end
    assert percentile_range(Points.of_values(np.arange(1, 1001)), 99.9, symmetric=True) == (1.0, 999.0)
    # A negative threshold is no range for positive data: what was observed bounds it.
    assert percentile_range(Points.of_values([-5.0, -4.0, 1.0, 2.0]), 50.0, symmetric=True) == (-2.0, 2.0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60),
    st.sampled_from([50.0, 75.0, 90.0, 99.0, 99.9, 100.0]),
)
def test_it_is_the_smallest_range_with_the_promised_share(values, percentile):
    data = np.array(values, np.float32).astype(np.float64)
    if not data.any():
        return
    low, high = percentile_range(Points.of_values(data), percentile, symmetric=False)
    allowed = data.size * (100 - percentile) / 200
    assert (data < low).sum() <= allowed + 1e-9
    assert (data > high).sum() <= allowed + 1e-9
    if (low, high) != (0.0, 0.0) and (data != 0).all():
        assert (data <= low).sum() > allowed - 1e-9
        assert (data >= high).sum() > allowed - 1e-9


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
def test_a_histogram_is_at_most_a_bin_wider_than_the_data(name, symmetric, percentile):
    values = DISTRIBUTIONS[name]
    exact = percentile_range(Points.of_values(values), percentile, symmetric)
    found = percentile_range(binned(values), percentile, symmetric)
    width = 2.0 * max(np.abs(values).max(), 2.0**-100) / 2**13
    assert found.low <= exact.low <= found.low + width
    assert found.high - width <= exact.high <= found.high


@pytest.mark.parametrize("name", ["normal", "laplace", "bimodal", "relu"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_onnxruntime_agrees_within_its_bins(name, symmetric, capsys):
    # Not 99: their running share of 4000 values may fall short of it by a rounding error, and take the next value.
    bins, percentile = 4096, 99.01
    collector = HistogramCollector("percentile", symmetric, bins, 128, percentile, "same")
    collector.collect({"x": [DISTRIBUTIONS[name]]})
    low, high = (float(end) for end in collector.compute_collection_result()["x"][:2])
    found = percentile_range(binned(DISTRIBUTIONS[name]), percentile, symmetric)
    width = 2.0 * float(np.ptp(DISTRIBUTIONS[name])) / bins
    assert found.high == pytest.approx(high, abs=width)
    assert found.low == pytest.approx(low, abs=width)


def test_mostly_zeros_are_not_erased():
    values = np.zeros(1_000_000, np.float32)
    values[:4] = [0.25, 0.5, 1.0, 2.0]
    for points in (Points.of_values(values), binned(values)):
        assert percentile_range(points, 99.999, symmetric=True) == (0.0, 2.0)
        assert percentile_range(points, 99.999, symmetric=False) == (0.0, 2.0)
    assert percentile_range(Points.of_values(values), 75.0, symmetric=True) == (0.0, 1.0)


def test_nothing_and_zero():
    for points in (Points.of_values([]), Points.of_values([0.0, 0.0])):
        assert percentile_range(points, 99.0, symmetric=True) == (0.0, 0.0)
        assert percentile_range(points, 99.0, symmetric=False) == (0.0, 0.0)


def test_an_unknown_tensor_is_an_error():
    MinMax().check_tensors(["conv1"])
    Percentile(by_tensor=(("conv1", 99.0),)).check_tensors(["conv1", "conv2"])
    with pytest.raises(UsageError, match="'conv3'.*Did you mean 'conv"):
        Percentile(by_tensor=(("conv3", 99.0),)).check_tensors(["conv1", "conv2"])
