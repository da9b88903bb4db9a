from __future__ import annotations

import math
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from detent.errors import UsageError
from detent.numerics.floats import FLOAT_NAMES, FloatFormat

LAYOUT = {
    # dtype: (exponent bits, mantissa bits, largest)
    "bfloat16": (8, 7, (2 - 2**-7) * 2.0**127),
    "float16": (5, 10, 65504.0),
    "float8_e4m3": (4, 3, 448.0),
    "float8_e5m2": (5, 2, 57344.0),
}
ONNX_TYPES = {
    "bfloat16": TensorProto.BFLOAT16,
    "float16": TensorProto.FLOAT16,
    "float8_e4m3": TensorProto.FLOAT8E4M3FN,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
}
BF16 = FloatFormat("bfloat16")
formats = pytest.mark.parametrize("fmt", [FloatFormat(name) for name in FLOAT_NAMES], ids=str)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def meaning(fmt: FloatFormat) -> np.ndarray:
    """The non-negative numbers of the format in order, up to the largest, read off the bits of their codes."""
    exponent_bits, mantissa_bits, largest = LAYOUT[fmt.dtype]
    bias = 2 ** (exponent_bits - 1) - 1
    numbers = []
    for code in range(2 ** (fmt.bits - 1)):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        leading = 1 if exponent else 0
        numbers.append(math.ldexp(leading + mantissa / 2**mantissa_bits, max(exponent, 1) - bias))
        if numbers[-1] == largest:
            break
    return np.array(numbers)


def unsigned(fmt: FloatFormat, codes: np.ndarray) -> np.ndarray:
    return codes.view(np.uint8 if fmt.bits == 8 else np.uint16)


def every_code(fmt: FloatFormat) -> np.ndarray:
    return np.arange(2**fmt.bits).astype(np.uint8 if fmt.bits == 8 else np.uint16).view(fmt.storage)


def cast_by_onnxruntime(fmt: FloatFormat, values: np.ndarray) -> np.ndarray:
    nodes = [
        helper.make_node("Cast", ["x"], ["code"], to=ONNX_TYPES[fmt.dtype]),
        helper.make_node("Cast", ["code"], ["y"], to=TensorProto.FLOAT),
    ]
    return run(nodes, [], values, 19)


def run(nodes, initializers, values, opset):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, values.shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})[0]


@formats
def test_the_codes_mean_what_their_bits_say(fmt):
    numbers = meaning(fmt)
    assert numbers[-1] == fmt.largest == LAYOUT[fmt.dtype][2]
    codes = every_code(fmt)
    np.testing.assert_array_equal(fmt.decode(codes[: len(numbers)]), numbers)
    np.testing.assert_array_equal(fmt.decode(codes[len(codes) // 2 :][: len(numbers)]), -numbers)
    assert not np.isfinite(fmt.decode(codes[len(numbers) : len(codes) // 2])).any()


@formats
def test_every_code_survives(fmt):
    codes = every_code(fmt)
    numbers = fmt.decode(codes)
    assert numbers.dtype == np.float32
    finite = np.isfinite(numbers)
    again = fmt.encode(numbers)
    assert again.dtype == fmt.storage
    np.testing.assert_array_equal(unsigned(fmt, again[finite]), unsigned(fmt, codes[finite]))
    assert np.isnan(fmt.decode(again)[np.isnan(numbers)]).all()


@formats
@pytest.mark.parametrize("sign", [1, -1])
def test_between_two_neighbours_the_nearest_and_on_ties_the_even_code(fmt, sign):
    numbers = meaning(fmt)
    below, above = numbers[:-1], numbers[1:]
    middle = ((below + above) / 2).astype(np.float32)
    assert (middle == (below + above) / 2).all()  # exact in float32
    even = np.where(np.arange(len(below)) % 2 == 0, below, above)
    np.testing.assert_array_equal(fmt.snap(sign * middle), sign * even)
    np.testing.assert_array_equal(fmt.snap(sign * np.nextafter(middle, np.float32(0))), sign * below)
    np.testing.assert_array_equal(fmt.snap(sign * np.nextafter(middle, np.float32(np.inf))), sign * above)


@formats
def test_past_the_largest(fmt):
    largest = np.float32(fmt.largest)
    step = largest - np.float32(meaning(fmt)[-2])
    beyond = np.array([largest + step / 4, largest + step / 2, 3.4e38, np.inf], np.float32)
    if fmt.bits == 8:
        expected = [largest] * 4
    else:
        expected = [largest, np.inf, np.inf, np.inf]  # half a step further is a tie, and the largest code is odd
        clipped = FloatFormat(fmt.dtype, clip=True)
        np.testing.assert_array_equal(clipped.snap(beyond), [largest, largest, largest, np.inf])
        np.testing.assert_array_equal(clipped.snap(-beyond), [-largest, -largest, -largest, -np.inf])
        assert np.isnan(clipped.snap(np.nan))
    np.testing.assert_array_equal(fmt.snap(beyond), expected)
    np.testing.assert_array_equal(fmt.snap(-beyond), -np.array(expected))
    assert np.isnan(fmt.snap(np.nan))


def test_bfloat16_by_integer_arithmetic():
    bits = np.random.default_rng(0).integers(0, 2**32, 300_000, dtype=np.uint32)
    bits = bits[(bits & 0x7FFFFFFF) <= 0x7F800000]
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(unsigned(BF16, BF16.encode(bits.view(np.float32))), rounded)


@formats
def test_the_same_as_the_cast_of_onnxruntime(fmt):
    rng = np.random.default_rng(1)
    anything = rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    numbers = meaning(fmt)
    middles = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    # Subnormals of float32 are left to the tests above: whether a runtime flushes them is its own affair.
    normal = np.abs(anything) >= np.finfo(np.float32).tiny
    ends = np.array([np.inf, -np.inf, 0.0], np.float32)
    values = np.concatenate([anything[normal | np.isnan(anything)], middles[middles > 2e-38], ends])
    np.testing.assert_array_equal(fmt.snap(values), cast_by_onnxruntime(fmt, values))


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.0078125])
def test_the_same_as_the_quantizelinear_of_onnxruntime(name, scale):
    fmt = FloatFormat(name, scaled=True)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["code"]),
        helper.make_node("DequantizeLinear", ["code", "scale", "zero"], ["y"]),
    ]
    initializers = [
        helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]),
        onnx.TensorProto(name="zero", data_type=ONNX_TYPES[name], raw_data=b"\0"),
    ]
    values = (np.random.default_rng(2).standard_normal(20_000) * np.exp2(np.arange(20_000) % 24 - 12)).astype(
        np.float32
    )
    np.testing.assert_array_equal(fmt.snap(values, scale), run(nodes, initializers, values, 19))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("bfloat16", 1 + 2**-8, 1.0),  # a tie
        ("bfloat16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("bfloat16", 3.14159265, 3.140625),
        ("float16", 0.1, 0.0999755859375),
        ("float16", 2.0**-25, 0.0),
        ("float16", 3 * 2.0**-25, 2.0**-23),
        ("float8_e4m3", 0.1, 0.1015625),
        ("float8_e4m3", 17.0, 16.0),
        ("float8_e4m3", 19.0, 20.0),
        ("float8_e4m3", 2.0**-10, 0.0),
        ("float8_e5m2", 0.1, 0.09375),
        ("float8_e5m2", 9.0, 8.0),
    ],
)
def test_known_answers(name, value, expected):
    assert float(FloatFormat(name).snap(value)) == expected


