"""The examples run as they stand, without a network: on small models and on what comes with Detent."""

from __future__ import annotations

import importlib.util
import json
import runpy
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from tools.golden_models import detector

import detent
from tests.transformer_models import PLAIN, bert, bert_data

FOLDER = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_listed_and_run():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    names = {file.name for file in FOLDER.iterdir() if file.suffix in (".py", ".ipynb")}
    assert names == {"tutorial.ipynb", "classifier.py", "detector.py", "text_encoder.py", "from_pytorch.py"}
    assert all(f"({name})" in listed for name in names)


def test_the_tutorial_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((FOLDER / "tutorial.ipynb").read_text(encoding="utf-8"))
    names = {}
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tutorial.ipynb", "exec"), names)
    assert (tmp_path / "report.html").exists()
    assert len(names["candidates"].models) == 4
    assert "<iframe" in names["report"]._repr_html_()
    assert "stx" in capsys.readouterr().out


def test_classifier(tmp_path, capsys):
    example("classifier").main([], tmp_path)
    assert (tmp_path / "digits_xint8.html").exists()
    assert 'class="plot front"' in (tmp_path / "candidates.html").read_text(encoding="utf-8")
    assert "stx takes" in capsys.readouterr().out


def test_detector(tmp_path, capsys):
    onnx.save(detector(), tmp_path / "yolo.onnx")
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(tmp_path / "images" / f"{number}.png")
    example("detector").main([str(tmp_path / "yolo.onnx"), str(tmp_path / "images")])
    assert (tmp_path / "yolo_body_int8.onnx").exists()
    assert (tmp_path / "yolo_tail.onnx").exists()
    assert "Evaluated on" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["detector", "text_encoder"])
def test_an_example_that_needs_a_model_says_so(name, monkeypatch):
    monkeypatch.setattr("sys.argv", [name])
    with pytest.raises(SystemExit, match=f"Give a model.*\\n.*{name}.py .*\\.onnx"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_text_encoder(tmp_path):
    onnx.save(bert(PLAIN), tmp_path / "encoder.onnx")
    samples = bert_data(8)
    (tmp_path / "lines.txt").write_text("\n".join(map(str, range(8))), encoding="utf-8")

    example("text_encoder").main(
        str(tmp_path / "encoder.onnx"), str(tmp_path / "lines.txt"), lambda text: samples[int(text)]
    )
    assert (tmp_path / "encoder_a16w8.onnx").exists()


def test_from_pytorch(tmp_path, capsys):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    example("from_pytorch").main(tmp_path)
    assert "['head']" in capsys.readouterr().out
    assert detent.check(tmp_path / "small_int8.onnx").quantized
