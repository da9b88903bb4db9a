from __future__ import annotations

import numpy as np
import onnx
import pytest

import detent
from detent.emulator import Emulator
from detent.errors import ModelError
from tests.conftest import tiny_model
from tests.emulator.qdq import Qdq, assert_same_codes
from tests.models import XINT8


def quantized(recipe: str, samples, **changes) -> onnx.ModelProto:
    chosen = detent.find_recipe(recipe).replace(refinement=None, equalize=False, **changes)
    return detent.quantize(tiny_model(), calibration=samples, recipe=chosen).model


def test_a_float_model():
    with pytest.raises(ModelError, match="the given model.*XINT8"):
        Emulator(tiny_model())


def test_float_scales_are_refused_with_the_tensor(samples):
    with pytest.raises(ModelError, match="'x' .*power of two"):
        Emulator(quantized("A8W8", samples))


def test_a_scale_out_of_all_range():
    model = Qdq()
    with pytest.raises(ModelError, match="of tensor 'x0' is out of all range"):
        Emulator(model.build(model.op("Relu", [model.input(4, position=140)])))


@pytest.mark.parametrize("position", [127, -120])
def test_the_farthest_positions(position):
    model = Qdq()
    proto = model.build(model.pair(model.op("Relu", [model.input(4, position=position)]), position - 2))
    numbers = np.array([-3, 2, 6, 127], np.float32) * np.float32(2.0**-position)
    assert_same_codes(proto, {"x0": numbers})


def test_sixteen_bits():
    model = Qdq("int16", opset=21)
    with pytest.raises(ModelError, match="Tensor 'x0' has codes of type int16"):
        Emulator(model.build(model.op("Relu", [model.input(4, position=3)])))


def test_per_channel_weights():
    model = Qdq()
    scales = model.constant(np.array([0.5, 0.25], np.float32))
    zeros = model.constant(np.zeros(2, np.int8))
    codes = model.constant(np.ones((2, 3), np.int8))
    weight = model.op("DequantizeLinear", [codes, scales, zeros], axis=0)
    result = model.op("Gemm", [model.input(1, 3, position=3), weight], transB=1)
    with pytest.raises(ModelError, match=f"'{codes}' has 2 scales"):
        Emulator(model.build(model.pair(result, 3)))


@pytest.mark.parametrize(("dtype", "zero"), [("int8", 3), ("uint8", 0)])
def test_zero_points_that_are_not_in_the_middle(dtype, zero):
    model = Qdq()
    model.inputs.append(onnx.helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, [4]))
    grid = [model.constant(np.array(0.5, np.float32)), model.constant(np.array(zero, dtype))]
    codes = model.op("QuantizeLinear", ["x0", *grid])
    with pytest.raises(ModelError, match=f"'x0' has zero point {zero}"):
        Emulator(model.build(model.op("DequantizeLinear", [codes, *grid])))


def test_a_scale_that_is_computed():
    model = Qdq()
    model.inputs += [
        onnx.helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, [4]),
        onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, []),
    ]
    grid = ["s", model.constant(np.array(0, np.int8))]
    codes = model.op("QuantizeLinear", ["x0", *grid])
    with pytest.raises(ModelError, match="Tensor 'x0' .*computed"):
        Emulator(model.build(model.op("DequantizeLinear", [codes, *grid])))


def test_a_pair_that_disagrees():
    model = Qdq()
    model.inputs.append(onnx.helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, [4]))
    codes = model.op("QuantizeLinear", ["x0", *model._grid(3, "int8")])
    with pytest.raises(ModelError, match="disagree about the scale"):
        Emulator(model.build(model.op("DequantizeLinear", [codes, *model._grid(4, "int8")])))


@pytest.mark.parametrize(
    ("form", "message"),
    [("qoperator", "QOperator form"), ("fix-neuron", "detent convert"), ("extended-qdq", "detent convert")],
)
def test_other_forms(samples, form, message):
    with pytest.raises(ModelError, match=message):
        Emulator(quantized("XINT8", samples, format=form, activations=XINT8.weights))


def test_operators_on_the_codes_themselves():
    model = Qdq()
    model.inputs.append(onnx.helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, [4]))
    grid = model._grid(3, "int8")
    codes = model.op("Identity", [model.op("QuantizeLinear", ["x0", *grid])])
    with pytest.raises(ModelError, match="'Identity_1'"):
        Emulator(model.build(model.op("DequantizeLinear", [codes, *grid])))