def test_scales():
    fmt = FloatFormat("float8_e4m3", scaled=True)
    np.testing.assert_array_equal(fmt.encode([896.0, 2000.0, -34.0], 2.0).astype(np.float32), [448.0, 448.0, -16.0])
    np.testing.assert_array_equal(fmt.snap([896.0, 2000.0, -34.0], 2.0), [896.0, 896.0, -32.0])
    per_row = np.array([[2.0], [0.5]])
    np.testing.assert_array_equal(fmt.snap([[896.0, 34.0], [8.5, 300.0]], per_row), [[896.0, 32.0], [8.0, 224.0]])


@given(st.sampled_from(FLOAT_NAMES), st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=9))
def test_monotonic_idempotent_symmetric(name, values):
    fmt = FloatFormat(name)
    snapped = fmt.snap(np.sort(values))
    assert (snapped[:-1] <= snapped[1:]).all()
    np.testing.assert_array_equal(fmt.snap(snapped), snapped)
    np.testing.assert_array_equal(fmt.snap(-np.sort(values)), -snapped)


@given(st.sampled_from(FLOAT_NAMES), st.floats(2.0**-6, 448.0), st.integers(-8, 8))
def test_half_a_step_and_powers_of_two(name, value, exponent):
    fmt, value = FloatFormat(name), float(np.float32(value))
    half_step = math.ldexp(0.5, math.frexp(value)[1] - 1 - LAYOUT[name][1])
    assert abs(float(fmt.snap(value)) - value) <= half_step
    scale = 2.0**exponent
    assert float(fmt.snap(value * scale, scale)) == float(fmt.snap(value)) * scale


def test_names_and_sizes():
    assert [FloatFormat(name).bits for name in FLOAT_NAMES] == [16, 16, 8, 8]
    assert str(FloatFormat("bfloat16")) == "bfloat16"
    assert FloatFormat("float16", clip=True).label == "float16 clipped"
    assert FloatFormat("float8_e4m3", scaled=True).label == "float8_e4m3 scaled"
    assert len({FloatFormat("float16"), FloatFormat("float16"), FloatFormat("bfloat16")}) == 2


def test_what_does_not_exist():
    with pytest.raises(UsageError, match="no float format 'float8_e4m3fn'.*Did you mean 'float8_e4m3'"):
        FloatFormat("float8_e4m3fn")
    with pytest.raises(UsageError, match="float8_e5m2 saturates"):
        FloatFormat("float8_e5m2", clip=True)
