"""Biases to 32 bits, 16-bit activations to 8 bits, and outputs without pairs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import detent
from detent.convert import convert
from detent.errors import ModelError, UsageError
from tests.models import build, node, normal, run


@pytest.fixture
def quantized(tiny, tmp_path, samples):
    def with_recipe(recipe, **changes):
        path = tmp_path / "q.onnx"
        chosen = detent.find_recipe(recipe).replace(refinement=None, **changes)
        detent.quantize(tiny, path, samples, chosen)
        return path

    return with_recipe


def _types(path):
    return {str(each.data_type) for each in onnx.load(path).graph.initializer}


def _answer(path, samples):
    return run(onnx.load(path), {"x": samples[:1]})["y"]


def test_biases_of_the_device_become_those_of_cpus(quantized, tmp_path, samples):
    path, output = quantized("XINT8"), tmp_path / "o.onnx"
    convert(path, output, "int32-bias")
    assert str(onnx.TensorProto.INT32) in _types(output) - _types(path)
    np.testing.assert_allclose(_answer(output, samples), _answer(path, samples), atol=1e-6)
    with pytest.raises(ModelError, match="int32-bias"):
        convert(output, tmp_path / "p.onnx", "int32-bias")


def test_sixteen_bits_become_eight_of_the_same_range(quantized, tmp_path, samples):
    path, output = quantized("U16S8_AAWS"), tmp_path / "o.onnx"
    convert(path, output, "eight-bits")
    assert str(onnx.TensorProto.UINT16) not in _types(output)
    expected, found = _answer(path, samples), _answer(output, samples)
    assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_a_step_may_find_nothing_if_it_is_told_so(tiny, tmp_path, samples):
    convert(tiny, tmp_path / "o.onnx", "eight-bits", must_change=False)
    np.testing.assert_array_equal(_answer(tmp_path / "o.onnx", samples), _answer(tiny, samples))


def test_float32_comes_before_bfloat16(tiny, tmp_path):
    convert(tiny, tmp_path / "o.onnx", ["float32", "bfloat16"], must_change=False)
    with pytest.raises(UsageError, match="'float32' undoes 'bfloat16'"):
        convert(tiny, tmp_path / "o.onnx", ["bfloat16", "float32"])


SCALES = {"s": np.float32(0.1), "z": np.int8(0), "w": np.ones((8, 8), np.int8)}


def _pair(name, result):
    return [node("QuantizeLinear", f"{name} s z", f"{name}_q"), node("DequantizeLinear", f"{name}_q s z", result)]


def test_outputs_without_pairs_where_nothing_quantized_reads_them(tmp_path):
    weights = node("DequantizeLinear", "w s z", "wd")
    layers = [*_pair("x", "a"), weights, node("MatMul", "a wd", "m"), *_pair("m", "b")]
    for last, kept in ((node("Relu", "b", "y"), 1), (node("MatMul", "b wd", "y"), 2)):
        onnx.save(build([*layers, last], "y", SCALES), tmp_path / "m.onnx")
        convert(tmp_path / "m.onnx", tmp_path / "o.onnx", "without-output-qdq:op_types=MatMul+Gemm", must_change=False)
        operators = [each.op_type for each in onnx.load(tmp_path / "o.onnx").graph.node]
        assert operators.count("QuantizeLinear") == kept


def test_random_inputs_still_run(tmp_path):
    onnx.save(build([*_pair("x", "a"), node("Relu", "a", "y")], "y", SCALES), tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "o.onnx", "without-output-qdq:op_types=Gemm", must_change=False)
    run(onnx.load(tmp_path / "o.onnx"), {"x": normal(1, 3, 8, 8)})
