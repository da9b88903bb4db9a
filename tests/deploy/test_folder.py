from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

import detent as package
from detent.deploy.folder import deploy
from detent.errors import ModelError, OutputError, UsageError
from tests.models import build, conv_relu_conv, info, node, normal

DATA = normal(4, 3, 8, 8, seed=5)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    path = tmp_path_factory.mktemp("deploy") / "model.onnx"
    recipe = package.find_recipe("XINT8").replace(refinement=None, equalize=False)
    package.quantize(conv_relu_conv(), path, normal(4, 3, 8, 8, seed=5), recipe)
    return path


@pytest.mark.parametrize(
    ("device", "options"),
    [("phx", {"target": "X1", "xlnx_enable_py3_round": "0"}), ("stx", {"target": "X2"})],
)
def test_the_folder_runs_without_an_npu_and_says_so(quantized, tmp_path, device, options):
    done = deploy(quantized, tmp_path / "out", device, samples=2)
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert (settings["provider_options"], settings["needs_overlay"]) == (options, device == "phx")
    assert settings["foreseen_nodes"] == "{} of {}".format(*done.check.report_nodes)
    assert done.emulated
    run = subprocess.run(
        [sys.executable, str(tmp_path / "out" / "run_npu.py")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "No NPU is used" in run.stdout
    assert "sample 1: 0.00 % from the CPU" in run.stdout


def test_the_key_of_the_cache_follows_the_model(quantized, tmp_path):
    from detent.deploy.run_npu import cache_key

    other = tmp_path / "other.onnx"
    other.write_bytes(quantized.read_bytes() + b" ")
    assert cache_key(quantized, "1.23") != cache_key(other, "1.23")
    assert cache_key(quantized, "1.23") != cache_key(quantized, "1.24")


def test_a_float_model_gets_the_settings_of_bfloat16(tmp_path):
    onnx.save(conv_relu_conv(), tmp_path / "m.onnx")
    deploy(tmp_path / "m.onnx", tmp_path / "out", "stx", samples=1)
    assert json.loads((tmp_path / "out" / "vaiml_config.json").read_text())["target"] == "VAIML"


@pytest.mark.parametrize(
    ("device", "software", "named"),
    [("stxx", "", "'stx'"), ("cpu", "", "'cpu'"), ("stx", "1.9", "'1.9'"), ("phx", "1.8", "1.7")],
)
def test_what_is_not_known(quantized, tmp_path, device, software, named):
    with pytest.raises(UsageError) as error:
        deploy(quantized, tmp_path / "out", device, software=software)
    assert named in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_is_left_alone(quantized, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OutputError):
        deploy(quantized, tmp_path, "phx")


def test_a_model_that_would_end_the_process(tmp_path):
    weights = {"w": normal(1, 16, 3), "r": normal(1, 16, 4, seed=1)}
    lstm = node("LSTM", "x w r", "y", hidden_size=4)
    onnx.save(build([lstm], "y", weights, (info("x", (5, 1, 3)),)), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="lstm_y"):
        deploy(tmp_path / "m.onnx", tmp_path / "out", "strix-halo")
    assert deploy(tmp_path / "m.onnx", tmp_path / "out", "strix-halo", force=True).samples == 4


def test_the_command(detent, quantized, tmp_path):
    np.save(tmp_path / "data.npy", DATA)
    outcome = detent("deploy", quantized, tmp_path / "out", "--device", "stx", "--data", tmp_path / "data.npy")
    assert outcome.code == 0, outcome.err
    assert "run_npu.py" in outcome.out
    assert np.load(tmp_path / "out" / "samples.npz")["0/x"].shape == (1, 3, 8, 8)
