"""Layers against sums of Python-sized integers, and against onnxruntime on the file."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from detent.emulator import Emulator
from detent.emulator.fixed import Fixed
from detent.emulator.integer_layers import IntegerLayer
from tests.emulator.qdq import Qdq, assert_same_codes, code_names, feeds_of
from tests.emulator.test_rounding import half_up


def integers(*shape: int, largest: int = 127) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-largest, largest + 1, shape)


def layer(op_type, shape, weight, bias=None, *, positions=(4, 6, 7, 3), dtype="int8", then=None, **attributes):
    """Input, weight, bias and output at these positions."""
    before, weights, biases, after = positions
    model = Qdq(dtype)
    inputs = [model.input(*shape, position=before), model.codes(weight, weights)]
    if bias is not None:
        inputs.append(model.codes(bias, biases))
    result = model.op(op_type, inputs, **attributes)
    if then:
        result = model.op(then[0], [result, *(model.constant(np.float32(each)) for each in then[1:])])
    return model.build(model.pair(result, after))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("positions", [(4, 6, 7, 3), (4, 6, 12, 3), (2, 3, 0, 8), (-1, 2, 3, -4), (0, 0, 0, 0)])
@pytest.mark.parametrize("then", [None, ("Relu",), ("Clip", 0, 6)])
def test_conv(dtype, positions, then):
    weight, bias = integers(6, 3, 3, 3, largest=20), integers(6)
    model = layer("Conv", (2, 3, 9, 8), weight, bias, positions=positions, dtype=dtype, then=then, pads=[1, 1, 1, 1])
    assert not assert_same_codes(model).report().float_steps


@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((1, 8, 7, 7), (8, 1, 3, 3), {"group": 8}),
        ((1, 8, 7, 7), (4, 4, 3, 3), {"group": 2, "strides": [2, 2]}),
        ((1, 3, 11, 11), (4, 3, 3, 3), {"dilations": [2, 2]}),
        ((1, 3, 11), (4, 3, 5), {}),
    ],
)
def test_conv_of_all_kinds(shape, weight, attributes):
    report = assert_same_codes(layer("Conv", shape, integers(*weight), None, **attributes)).report()
    assert (report.integer_steps, report.float_steps) == (1, [])


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose(groups):
    model = layer(
        "ConvTranspose", (1, 4, 5, 5), integers(4, 3, 3, 3), integers(3 * groups), strides=[2, 2], group=groups
    )
    assert not assert_same_codes(model).report().float_steps


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed):
    weight = integers(12, 5)
    model = layer("Gemm", (3, 12), weight.T if transposed else weight, integers(5), transB=transposed)
    assert not assert_same_codes(model).report().float_steps


def test_matmul():
    assert not assert_same_codes(layer("MatMul", (2, 4, 12), integers(12, 5))).report().float_steps
    model = Qdq("uint8")
    product = model.op("MatMul", [model.input(2, 4, 12, position=4), model.input(2, 12, 3, position=5)])
    assert not assert_same_codes(model.build(model.pair(product, 3))).report().float_steps


@pytest.mark.parametrize("rounding", ["half-even", "dpu"])
def test_a_conv_whose_sums_pass_24_bits_is_exact(rounding):
    channels, before, weights, after = 3000, 0, 0, -20
    weight = integers(4, channels, 1, 1)
    weight[0] = 127
    weight[1] = 127 * (-1) ** np.arange(channels).reshape(-1, 1, 1)
    model = layer("Conv", (1, channels, 2, 3), weight, integers(4), positions=(before, weights, 3, after))
    codes = integers(1, channels, 2, 3)
    codes[..., 0] = 127
    accumulator = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], codes) * 8 + integers(4).reshape(1, 4, 1, 1)
    assert np.abs(accumulator).max() > 2**24
    cut = 0 + 0 + 3 - after
    expected = half_up(accumulator, cut)
    if rounding == "half-even":
        expected = np.rint(accumulator / 2.0**cut)
    emulator = Emulator(model, rounding=rounding)
    found = emulator({"x0": codes.astype(np.float32)}, outputs=code_names(model)[-1:])[0]
    np.testing.assert_array_equal(found, np.clip(expected, -128, 127))
    assert emulator.report().integer_steps == 1
    assert not emulator.report().overflows


def test_the_last_bit_of_a_long_sum_is_kept():
    """One above the tie between 64 and 65, at 2^24 and more: float32 has no such number, and would answer 64."""
    weight = np.array([127] * 1048 + [127, 17])
    codes = np.array([127] * 1048 + [40, 1])
    assert int(weight @ codes) == 64 * 2**18 + 2**17 + 1
    assert np.float32(weight @ codes) == 64 * 2**18 + 2**17
    model = layer("Conv", (1, 1050, 1, 1), weight.reshape(1, -1, 1, 1), None, positions=(0, 0, 0, -18))
    feeds = {"x0": codes.astype(np.float32).reshape(1, -1, 1, 1)}
    assert Emulator(model)(feeds, outputs=code_names(model)[-1:])[0].item() == 65


@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_long_products_of_matrices_are_exact(op_type):
    weight = integers(2000, 3)
    weight[:, 0] = 127
    codes = integers(2, 2000)
    codes[0] = 127
    accumulator = codes @ weight
    assert np.abs(accumulator).max() > 2**24
    model = layer(op_type, (2, 2000), weight, positions=(0, 0, 0, -18))
    found = Emulator(model, rounding="dpu")({"x0": codes.astype(np.float32)}, outputs=code_names(model)[-1:])[0]
    np.testing.assert_array_equal(found, np.clip(half_up(accumulator, 18), -128, 127))


def test_elements_that_leave_int32_are_counted():
    length = 140_000
    weight = np.full((length, 3), 127)
    weight[:, 1] = 1
    weight[:, 2] = -127
    model = layer("Gemm", (2, length), weight, None, positions=(0, 0, 0, -26))
    emulator = Emulator(model)
    feeds = {"x0": np.full((2, length), 127, np.float32)}
    feeds["x0"][1] = 1
    assert 127 * 127 * length > 2**31 > 127 * length
    emulator(feeds)
    node = next(node.name for node in model.graph.node if node.op_type == "Gemm")
    assert emulator.report().overflows == {node: 2}
    emulator(feeds)
    assert emulator.report().overflows == {node: 4}


@pytest.mark.parametrize("sign", [1, -1])
def test_an_overflow_at_one_end(sign):
    length = 140_000
    model = Qdq()
    positive = model.pair(model.op("Relu", [model.input(1, length, position=0)]), 0)
    weight = model.codes(np.full((length, 1), 127 * sign), 0)
    proto = model.build(model.pair(model.op("Gemm", [positive, weight]), -26))
    emulator = Emulator(proto)
    emulator({"x0": np.full((1, length), 127, np.float32)})
    assert list(emulator.report().overflows.values()) == [1]


def test_the_range_of_a_layer_is_that_of_its_extreme_inputs():
    weights, bias = integers(5, 3, largest=4), integers(5)
    source = Fixed(ir.Value(name="x"), 0, -2, 3)
    found = IntegerLayer(source, weights, bias, 0, 0)
    inputs = np.array(list(itertools.product([-2, 0, 3], repeat=3)))
    answers = inputs @ weights.T + bias
    assert found.range() == (answers.min(), answers.max())
    assert (found.magnitudes() >= np.abs(answers - bias).max(0)).all()


def test_what_has_no_integer_form_is_said():
    model = Qdq()
    weight = model.codes(integers(4, 3, 1, 1), 5)
    floating = model.constant(np.full(4, 0.3, np.float32))
    result = model.op("Conv", [model.input(1, 3, 4, 4, position=4), weight, floating])
    emulator = assert_same_codes(model.build(model.pair(result, 3)))
    (step,) = emulator.report().float_steps
    assert (step.op_type, step.reason) == ("Conv", "its bias is not a constant with a position")


def test_a_gemm_with_factors_is_left_float():
    model = layer("Gemm", (3, 12), integers(12, 5), integers(5), alpha=0.5)
    (step,) = assert_same_codes(model, feeds_of(model)).report().float_steps
    assert "alpha" in step.reason
