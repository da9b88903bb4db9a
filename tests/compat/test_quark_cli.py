from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from detent.compat import quark_cli
from tests.models import build, info, node, normal


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for index, sample in enumerate(normal(4, 3, 8, 8)):
        np.save(folder / f"{index}.npy", sample[None])
    return folder


def test_onnx_ptq(detent, tiny, tmp_path, data):
    output = tmp_path / "out.onnx"
    model = ["--input_model_path", tiny, "--output_model_path", output, "--calibration_dataset_path", data]
    more = ["--config", "A8W8", "--exclude_nodes", "second", "--calib_method", "percentile+99.9", "--device", "cpu"]
    outcome = detent("run", "quark-cli", "onnx-ptq", *model, *more)
    assert outcome.code == 0, outcome.err
    assert "Note: quark-cli onnx-ptq: --device cpu is ignored." in outcome.err
    onnxruntime.InferenceSession(output)
    convolutions = [each for each in onnx.load(output).graph.node if each.op_type == "Conv"]
    assert [each.name for each in convolutions if each.input[1].endswith("w2")] == ["second"]


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--use-gptq"], "UseGPTQ", True),
        (["--calib_method", "percentile+99.9"], "Percentile", 99.9),
        (["--include_sq", "--sq_alpha", "0.7"], "SmoothAlpha", 0.7),
        (["--adaquant", "--num_iters", "7"], "FastFinetune", {"OptimAlgorithm": "adaquant", "NumIterations": 7}),
        (["--num_calib_data", "3"], "CalibDataSize", 3),
        (["--include_rotation", "--hidden_size", "64"], "RMatrixDim", 64),
    ],
)
def test_flags_are_options(monkeypatch, flags, field, value):
    seen = []
    monkeypatch.setattr(quark_cli.ModelQuantizer, "quantize_model", lambda self, *_, **__: seen.append(self.config))
    quark_cli.onnx_ptq(["--input_model_path", "m.onnx", *flags])
    assert seen[0].extra_options[field] == value


def test_onnx_autosearch(detent, tiny, tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = quark_cli._Search.search_space
    monkeypatch.setattr(quark_cli._Search, "search_space", {**space, "include_fast_ft": [False]})
    model = ["--model_name", "m", "--input_model_path", tiny, "--output_model_path", "best.onnx"]
    outcome = detent("run", "quark-cli", "onnx-autosearch", *model, "--calibration_dataset_path", data)
    assert outcome.code == 0, outcome.err
    assert "Best: best.onnx" in outcome.out
    onnxruntime.InferenceSession("best.onnx")


def test_onnx_validate(detent, tmp_path):
    """The scores are the means of the colors: red images are of class 0, green ones of class 1."""
    from PIL import Image

    onnx.save(
        build([node("GlobalAveragePool", "x", "p"), node("Flatten", "p", "y")], "y", {}, [info("x", (1, 3, 8, 8))]),
        tmp_path / "m.onnx",
    )
    for label, color in (("0", (255, 0, 0)), ("1", (0, 255, 0)), ("2", (255, 0, 0))):
        (tmp_path / "val" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8), color).save(tmp_path / "val" / label / "a.png")
    outcome = detent(
        "run", "quark-cli", "onnx-validate", "--model_path", tmp_path / "m.onnx", "--val_data", tmp_path / "val"
    )
    assert outcome.code == 0, outcome.err
    assert "66.67" in outcome.out  # two of three


def test_onnx_prepare_data(detent, tmp_path):
    source, chosen = tmp_path / "val", tmp_path / "calib"
    source.mkdir()
    for number in (1, 2):
        (source / f"ILSVRC2012_val_0000000{number}.JPEG").write_bytes(b"x")
    (source / "notes.txt").write_text("kept")
    assert detent("run", "quark-cli", "onnx-prepare-data", "--val_path", source, "--cal_path", chosen).code == 0
    images = [f"0000000{number}/ILSVRC2012_val_0000000{number}.JPEG" for number in (1, 2)]
    for folder in (source, chosen):
        assert sorted(str(path.relative_to(folder)) for path in folder.glob("*/*")) == images
    assert (source / "notes.txt").exists()


def test_other_commands_say_what_to_do(detent):
    for name, word in (("export-oga", "Export"), ("onnx-ptqq", "onnx-ptq"), ("torch-llm-ptq", "ONNX models")):
        outcome = detent("run", "quark-cli", name)
        assert outcome.code == 2
        assert word in outcome.err
