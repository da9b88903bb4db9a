from __future__ import annotations

import json

import onnx
import pytest

import detent as package
from detent.demo.run import CALIBRATION, FOLDER, MODEL, PREPROCESS

IMAGES = ["--data", FOLDER / "images", "--preprocess", PREPROCESS, "--limit", 6]


def test_two_models(detent, quantized_demo):
    outcome = detent("compare", MODEL, quantized_demo, *IMAGES, "--threads", 1)
    assert outcome.code == 0, outcome.err
    for word in ("logits", "SQNR dB: mean", "tensors have their channels at other scales in", "6 of"):
        assert word in outcome.out
    found = json.loads(detent("compare", MODEL, quantized_demo, *IMAGES, "--json").out)
    last = next(tensor for tensor in found["tensors"] if tensor["is_output"])
    assert last["sqnr_db"]["worst"] <= last["sqnr_db"]["mean"]
    assert last["l2"]["worst"] >= last["l2"]["mean"] > 0
    assert len(last["worst_samples"]) == 3


def test_tensors_at_other_scales_are_told_apart_from_errors(detent, quantized_demo, tmp_path):
    text = detent("compare", MODEL, quantized_demo, *IMAGES, "--html", tmp_path / "page.html").out
    found = json.loads(detent("compare", MODEL, quantized_demo, *IMAGES, "--json").out)["tensors"]
    rescaled = [tensor["name"] for tensor in found if tensor["rescaled"]]
    assert 0 < len(rescaled) < len(found)
    assert f"{len(rescaled)} of {len(found)} tensors have their channels at other scales in" in text
    assert not [name for name in rescaled if f"\n{name} " in text]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<span class="badge plain">other scales</span>') == len(rescaled)
    assert f"{len(rescaled)} of {len(found)} tensors have their channels at other scales in" in page
    # No figure of those that are left is far below what the outputs have.
    output = next(tensor["sqnr_db"]["mean"] for tensor in found if tensor["is_output"])
    assert min(tensor["sqnr_db"]["mean"] for tensor in found if not tensor["rescaled"]) > output - 15


def test_models_at_the_same_scales_are_listed_with_their_worst(detent, tmp_path):
    recipe = package.find_recipe("XINT8").replace(equalize=False)
    package.quantize(MODEL, tmp_path / "plain.onnx", CALIBRATION, recipe, preprocess=PREPROCESS)
    text = detent("compare", MODEL, tmp_path / "plain.onnx", *IMAGES).out
    assert "worst tensors of the same name (10 of" in text
    assert "other scales" not in text


def test_saved_results(detent, quantized_demo, tmp_path):
    for name, model in (("a", MODEL), ("b", quantized_demo)):
        outcome = detent("infer", model, *IMAGES, "--out", tmp_path / name, "--batch", 4)
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith("6 files in ")
    text = detent("compare", tmp_path / "a", tmp_path / "b")
    assert "6 files compared" in text.out
    found = json.loads(detent("compare", tmp_path / "a", tmp_path / "b", "--json").out)
    assert 0.9 < found["cosine"]["worst"] <= found["cosine"]["mean"] <= 1
    same = json.loads(detent("compare", tmp_path / "a", tmp_path / "a", "--json").out)
    assert same["psnr_db"] == {"mean": None, "worst": None, "file": same["psnr_db"]["file"]}  # infinite


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([MODEL, MODEL], "Give data (--data DIR)"),
        ([FOLDER, FOLDER, "--limit", 3], "give only the folders"),
        ([FOLDER, FOLDER, "--size", "3"], "give only the folders"),
    ],
)
def test_what_cannot_be_compared(detent, arguments, message):
    outcome = detent("compare", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_model_and_a_folder(detent, tmp_path):
    outcome = detent("compare", MODEL, tmp_path)
    assert outcome.code == 2
    assert "give two models or two folders" in outcome.err


def test_the_same_model_is_exact(detent, tmp_path):
    onnx.save(onnx.load(MODEL), tmp_path / "copy.onnx")
    assert detent("compare", MODEL, tmp_path / "copy.onnx", *IMAGES).out.count("exact") > 10
