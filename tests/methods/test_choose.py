from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.quant_utils import compute_scale_zp

from detent.errors import UsageError
from detent.methods import Distribution, Entropy, LayerwisePercentile, MinMax, MinMSE, NonOverflow, Percentile
from detent.numerics.formats import (
    IntegerFormat,
    base_position,
    min_mse_position,
    min_mse_position_of,
    non_overflow_position,
)
from detent.observe.statistics import TensorStatistics
from detent.plan.plan import RAW_LIMIT, choose_params, choose_params_of_values, method_choices, settled_params
from tests.grids import INT8, UINT8_ZERO_128
from tests.methods.data import DISTRIBUTIONS, FORMATS, error_of_bins, identifier, observed, squared_error
from tests.models import count_sample

POWERS = {"int8": INT8, "uint8": UINT8_ZERO_128}
FLOAT_METHODS = [
    *[MinMax(), MinMax(moving_average=True), Percentile(99.0), LayerwisePercentile((99.0, 99.9))],
    *[LayerwisePercentile((99.0, 99.9), "mse"), Entropy(), Entropy(512, 64), MinMSE(), MinMSE("Percentile", 99.0)],
]
POWER_METHODS = [
    *[MinMax(), MinMax(moving_average=True), Percentile(99.0), LayerwisePercentile((99.0, 99.9))],
    *[MinMSE(), MinMSE("MostCommon"), MinMSE("Percentile", 99.0), NonOverflow()],
]
EVERY_WAY = [(fmt, method) for fmt in FORMATS for method in FLOAT_METHODS] + [
    (IntegerFormat(dtype, scale="power_of_two"), method)
    for dtype in ("int4", "int8", "uint8", "int16")
    for method in POWER_METHODS
]


def power_of_two(dtype):
    return IntegerFormat(dtype, scale="power_of_two")


def same(a, b):
    return a.scale.tolist() == b.scale.tolist() and a.zero_point.tolist() == b.zero_point.tolist() and a.axis == b.axis


@pytest.mark.parametrize("dtype", POWERS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_power_of_two_positions(dtype, name):
    values, grid, fmt = DISTRIBUTIONS[name], POWERS[dtype], power_of_two(dtype)
    statistics = observed(values)
    histogram = statistics.histogram
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    searched = min_mse_position(histogram.largest, grid, lambda position: error_of_bins(histogram, position, grid))
    wanted = {
        MinMSE(): searched,
        NonOverflow(): non_overflow_position(low, high, grid),
        MinMax(): base_position(max(-low, high), grid),
    }
    for method, position in wanted.items():
        params = choose_params(statistics, fmt, method, "x")
        assert (params.scale, params.zero_point) == (2.0**-position, grid.middle)
    wanted[MinMSE()] = min_mse_position_of(values, grid)
    for method, position in {**wanted, MinMSE("MostCommon"): wanted[MinMSE()]}.items():
        params = choose_params_of_values(values, fmt, method, "x", None)
        assert (params.scale, params.zero_point) == (2.0**-position, grid.middle)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.5, 1 / 128, 3 / 128, 127.5, -128.5]) | st.floats(-300, 300, width=32)),
    st.integers(-20, 20),
    st.sampled_from([*POWERS]),
)
def test_min_mse_is_the_search_over_the_histogram_ties_included(values, shift, dtype):
    grid, statistics = POWERS[dtype], observed(np.array(values) * 2.0**shift)
    histogram = statistics.histogram
    wanted = min_mse_position(histogram.largest, grid, lambda position: error_of_bins(histogram, position, grid))
    assert choose_params(statistics, power_of_two(dtype), MinMSE(), "x").position == wanted


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_a_power_of_two_of_sixteen_bits_has_an_honest_error(dtype):
    fmt = power_of_two(dtype)
    for name in ("normal", "laplace", "relu", "outlier"):
        values = DISTRIBUTIONS[name]
        found = choose_params(observed(values), fmt, MinMSE(), "x")
        best = choose_params_of_values(values, fmt, MinMSE(), "x", None)
        assert squared_error(values, found) <= 1.02 * squared_error(values, best)


def test_min_mse_drops_what_is_beyond_the_percentile():
    values = np.concatenate((np.linspace(-1.0, 1.0, 999, dtype=np.float32), [100.0]))
    fmt = power_of_two("int8")
    assert choose_params(observed(values), fmt, MinMSE("Percentile", 99.9), "x").scale == 2.0**-7
    assert choose_params_of_values(values, fmt, MinMSE("Percentile", 99.9), "x", None).scale == 2.0**-7
    assert choose_params(observed(values), fmt, MinMSE("Percentile", 100.0), "x").scale == 1.0
    float_scale = choose_params(observed(values), IntegerFormat("int8"), MinMSE("Percentile", 99.9), "x")
    assert float_scale.span[1] == pytest.approx(1.0, rel=0.01)


