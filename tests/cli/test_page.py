"""`--html` of every command that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.demo import CALIBRATION, FOLDER, MODEL, PREPROCESS

PREP = ["--preprocess", PREPROCESS]
DATA = ["--data", FOLDER / "images", *PREP, "--limit", 6]


def arguments(command, tmp_path, quantized):
    return {
        "quantize": ["quantize", MODEL, tmp_path / "out.onnx", "--calib", CALIBRATION, *PREP, "--limit", 8],
        "evaluate": ["evaluate", MODEL, quantized, *DATA],
        "compare": ["compare", MODEL, quantized, *DATA],
        "sensitivity": ["sensitivity", MODEL, "--calib", CALIBRATION, *PREP, "--limit", 8, "--samples", 2],
        "tune": [
            *("tune", MODEL, tmp_path / "out.onnx", "--calib", CALIBRATION, *PREP, "--limit", 8),
            *("--eval", FOLDER, "--eval-limit", 8, "--max-drop", 100),
        ],
    }[command]


COMMANDS = ["quantize", "evaluate", "compare", "sensitivity", "tune"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_is_written_beside_what_is_printed(detent, quantized_demo, tmp_path, command):
    page = tmp_path / "report.html"
    outcome = detent(*arguments(command, tmp_path, quantized_demo), "--html", page)
    assert outcome.code == 0, outcome.err
    assert outcome.out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert '<div class="verdict' in text
    assert "digits.onnx" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_never_takes_the_place_of_an_input(detent, quantized_demo, tmp_path, command):
    before = MODEL.read_bytes()
    outcome = detent(*arguments(command, tmp_path, quantized_demo), "--html", MODEL)
    assert outcome.code == 5
    assert "would overwrite" in outcome.err
    assert MODEL.read_bytes() == before
    assert not list(tmp_path.iterdir())


def test_a_page_and_the_model_are_two_files(detent, quantized_demo, tmp_path):
    outcome = detent(*arguments("quantize", tmp_path, quantized_demo), "--html", tmp_path / "out.onnx")
    assert outcome.code == 5
    tuned = detent(*arguments("tune", tmp_path, quantized_demo), "--html", tmp_path / "out.toml")
    assert tuned.code == 5
    assert not list(tmp_path.iterdir())


def test_two_folders_have_a_page(detent, quantized_demo, tmp_path):
    for name, model in (("a", MODEL), ("b", quantized_demo)):
        assert detent("infer", model, *DATA, "--out", tmp_path / name).code == 0
    page = tmp_path / "report.html"
    assert detent("compare", tmp_path / "a", tmp_path / "b", "--html", page).code == 0
    assert "<bdi>b against a</bdi>" in page.read_text(encoding="utf-8")


def test_what_a_page_is_made_of_is_packed():
    root = Path(__file__).parents[2]
    settings = (root / "pyproject.toml").read_text(encoding="utf-8")
    assert '"detent.report" = ["templates/*"]' in settings
    packed = {file.name for file in (root / "src/detent/report/templates").iterdir()}
    assert packed == {"page.html", "document.html", "blocks.html", "page.css", "page.js", "network.css", "network.js"}
