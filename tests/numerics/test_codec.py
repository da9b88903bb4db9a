"""The attributes and methods that every format has, and the one that encodes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from detent.numerics import BLOCK_FORMATS, NAMED_FORMATS, codec
from detent.numerics.blocks import BlockParams, is_block
from detent.numerics.floats import FloatFormat, FloatParams, is_float
from detent.numerics.formats import (
    IntegerFormat,
    QuantParams,
    decode_activation,
    encode_activation,
    has_power_of_two_scale,
    is_integer,
    is_product_bias,
)
from tests.models import RUNTIME, since_runtime


@pytest.mark.parametrize("fmt", NAMED_FORMATS.values(), ids=str)
def test_every_format_is_of_one_kind(fmt):
    assert [is_integer(fmt), is_float(fmt), is_block(fmt)].count(True) == 1
    assert fmt.bits > 0 and fmt.label and fmt.description.startswith(fmt.label)
    assert fmt.replace() == fmt and fmt.along(1).format == fmt
    kind = QuantParams if is_integer(fmt) else BlockParams if fmt.in_blocks else FloatParams
    assert isinstance(fmt.fit(-1.0, 1.0), kind)


def test_no_format_is_of_no_kind():
    assert not (is_integer(None) or is_float(None) or is_block(None))
    assert not (has_power_of_two_scale(None) or is_product_bias(None))


@pytest.mark.parametrize(
    ("fmt", "opset", "twin"),
    [
        (IntegerFormat("int8"), 0, False),
        (IntegerFormat("int16"), 21, True),
        (IntegerFormat("uint4"), 21, True),
        (IntegerFormat("int4", granularity="per_group:32"), 21, False),
        (IntegerFormat("int8", granularity="per_group:32"), 21, False),
        (IntegerFormat("int32"), 0, False),
        (FloatFormat("float8_e5m2"), 19, False),
        (FloatFormat("bfloat16"), 0, False),
        (BLOCK_FORMATS["MX6"], 0, False),
    ],
)
def test_operator_sets(fmt, opset, twin):
    assert (fmt.least_opset, fmt.has_twin) == (opset, twin)


def test_what_needs_data():
    assert IntegerFormat("int8").needs_data and FloatFormat("float16", scaled=True).needs_data
    assert not FloatFormat("float16").needs_data and not BLOCK_FORMATS["BFP16"].needs_data


def quantize(x, scale, zero_point, dtype, axis=1, block=0):
    """The codes that onnxruntime's QuantizeLinear finds."""
    kind = TensorProto.FLOAT16 if x.dtype == np.float16 else TensorProto.FLOAT
    attributes = {"axis": axis, **({"block_size": block} if block else {})}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.INT32),
    ]
    constants = [
        numpy_helper.from_array(scale.astype(x.dtype), "s"),
        helper.make_tensor("z", getattr(TensorProto, dtype.upper()), zero_point.shape, zero_point.reshape(-1).tolist()),
    ]
    ends = [helper.make_tensor_value_info(n, t, x.shape) for n, t in (("x", kind), ("y", TensorProto.INT32))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def near_ties(scale, fmt, seed):
    """Numbers beside the thresholds between two codes, where the precision of the division decides."""
    rng = np.random.default_rng(seed)
    halves = rng.integers(fmt.low - 3, fmt.high + 3, (6, 64)) + 0.5
    exact = (halves * scale).astype(np.float32)
    return np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))])


NARROW = (
    *(pytest.param(each, marks=since_runtime(23, "Cast of 4 bits")) for each in ("int4", "uint4")),
    *("int8", "uint8", "int16", "uint16"),
)


