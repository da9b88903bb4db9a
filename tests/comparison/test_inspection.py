from __future__ import annotations

import detent
from detent.comparison.inspection import inspect_model
from tests.conftest import tiny_model


def test_a_float_model(tiny):
    found = inspect_model(tiny)
    assert found.operators == {"Conv": 2, "Relu": 1}
    assert found.quantized == []
    assert found.opset == {"ai.onnx": 17}
    assert found.inputs == {"x": "FLOAT [N, 3, 8, 8]"}
    assert [node.name for node in found.nodes] == ["first", "relu", "second"]


def test_a_quantized_model(samples):
    report = detent.quantize(tiny_model(), calibration=samples)
    found = inspect_model(report.model)
    tensors = {tensor.name: tensor for tensor in found.quantized}
    planned = {tensor.name: tensor for tensor in report.tensors}
    assert set(tensors) == {"x", "r1", "w1_quantized", "b1_quantized", "w2_quantized", "y_QuantizeLinear_Input"}
    assert tensors["x"].position == planned["x"].position
    assert tensors["w1_quantized"].position == planned["w1"].position
    assert (tensors["x"].dtype, tensors["x"].zero_point, tensors["x"].constant) == ("UINT8", 128, False)
    assert (tensors["w1_quantized"].dtype, tensors["w1_quantized"].constant) == ("INT8", True)
    assert {node.name: node.quantized_inputs for node in found.nodes}["first"] == 3
