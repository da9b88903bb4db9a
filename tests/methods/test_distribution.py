from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from onnxruntime.quantization.calibrate import HistogramCollector
from onnxruntime.quantization.quant_utils import compute_scale_zp_float8

from detent.methods.distribution import float8_numbers, float8_scale
from detent.methods.method import Points
from detent.numerics.floats import FloatFormat
from tests.methods.data import DISTRIBUTIONS, binned


@pytest.mark.parametrize(
    ("dtype", "theirs"), [("float8_e4m3", ml_dtypes.float8_e4m3fn), ("float8_e5m2", ml_dtypes.float8_e5m2)]
)
def test_the_numbers_of_the_format(dtype, theirs):
    everything = np.arange(256, dtype=np.uint8).view(theirs).astype(np.float64)
    assert float8_numbers(FloatFormat(dtype)).tolist() == sorted(everything[np.isfinite(everything)].tolist())


@pytest.mark.parametrize("name", ["normal", "laplace", "relu", "bimodal"])
def test_onnxruntime_agrees_on_the_same_scenario(name, capsys):
    values = DISTRIBUTIONS[name]
    collector = HistogramCollector("distribution", True, 2048, 128, 99.0, "same")
    collector.collect_value({"x": [values]})
    deviation = collector.compute_collection_result()["x"].std
    _, theirs = compute_scale_zp_float8(TensorProto.FLOAT8E4M3FN, deviation)
    assert float8_scale(binned(values), FloatFormat("float8_e4m3"), "same") == pytest.approx(float(theirs), rel=2e-3)


def test_the_cube_roots_have_onnxruntimes_deviation(capsys):
    values = DISTRIBUTIONS["normal"]
    collector = HistogramCollector("distribution", True, 2048, 128, 99.0, "p3")
    collector.collect_value({"x": [values]})
    deviation = float(collector.compute_collection_result()["x"].std)
    wanted = (deviation / np.cbrt(float8_numbers(FloatFormat("float8_e4m3"))).std()) ** 3
    assert float8_scale(binned(values), FloatFormat("float8_e4m3"), "p3") == pytest.approx(wanted, rel=1e-2)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("scenario", ["same", "p3"])
def test_it_scales_with_the_data(dtype, scenario):
    numbers = float8_numbers(FloatFormat(dtype))
    assert float8_scale(Points.of_values(numbers), FloatFormat(dtype), scenario) == pytest.approx(1.0, rel=1e-2)
    for factor in (2.0**-20, 8.0, 2.0**60):
        scaled = float8_scale(Points.of_values(DISTRIBUTIONS["normal"] * factor), FloatFormat(dtype), scenario)
        alone = float8_scale(Points.of_values(DISTRIBUTIONS["normal"]), FloatFormat(dtype), scenario)
        assert scaled == pytest.approx(alone * factor, rel=1e-6)
    for values in DISTRIBUTIONS.values():
        raw, bins = (
            float8_scale(points, FloatFormat(dtype), scenario) for points in (Points.of_values(values), binned(values))
        )
        assert bins == pytest.approx(raw, rel=0.02)


def test_no_spread_is_scale_one():
    for values in ([], [0.0], [0.7, 0.7]):
        assert float8_scale(Points.of_values(values), FloatFormat("float8_e5m2"), "same") == 1.0