@pytest.mark.parametrize("dtype", NARROW)
@settings(deadline=None, max_examples=15)
@given(st.floats(1e-4, 1e4), st.integers(0, 1 << 30))
def test_codes_are_those_of_onnxruntime(dtype, largest, seed):
    fmt = IntegerFormat(dtype, symmetric=False)
    params = fmt.fit(-largest, 0.7 * largest)
    x = near_ties(float(params.scale), fmt, seed)
    np.testing.assert_array_equal(params.encode(x), quantize(x, params.scale, params.zero_point, dtype))
    if RUNTIME < (1, 28):  # it rounds quotients of float16 otherwise
        return
    half = x.astype(np.float16)
    scale = np.maximum(params.scale.astype(np.float16), np.float16(1e-4))
    codes = codec.encode(half, scale, params.zero_point, fmt.low, fmt.high, fmt.bits)
    np.testing.assert_array_equal(codes, quantize(half, scale, params.zero_point, dtype))


@pytest.mark.parametrize("dtype", NARROW)
def test_channels_and_blocks_are_those_of_onnxruntime(dtype):
    fmt = IntegerFormat(dtype, symmetric=False)
    rng = np.random.default_rng(len(dtype))
    x = rng.standard_normal((6, 10)).astype(np.float32)
    zero_point = np.full(6, (fmt.low + fmt.high + 1) // 2)
    scale = rng.uniform(0.5, 1.5, 6).astype(np.float32).astype(np.float64) / (fmt.high - fmt.low)
    channels = QuantParams(fmt, scale, zero_point, axis=0)
    np.testing.assert_array_equal(channels.encode(x), quantize(x, scale, zero_point, dtype, axis=0))
    scales = np.repeat(scale[:, None], 3, axis=1)
    blocks = QuantParams(fmt, scales, np.repeat(zero_point[:, None], 3, axis=1), axis=1, block=4)
    wanted = quantize(x, scales, blocks.zero_point, dtype, axis=1, block=4)
    np.testing.assert_array_equal(blocks.encode(x), wanted)


def test_the_precision_of_the_division_decides():
    """In float64 this number is nearer to the code above; its float32 quotient is a tie, and goes to the even code."""
    rng = np.random.default_rng(0)
    params = IntegerFormat("int16").fit(-6.0, 6.0)
    x = rng.standard_normal(100_000).astype(np.float32)
    in_float64 = np.rint(x.astype(np.float64) / params.scale)
    assert (params.encode(x) != in_float64).any()
    np.testing.assert_array_equal(params.encode(x), quantize(x, params.scale, params.zero_point, "int16"))


def test_codes_of_32_bits_keep_all_of_them():
    params = QuantParams.of(IntegerFormat("int32"), 2.0**-20, 0)
    assert params.encode(np.float32(1000.0009765625)) == 1000 * 2**20 + 1024
    assert params.encode(np.array([1000 + 2.0**-20])) == 1000 * 2**20 + 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_compiled_loops_are_the_same(dtype):
    fmt = IntegerFormat(dtype, symmetric=False)
    params = fmt.fit(-2.0, 3.0)
    x = near_ties(float(params.scale), fmt, 3)
    np.testing.assert_array_equal(encode_activation(x, params), params.encode(x))
    np.testing.assert_array_equal(decode_activation(params.codes(x), params), params.stored(x))


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (2, 3), (3, 1, 5), (2, 3, 4), (1, 40)])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_codes_and_numbers_are_the_same_part_by_part(monkeypatch, shape, axis):
    """Parts of every size, down to a single number, give what the whole array gives."""
    if axis is not None and not shape:
        return
    random = np.random.default_rng(3)
    values = random.normal(0, 40, shape).astype(np.float32)
    count = () if axis is None else (shape[axis],)
    scale = codec.spread(random.uniform(0.3, 2, count), shape, axis, 0)
    zero_point = codec.spread(random.integers(-9, 9, count), shape, axis, 0)
    codes = np.clip(codec.levels(values, scale, zero_point, 8), -128, 127).astype(np.int8)
    numbers = (codes.astype(np.int64) - zero_point).astype(np.float32) * np.asarray(scale).astype(np.float32)
    for part in (1, 2, 5, 1000):
        monkeypatch.setattr(codec, "PART", part)
        assert np.array_equal(codec.encode(values, scale, zero_point, -128, 127, 8, np.int8), codes)
        assert np.array_equal(codec.decode(codes, scale, zero_point), numbers)