def test_the_most_common_position_and_ties_to_the_larger_scale():
    fmt = power_of_two("int8")
    statistics = observed([1.0])
    statistics.votes = Counter({5: 2, 6: 3, 7: 3})
    assert choose_params(statistics, fmt, MinMSE("MostCommon"), "x").scale == 2.0**-6
    statistics.votes = Counter()
    with pytest.raises(UsageError, match="'x'.*Calibrate again with this method"):
        choose_params(statistics, fmt, MinMSE("MostCommon"), "x")


def test_votes_are_each_samples_own_best_position():
    fmt = power_of_two("int8")
    vote = MinMSE("MostCommon").vote(fmt)
    statistics = TensorStatistics()
    samples = [scale * DISTRIBUTIONS["normal"] for scale in (1.0, 4.0, 1.0)]
    for sample in samples:
        count_sample(statistics, sample, vote)
    own = [choose_params(observed(sample), fmt, MinMSE(), "x").position for sample in samples]
    assert statistics.votes == Counter(own)
    assert choose_params(statistics, fmt, MinMSE("MostCommon"), "x").position == own[0]
    assert MinMSE().vote(fmt) is None


def test_settled_outputs():
    # A Softmax: at position 7 the highest code is 127 / 128, so 1 saturates there, and not at 6.
    for dtype in POWERS:
        assert settled_params(1.0, power_of_two(dtype), MinMSE()).scale == 2.0**-7
        assert settled_params(1.0, power_of_two(dtype), MinMax()).scale == 2.0**-7
        assert settled_params(1.0, power_of_two(dtype), NonOverflow()).scale == 2.0**-6
    floats = {("int8", True): (127, 0), ("uint8", False): (255, 0), ("int8", False): (255, -128)}
    floats |= {("int16", True): (32767, 0), ("uint16", False): (65535, 0)}
    for (dtype, symmetric), (steps, zero_point) in floats.items():
        params = settled_params(1.0, IntegerFormat(dtype, symmetric=symmetric), Entropy())
        assert (params.scale, params.zero_point) == (np.float32(1 / steps), zero_point)


@pytest.mark.parametrize(
    ("dtype", "symmetric", "low", "high"),
    [("int8", True, -127, 127), ("uint8", False, 0, 255), ("int8", False, -128, 127)],
)
def test_min_max_is_that_of_onnxruntime(dtype, symmetric, low, high):
    for values in DISTRIBUTIONS.values():
        params = choose_params(observed(values), IntegerFormat(dtype, symmetric), MinMax(), "x")
        zero_point, scale = compute_scale_zp(
            values.min(), values.max(), np.array(low, dtype), np.array(high, dtype), symmetric
        )
        if scale > 1e-37:
            assert params.scale == pytest.approx(float(scale), rel=1e-6)
            assert abs(int(params.zero_point) - int(zero_point)) <= 1


def test_the_moving_average_is_the_mean_of_the_samples_extremes():
    statistics = observed([-1.0, 2.0], [-3.0, 0.0], [1.0, 4.0])
    params = choose_params(statistics, IntegerFormat("uint8", symmetric=False), MinMax(moving_average=True), "x")
    assert params.span == pytest.approx((-1.0, 2.0), abs=float(params.scale))
    assert params.scale == np.float32(3 / 255)


def test_a_percentage_for_one_tensor():
    values = np.arange(-500, 501)
    method = Percentile(100.0, by_tensor=(("b", 90.0),))
    assert choose_params(observed(values), IntegerFormat("int8"), method, "a").span[1] == pytest.approx(500.0)
    assert choose_params(observed(values), IntegerFormat("int8"), method, "b").span[1] == pytest.approx(450.0, abs=0.1)


@pytest.mark.parametrize("method", [*FLOAT_METHODS, NonOverflow(), MinMSE("MostCommon")], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_each_channel_apart(method, axis):
    weights = DISTRIBUTIONS["normal"][:360].reshape(4, 6, 15) * np.arange(1, 7, dtype=np.float32)[:, None]
    is_power = isinstance(method, NonOverflow) or method == MinMSE("MostCommon")
    fmt = IntegerFormat("int8", scale="power_of_two" if is_power else "float", granularity="per_channel")
    params = choose_params_of_values(weights, fmt, method, "w", axis)
    assert params.axis == axis % 3
    for index, channel in enumerate(np.moveaxis(weights, axis, 0)):
        alone = choose_params_of_values(channel, fmt, method, "w", None)
        assert (params.scale[index], params.zero_point[index]) == (alone.scale, alone.zero_point)
    assert params.snap(weights).shape == weights.shape


def test_a_large_constant_is_as_good_as_a_small_one():
    values = np.random.default_rng(1).laplace(size=2 * RAW_LIMIT).astype(np.float32)
    for method in (MinMSE(), Percentile(99.9), Entropy()):
        large = choose_params_of_values(values, IntegerFormat("int8"), method, "w", None)
        small = choose_params_of_values(values[:RAW_LIMIT], IntegerFormat("int8"), method, "w", None)
        assert large.scale == pytest.approx(float(small.scale), rel=0.15)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=9), min_size=1, max_size=6), st.randoms())
