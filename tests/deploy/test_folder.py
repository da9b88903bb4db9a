from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import detent as package
from detent.deploy import deploy
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
    assert "2 samples of random numbers" in str(done)
    assert ("Warning: it was not quantized for the rounding of phx" in str(done)) == (device == "phx")
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert (settings["provider_options"], settings["needs_overlay"]) == (options, device == "phx")
    assert settings["foreseen_nodes"] == "{} of {}".format(*done.check.report_nodes)
    assert done.emulated
    run = run_folder(tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert "No NPU is used" in run.stdout
    assert "y: 0.00 % from the CPU, " in run.stdout


def test_the_key_of_the_cache_follows_the_model(quantized, tmp_path):
    from detent.deploy.run_npu import cache_key

    other = tmp_path / "other.onnx"
    other.write_bytes(quantized.read_bytes() + b" ")
    assert cache_key(quantized, "1.23") != cache_key(other, "1.23")
    assert cache_key(quantized, "1.23") != cache_key(quantized, "1.24")


def run_folder(folder, *words):
    command = [sys.executable, str(folder / "run_npu.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_second_part_is_found_and_run(tmp_path):
    weights = {"w": normal(4, 3, 1, 1), "v": normal(2, 4, 1, 1)}
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "b"), node("Conv", "b v", "c")]
    onnx.save(build(nodes, "c", weights), tmp_path / "float.onnx")
    recipe = package.find_recipe("XINT8").replace(refinement=None, equalize=False)
    package.quantize(tmp_path / "float.onnx", tmp_path / "m.onnx", DATA, recipe)
    onnx.save(build([node("Tanh", "c", "y")], "y", {}, (info("c", (1, 2, 8, 8)),)), tmp_path / "m_tail.onnx")
    done = deploy(tmp_path / "m.onnx", tmp_path / "out", "phx", samples=2)
    assert "tail.onnx" in done.files
    run = run_folder(tmp_path / "out", "--cpu")
    assert run.returncode == 0, run.stderr
    assert "\ny: 0.00 % from the CPU" in run.stdout
    onnx.save(build([node("Tanh", "z", "y")], "y", {}, (info("z", (1, 2, 8, 8)),)), tmp_path / "m_tail.onnx")
    with pytest.raises(ModelError, match="'z'"):
        deploy(tmp_path / "m.onnx", tmp_path / "other", "phx")


@pytest.mark.parametrize("location", ["data/w.bin", "settings.json", "numpy.py", "model.onnx"])
def test_the_files_of_a_model_with_data_beside_it_do_not_become_others_of_the_folder(quantized, tmp_path, location):
    path = tmp_path / "in/m.onnx"
    (path.parent / "data").mkdir(parents=True)
    onnx.save(onnx.load(quantized), path, save_as_external_data=True, location=location, size_threshold=0)
    done = deploy(path, tmp_path / "out", "stx", samples=2)
    whole = ["README.md", "expected.npz", "model.onnx", "run_npu.py", "samples.npz", "settings.json"]
    assert sorted(done.files) == whole
    run = run_folder(tmp_path / "out", "--cpu")
    assert run.returncode == 0, run.stderr
    assert "y: 0.00 % from the CPU, " in run.stdout


class Session:
    """What the program asks of a session, with answers that are off by some share of themselves."""

    def __init__(self, path, off):
        self.real = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.get_inputs, self.get_outputs, self.off = self.real.get_inputs, self.real.get_outputs, off

    def run(self, names, feeds):
        return [each * np.float32(1 + self.off) for each in self.real.run(names, feeds)]


@pytest.mark.parametrize(
    ("off", "report", "code", "told"),
    [
        (0.0, {"all": 9, "NPU": 7}, 0, "7 of 9 nodes on the NPU"),
        (0.5, {"all": 9, "NPU": 7}, 1, "The answers are wrong."),
        (0.0, {"all": 9, "CPU": 9}, 1, "Nothing runs on the NPU"),
        (0.0, None, 1, "wrote no report"),
    ],
)
def test_what_the_program_says_of_an_npu(quantized, tmp_path, monkeypatch, capsys, off, report, code, told):
    from detent.deploy import run_npu

    deploy(quantized, tmp_path / "out", "stx", samples=2)
    model, file = tmp_path / "out" / "model.onnx", tmp_path / "report.json"
    if report is not None:
        file.write_text(json.dumps({"deviceStat": [{"name": name, "nodeNum": n} for name, n in report.items()]}))
    monkeypatch.setattr(run_npu, "HERE", tmp_path / "out")
    monkeypatch.setattr(run_npu, "open_sessions", lambda *_: (Session(model, 0.0), None, Session(model, off), file))
    monkeypatch.setattr(sys, "argv", ["run_npu.py"])
    monkeypatch.setattr(sys.stdout, "reconfigure", lambda **_: None, raising=False)
    assert run_npu.main() == code
    assert told in capsys.readouterr().out


def test_without_its_overlay_phoenix_is_not_asked(quantized, tmp_path, monkeypatch):
    from detent.deploy.run_npu import provider_options

    monkeypatch.setenv("DETENT_XCLBIN", str(tmp_path / "none.xclbin"))
    with pytest.raises(SystemExit, match="none.xclbin"):
        provider_options({"provider_options": {}, "needs_overlay": True}, quantized, "1.23")
    (tmp_path / "none.xclbin").write_bytes(b"")
    options = provider_options({"provider_options": {"target": "X1"}, "needs_overlay": True}, quantized, "1.23")
    assert options["target"] == "X1"
    assert options["enable_cache_file_io_in_mem"] == "0"


def test_a_float_model_gets_the_settings_of_bfloat16(tmp_path):
    onnx.save(conv_relu_conv(), tmp_path / "m.onnx")
    deploy(tmp_path / "m.onnx", tmp_path / "out", "stx", samples=1)
    assert json.loads((tmp_path / "out" / "vaiml_config.json").read_text())["target"] == "VAIML"


def test_a_float_model_is_refused_where_no_float_runs(tmp_path):
    onnx.save(conv_relu_conv(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"Quantize it first: detent quantize .* --device phx"):
        deploy(tmp_path / "m.onnx", tmp_path / "out", "phx", samples=1)
    assert not (tmp_path / "out").exists()


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


def test_a_convolution_without_its_attributes_is_refused_where_it_ends_the_process(quantized, tmp_path):
    model = onnx.load(quantized)
    conv = next(each for each in model.graph.node if each.op_type == "Conv")
    del conv.attribute[:]
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=conv.name):
        deploy(tmp_path / "m.onnx", tmp_path / "out", "strix-halo")
    assert deploy(tmp_path / "m.onnx", tmp_path / "out", "phx").check.accepted  # which was seen to take such files


def test_the_command(detent, quantized, tmp_path):
    np.save(tmp_path / "data.npy", DATA)
    outcome = detent("deploy", quantized, tmp_path / "out", "--device", "stx", "--data", tmp_path / "data.npy")
    assert outcome.code == 0, outcome.err
    assert "run_npu.py" in outcome.out
    assert np.load(tmp_path / "out" / "samples.npz")["0/x"].shape == (1, 3, 8, 8)
