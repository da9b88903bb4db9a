"""Where the float model itself computes NaN or infinity, what computes or reads that stays float, and the rest not."""

import pickle
import tempfile

import numpy as np
import onnxruntime
import pytest

import detent
from detent.errors import DataError
from detent.observe.sweep import NotFiniteError
from tests.models import build, info, node, normal

VECTOR = [info("x", (1, 4))]


def logarithm():
    """Return a layer with its activation, the logarithm of the positive part, and a Sigmoid and a layer behind it."""
    nodes = [
        node("MatMul", "x w", "h"),
        node("LeakyRelu", "h", "k"),
        node("Relu", "k", "r"),
        node("Log", "r", "logs"),
        node("Sigmoid", "logs", "s"),
        node("MatMul", "s v", "y"),
    ]
    return build(nodes, "y", {"w": normal(4, 8), "v": normal(8, 3, seed=1)}, inputs=VECTOR)


def quantized(report):
    return {decision.node for decision in report.nodes if decision.quantized}


def test_what_reads_infinity_stays_float_and_is_told(tmp_path):
    data = normal(9, 4, seed=2)
    report = detent.quantize(logarithm(), tmp_path / "q.onnx", data, recipe="A8W8")
    assert quantized(report) == {"matmul_h", "leakyrelu_k", "relu_r", "matmul_y"}
    assert next(each.reason for each in report.nodes if each.node == "sigmoid_s").startswith("'logs' holds NaN or inf")
    assert any("array[" in each and "'logs'" in each for each in report.remarks)
    answer = onnxruntime.InferenceSession(tmp_path / "q.onnx").run(None, {"x": data[:1]})[0]
    assert np.isfinite(answer).all()


def test_statistics_of_such_a_run_serve_another(tmp_path):
    data, saved = normal(9, 4, seed=2), tmp_path / "s.stats"
    first, second = tmp_path / "1.onnx", tmp_path / "2.onnx"
    detent.quantize(logarithm(), first, data, recipe="A8W8", save_stats=saved)
    detent.quantize(logarithm(), second, data, recipe="A8W8", stats=saved)
    assert first.read_bytes() == second.read_bytes()


def test_an_output_with_the_same_infinities_is_compared_by_its_other_elements():
    nodes = [
        node("MatMul", "x w", "h"),
        node("Relu", "x", "r"),
        node("Div", "h r", "ratio"),
        node("Identity", "h", "z"),
    ]
    model = build(nodes, "ratio", {"w": normal(4, 4)}, inputs=VECTOR)
    data = np.abs(normal(9, 4, seed=2))
    data[:, 0] = 0.0
    report = detent.quantize(model, None, data, recipe="A8W8", exclude=["relu_r"])
    assert report.fidelity.outputs["ratio"].sqnr_db > 20.0


def test_nothing_else_to_quantize_is_an_error():
    model = build([node("Log", "x", "logs"), node("Relu", "logs", "y")], "y", inputs=VECTOR)
    with pytest.raises(DataError, match=r"array\[.*NaN or infinity in tensor 'logs'"):
        detent.quantize(model, None, np.zeros((4, 4), np.float32))


def test_samples_that_come_once_are_an_error():
    samples = ({"x": row[np.newaxis]} for row in normal(9, 4, seed=2))
    with pytest.raises(DataError, match="NaN or infinity in tensor 'logs'"):
        detent.quantize(logarithm(), None, samples, recipe="A8W8")


def test_the_error_of_another_process_names_its_sites():
    error = pickle.loads(pickle.dumps(NotFiniteError("cat.jpg", ["a", "b"])))
    assert (error.origin, error.sites) == ("cat.jpg", ["a", "b"]) and "'a'" in str(error)


def test_a_temporary_folder_that_cannot_be_used_is_told(tiny, samples, monkeypatch):
    assert not any("another order" in each for each in detent.quantize(tiny, None, samples).remarks)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    assert sum("another order" in each for each in detent.quantize(tiny, None, samples, trust=True).remarks) == 1