def test_order_and_shards_do_not_matter(samples, random):
    def collect(some):
        statistics = TensorStatistics()
        for sample in some:
            count_sample(statistics, np.array(sample, np.float32), MinMSE("MostCommon").vote(power_of_two("int8")))
        return statistics

    shuffled = random.sample(samples, len(samples))
    cut = random.randint(0, len(samples))
    shards = collect(shuffled[:cut])
    shards.merge(collect(shuffled[cut:]))
    for fmt, methods in (
        (IntegerFormat("uint8", symmetric=False), FLOAT_METHODS),
        (power_of_two("int8"), POWER_METHODS),
    ):
        for method in methods:
            assert same(choose_params(collect(samples), fmt, method, "x"), choose_params(shards, fmt, method, "x"))


EXTREME = {
    "empty": [],
    "zero": [0.0, -0.0, 0.0],
    "denormal": [1e-45, -1e-45, 3e-42],
    "largest": [3.4e38, -3.4e38, 1.0, 0.0],
    "one sign": [-3.4e38, -1e30],
    "wide": [1e-45, 3e38],
    "one": [0.7],
}


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_data_warn_of_nothing_and_give_sound_parameters(name):
    values = np.array(EXTREME[name], np.float32)
    statistics = TensorStatistics()
    for fmt, method in EVERY_WAY:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if fmt.power_of_two:
                statistics = TensorStatistics()
                count_sample(statistics, values, MinMSE("MostCommon").vote(fmt))
            else:
                statistics = observed(values)
            for params in (
                choose_params(statistics, fmt, method, "x"),
                choose_params_of_values(values, fmt, method, "x", None),
            ):
                assert 0.0 < float(np.float32(params.scale)) < np.inf
                assert fmt.low <= params.zero_point <= fmt.high
                if name in ("empty", "zero"):
                    assert not params.snap([0.0]).any()
                    if not fmt.power_of_two:
                        assert params.scale == 1.0
                unsigned = fmt.symmetric and not fmt.signed  # the highest code is half a step short of the range
                if name == "one" and not fmt.power_of_two and (not unsigned or method == MinMSE()):
                    assert params.snap([0.7])[0] == pytest.approx(0.7, rel=1e-6)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_constant_without_elements(axis):
    for fmt, method in EVERY_WAY:
        assert choose_params_of_values(np.zeros(0, np.float32), fmt, method, "w", axis).axis is None


@pytest.mark.parametrize(
    ("fmt", "method", "words"),
    [
        (power_of_two("int8"), Entropy(), "Entropy.*int8.*power-of-two.*Choose MinMSE.*NonOverflow"),
        (IntegerFormat("uint8"), NonOverflow(), "NonOverflow.*uint8.*float scales.*MinMax"),
        (IntegerFormat("uint8"), MinMSE("MostCommon"), "MostCommon.*float scales.*mode All"),
        (IntegerFormat("int4"), Distribution(), "Distribution.*float8.*int4.*Choose MinMSE"),
        (power_of_two("uint8"), Distribution(), "Distribution.*float8.*uint8"),
    ],
)
def test_contradictions_are_refused(fmt, method, words):
    calls = (
        lambda: method.check(fmt),
        lambda: choose_params(TensorStatistics(), fmt, method, "x"),
        lambda: choose_params_of_values(np.zeros(3), fmt, method, "x", None),
        lambda: settled_params(1.0, fmt, method),
    )
    for call in calls:
        with pytest.raises(UsageError, match=words):
            call()


def test_all_else_is_accepted():
    for fmt, method in EVERY_WAY:
        method.check(fmt)


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.bits == 8], ids=identifier)
def test_what_every_method_would_choose(fmt):
    statistics = observed(*DISTRIBUTIONS["laplace"].reshape(10, -1))
    choices = method_choices(statistics, fmt, power_of_two("int8"), "x")
    assert list(choices)[:2] == ["MinMax", "MinMax (moving average)"]
    assert {"Percentile", "LayerwisePercentile", "Entropy", "MinMSE", "MinMSE (power of two)", "NonOverflow"} < {
        *choices
    }
    assert choices["MinMSE"].high < choices["Percentile"].high <= choices["MinMax"].high * 1.01
    assert choices["MinMax (moving average)"].high < choices["MinMax"].high
    assert choices["NonOverflow"].high >= DISTRIBUTIONS["laplace"].max()
    statistics.votes = Counter({3: 1})
    assert method_choices(statistics, fmt, power_of_two("int8"), "x")["MinMSE (MostCommon)"].high == 127 / 8
