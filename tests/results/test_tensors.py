from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import numpy_helper

import detent
from detent.observe.statistics import Histogram
from detent.results.tensors import COLUMNS, CURVE, channel_sizes, columns_of, distribution
from tests.conftest import tiny_model


def histogram(values):
    counted = Histogram()
    counted.add(np.asarray(values, np.float32))
    return counted


def test_a_distribution_is_small_and_counts_everything():
    values = np.random.default_rng(0).standard_normal(50_000)
    found = distribution(histogram(values), (-2.0, 2.0))
    assert len(found.columns) <= COLUMNS + 2
    assert sum(count for *_, count in found.columns) == found.values == values.size
    assert found.span == (-2.0, 2.0)


def test_what_a_clip_cut_off_is_seen():
    *_, last = distribution(histogram([*np.linspace(0, 5.9, 100), *[6.0] * 1000]), (-8.0, 8.0)).columns
    left, right, count = last
    assert left <= 6.0 < right - 0.05
    assert count >= 1000


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
def test_a_tensor_of_one_value_has_one_column(value):
    found = distribution(histogram([value] * 5), (-math.inf, math.inf))
    assert [count for *_, count in found.columns] == [5]
    assert found.span is None


def test_channels_are_sorted_and_their_spread_is_the_largest_over_the_middle_one():
    found = channel_sizes({"w": np.array([1.0, 8.0, 2.0])}, {"w": np.array([2.0, 3.0, 2.0])})["w"]
    assert (found.channels, found.before, found.after) == (3, (8.0, 2.0, 1.0), (3.0, 2.0, 2.0))
    assert (found.spread_before, found.spread_after) == (4.0, 1.5)


def test_many_channels_are_thinned_with_both_ends_kept():
    before = np.arange(1.0, 1001.0)
    found = channel_sizes({"w": before}, {"w": 2 * before})["w"]
    assert len(found.before) == len(found.after) == CURVE
    assert (found.before[0], found.before[-1]) == (1000.0, 1.0)


def test_weights_that_stayed_as_they_were_have_no_picture():
    assert channel_sizes({"w": np.ones(3)}, {"w": np.ones(3)}) == {}


def test_a_report_has_the_pictures_of_its_tensors(samples):
    report = detent.quantize(tiny_model(), None, samples, hold_out=0)  # so that nothing takes equalization back
    activations = {tensor.name for tensor in report.tensors if tensor.role == "activation" and tensor.shares is None}
    assert set(report.pictures.distributions) == activations
    weights = np.abs(weight("w1")).reshape(4, -1).max(axis=1)
    assert report.pictures.channels["w1"].before == pytest.approx(sorted(weights, reverse=True))
    assert report.pictures.distributions["x"].values == report.calibration.samples * samples[0].size
    assert "pictures" not in report.to_dict()


def test_without_equalization_there_are_no_channels(samples):
    report = detent.quantize(tiny_model(), None, samples, detent.find_recipe("XINT8").replace(equalize=False))
    assert report.pictures.channels == {}


def weight(name):
    return next(numpy_helper.to_array(each) for each in tiny_model().graph.initializer if each.name == name)


def test_columns_are_aligned_to_zero_and_hold_every_value():
    # The range is 0..4 and at most 4 columns: they are 1 wide.
    found = list(columns_of(histogram([0.5, 1.5, 1.75, 3.5]), 0.0, 4.0, 4))
    assert found == [(0.0, 1.0, 1), (1.0, 2.0, 2), (3.0, 4.0, 1)]


def test_the_outermost_columns_end_where_the_range_does():
    found = list(columns_of(histogram([-1.2, 2.9]), -1.2, 2.9, 4))
    # 4.1 in at most 4 columns: they are 2 wide.
    assert found == [(-1.2, 0.0, 1), (2.0, 2.9, 1)]


@pytest.mark.parametrize("most", [16, 64, 400])
def test_half_to_all_of_the_columns_fill_the_range(most):
    values = np.linspace(-3, 5, 100_000, dtype=np.float32)
    found = list(columns_of(histogram([*values]), -3.0, 5.0, most))
    assert most / 2 <= len(found) <= most + 2
    assert sum(count for *_, count in found) == values.size
