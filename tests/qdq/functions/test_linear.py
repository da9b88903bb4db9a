"""Extended(De)QuantizeLinear and FixNeuron in a plain onnxruntime, against their definition in numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from detent.qdq.families import OperatorName
from tests.qdq.functions.models import FIX_NEURON, OPSETS, both_generations, model_of, run, same_bits, symbolic

QUANTIZE, OLD_QUANTIZE = both_generations("ExtendedQuantizeLinear")
DEQUANTIZE, OLD_DEQUANTIZE = both_generations("ExtendedDequantizeLinear")

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
FLOATS = ("float16", "bfloat16")

SHAPES = (((6,), 0), ((2, 6), 1), ((2, 6), -1), ((2, 6, 5), 1), ((6, 2, 5), 0), ((2, 3, 5, 6), 3), ((2, 6, 3, 5), -3))


def numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def along(parameter: npt.NDArray[Any], rank: int, axis: int) -> npt.NDArray[Any]:
    if parameter.ndim == 0:
        return parameter
    shape = [1] * rank
    shape[axis] = -1
    return parameter.reshape(shape)


def quantized(
    x: npt.NDArray[Any], scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], axis: int
) -> npt.NDArray[Any]:
    """The definition."""
    scale, offset = along(scale, x.ndim, axis), along(zero_point, x.ndim, axis)
    with np.errstate(all="ignore"):
        quotient = x / scale
        if zero_point.dtype.kind in "iu":
            limits = np.iinfo(zero_point.dtype)
            codes = np.rint(quotient).astype(np.float64) + offset
            return codes.clip(limits.min, limits.max).astype(zero_point.dtype)
        return (quotient + offset.astype(np.float32)).astype(zero_point.dtype)


def dequantized(
    codes: npt.NDArray[Any], scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], axis: int
) -> npt.NDArray[Any]:
    """The definition."""
    scale, offset = along(scale, codes.ndim, axis), along(zero_point, codes.ndim, axis)
    wide = np.int64 if codes.dtype.kind in "iu" else np.float32
    with np.errstate(all="ignore"):
        return (codes.astype(wide) - offset.astype(wide)).astype(np.float32) * scale


def numbers(shape: tuple[int, ...], reach: float) -> npt.NDArray[np.float32]:
    """Numbers that reach past the largest code, some halfway between two codes, zeros, subnormals and infinities."""
    rng = np.random.default_rng(0)
    x = (rng.uniform(-1.5, 1.5, shape) * reach).astype(np.float32)
    special = np.array(
        [0.5, -1.5, 2.5, 0.0, -0.0, 1e-40, -1e-45, np.inf, -np.inf, 3e38, -3e38, 2.0**24 + 2], np.float32
    )
    x.reshape(-1)[: len(special)] = special[: x.size]
    return rng.permutation(x.reshape(-1)).reshape(shape)


def parameters(dtype: str, channels: int | None) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    rng = np.random.default_rng(1)
    code = numpy_type(dtype)
    if channels is None:
        zero_point = 3 if code.kind in "iu" else 0.75
        return np.array(0.5, np.float32), np.array(zero_point, code)
    scale = np.array([1.0, 0.5, 0.1, 3.0, 2.0**-7, 1e-3], np.float32)[:channels]
    if code.kind not in "iu":
        return scale, rng.uniform(-2, 2, channels).astype(code)
    limits = np.iinfo(code)
    ends = np.array([limits.min, limits.max, 0, 1, limits.max // 2, 7], np.int64)[:channels]
    return scale, ends.astype(code)


def reach_of(dtype: str) -> float:
    return float(np.iinfo(dtype).max) if dtype in INTEGERS else 1e5


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("per_axis", [False, True])
def test_quantizes(dtype: str, per_axis: bool, opset: int) -> None:
    for operator, (shape, axis) in zip((QUANTIZE, OLD_QUANTIZE) * 4, SHAPES, strict=False):
        scale, zero_point = parameters(dtype, 6 if per_axis else None)
        x = numbers(shape, reach_of(dtype))
        code = ir.DataType.from_numpy(zero_point.dtype)
        model = model_of(
            operator, symbolic(len(shape)), [scale, zero_point], {"axis": axis}, codes_out=code, opset=opset
        )
        expected = quantized(x, scale, zero_point, axis)
        if dtype == "bfloat16":
            expected = expected.astype(np.float32)
        assert same_bits(run(model, x), expected), (shape, axis)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("per_axis", [False, True])
def test_dequantizes(dtype: str, per_axis: bool, opset: int) -> None:
    for operator, (shape, axis) in zip((DEQUANTIZE, OLD_DEQUANTIZE) * 4, SHAPES, strict=False):
        scale, zero_point = parameters(dtype, 6 if per_axis else None)
        codes = quantized(numbers(shape, reach_of(dtype)), scale, zero_point, axis)
        code = ir.DataType.from_numpy(zero_point.dtype)
        model = model_of(
            operator, symbolic(len(shape)), [scale, zero_point], {"axis": axis}, codes_in=code, opset=opset
        )
        fed = codes.astype(np.float32) if dtype == "bfloat16" else codes
        assert same_bits(run(model, fed), dequantized(codes, scale, zero_point, axis)), (shape, axis)


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_axis_is_1_where_it_is_not_given(dtype: str) -> None:
    scale, zero_point = parameters(dtype, 6)
    x, code = numbers((2, 6, 4), reach_of(dtype)), ir.DataType.from_numpy(zero_point.dtype)
    model = model_of(QUANTIZE, ir.Shape([2, 6, 4]), [scale, zero_point], codes_out=code)
    expected = quantized(x, scale, zero_point, 1)
    assert same_bits(run(model, x), expected.astype(np.float32) if dtype == "bfloat16" else expected)


@pytest.mark.parametrize("optimize", [False, True])
def test_bfloat16_rounds_ties_to_even_and_becomes_infinite(optimize: bool) -> None:
    one, zero = np.array(1.0, np.float32), np.array(0.0, ml_dtypes.bfloat16)
    model = model_of(QUANTIZE, symbolic(1), [one, zero], codes_out=ir.DataType.BFLOAT16)
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38, 1e-40, np.nan, np.inf], np.float32)
    expected = np.array([1.0, 1 + 2**-6, 1 + 2**-7, np.inf, 1e-40, np.nan, np.inf], np.float32)
    expected[4] = np.array(1e-40, np.float32).astype(ml_dtypes.bfloat16)
    assert same_bits(run(model, x, optimize=optimize), expected)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("bits", ["4", "8", "12", "16"])
@pytest.mark.parametrize("shape", [(13,), (2, 7), (1, 2, 3, 4)])
def test_fix_neuron(bits: str, shape: tuple[int, ...], opset: int) -> None:
    scale, zero_point = np.array(0.25, np.float32), np.array(0, np.int8)
    half = 1 << (int(bits) - 1)
    x = numbers(shape, half / 4)
    model = model_of(
        FIX_NEURON, symbolic(len(shape)), [scale, zero_point], {"bit_width": bits, "pos": "2"}, opset=opset
    )
    with np.errstate(over="ignore"):
        expected = (np.rint(x / scale).clip(-half, half - 1) * scale).astype(np.float32)
    assert same_bits(run(model, x), expected)


def test_fix_neuron_with_a_zero_point() -> None:
    for bits, expected in (("8", [-128.0 - 5, 127.0 - 5, 2.0]), ("6", [-32.0 - 5, 31.0 - 5, 2.0])):
        model = model_of(
            FIX_NEURON, symbolic(1), [np.array(1.0, np.float32), np.array(5, np.int8)], {"bit_width": bits}
        )
        assert same_bits(run(model, np.array([-1e6, 1e6, 1.5], np.float32)), np.array(expected, np.float32))


@pytest.mark.parametrize("operator", [QUANTIZE, DEQUANTIZE, OLD_QUANTIZE, OLD_DEQUANTIZE])
def test_a_node_of_bytes_is_the_standard_operator(operator: OperatorName) -> None:
    model = model_of(
        operator, symbolic(2), [np.array(1.0, np.float32), np.array(0, np.int8)], codes_in=ir.DataType.INT8
    )
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == [operator.name.replace("Extended", "").replace("Vitis", "")]
