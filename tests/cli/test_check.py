from __future__ import annotations

import json

import onnx
import pytest

import detent as package
from tests.models import build, conv_relu_conv, node, normal


@pytest.fixture
def taken(tmp_path):
    onnx.save(conv_relu_conv(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def refused(tmp_path):
    onnx.save(build([node("Selu", "x", "a"), node("Conv", "a w", "y")], "y", {"w": normal(4, 3, 1, 1)}),
              tmp_path / "selu.onnx")  # fmt: skip
    return tmp_path / "selu.onnx"


def test_a_model_that_is_taken(detent, taken):
    done = detent("check", taken)
    assert (done.code, done.err) == (0, "")
    assert "npu-xint8 will take, quantized with recipe XINT8, all of it: 3 of 3 nodes" in done.out


def test_the_next_command_knows_the_second_part(detent, taken, tmp_path):
    onnx.save(conv_relu_conv(), tmp_path / "q_tail.onnx")
    package.quantize(taken, tmp_path / "q.onnx", normal(16, 3, 8, 8))
    done = detent("check", tmp_path / "q.onnx")
    assert f"--data LABELLED --tail {tmp_path / 'q_tail.onnx'}" in done.out.replace("\n", " ")


def test_a_model_that_is_not(detent, refused):
    done = detent("check", refused)
    assert done.code == 6
    assert "Selu 'selu_a'" in done.out
    assert detent("check", refused, "--target", "cpu").code == 0


def test_json(detent, refused):
    done = detent("check", refused, "--json", "--target", "npu-a8w8")
    assert done.code == 6
    assert json.loads(done.out)["target"] == "npu-a8w8"


def test_errors(detent, taken, tmp_path):
    assert detent("check", taken, "--target", "npu-xint").code == 2
    assert detent("check", tmp_path / "nothing.onnx").code == 3
