from __future__ import annotations

import numpy as np
import onnx
import pytest

from detent.compat.configs import QuantizationConfig, get_default_config
from detent.compat.growing_histogram import GrowingHistogram
from detent.compat.translate import translate
from tests.compat.scripts import PRESET, READER


def test_bins_are_those_of_the_first_sample_and_go_on_in_their_width():
    histogram = GrowingHistogram(np.array([0.0, 1, 2, 3, 4, -4], np.float32), bins=4)
    assert histogram.range_of(100) == (-3, 3)  # the lower edge of the bin that the last value is in
    histogram.add(np.array([6.5, -6.5, 5.5, 0.5], np.float32))
    assert histogram.range_of(100) == (-6, 6)
    assert histogram.range_of(75) == (-5, 5)


def test_what_is_below_the_first_edge_is_not_counted_and_the_range_ends_where_values_do():
    histogram = GrowingHistogram(np.array([2.0, 3, 4], np.float32), bins=2)
    histogram.add(np.zeros(1000, np.float32))
    assert histogram.range_of(50) == (0, 3)
    assert GrowingHistogram(np.array([2.0, 3, 4], np.float32), bins=2).range_of(50) == (2, 3)


@pytest.mark.parametrize(
    ("options", "counted"),
    [({}, (2048, 99.9999)), ({"NumBins": 512}, (512, 99.9999)), ({"CalibTensorRangeSymmetric": False}, None)],
)
def test_what_is_counted(options, counted):
    config = get_default_config("S8S8_AAWS")
    config.extra_options |= options
    assert translate(config, as_quark=True).counted == counted
    assert translate(config).counted is None
    assert translate(QuantizationConfig(), as_quark=True).counted is None


def test_scales_of_the_reference(detent, tiny, tmp_path):
    """The input's range, by the same arithmetic on the same samples, and no pairs around operators that have none."""
    (tmp_path / "script.py").write_text(f"{READER}{PRESET}", encoding="utf-8")
    output = tmp_path / "out.onnx"
    outcome = detent("run", "--as-quark", tmp_path / "script.py", tiny, output, "S8S8_AAWS")
    assert outcome.code == 0, outcome.err
    rng = np.random.default_rng(5)
    first, *others = [rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(10)]
    histogram = GrowingHistogram(first, 2048)
    for each in others:
        histogram.add(each)
    low, high = histogram.range_of(99.9999)
    scales = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(output).graph.initializer}
    assert scales["x_scale"] == pytest.approx((high - low) / 255, rel=1e-6)
