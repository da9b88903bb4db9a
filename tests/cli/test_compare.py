from __future__ import annotations

import json

import onnx
import pytest

import detent as package
from detent.demo import CALIBRATION, FOLDER, MODEL, PREPROCESS

IMAGES = ["--data", FOLDER / "images", "--preprocess", PREPROCESS, "--limit", 6]


def test_two_models(detent, quantized_demo, tmp_path):
    page = tmp_path / "page.html"
    outcome = detent("compare", MODEL, quantized_demo, *IMAGES, "--threads", 1, "--html", page)
    assert outcome.code == 0, outcome.err
    for word in ("logits", "SQNR dB: mean", "6 of"):
        assert word in outcome.out
    found = json.loads(detent("compare", MODEL, quantized_demo, *IMAGES, "--json").out)
    rescaled = sum(tensor["rescaled"] for tensor in found["tensors"])
    assert rescaled > 1  # the demo is equalized
    for text in (outcome.out, page.read_text("utf-8")):
        assert f"{rescaled} inner tensors were compared with the scales of their channels undone." in text
    last = next(tensor for tensor in found["tensors"] if tensor["is_output"])
    assert last["sqnr_db"]["worst"] <= last["sqnr_db"]["mean"]
    assert last["l2"]["worst"] >= last["l2"]["mean"] > 0
    assert len(last["worst_samples"]) == 3


def test_tensors_at_other_scales_are_not_taken_for_errors(detent, quantized_demo, tmp_path):
    detent("compare", MODEL, quantized_demo, *IMAGES, "--html", tmp_path / "page.html")
    found = json.loads(detent("compare", MODEL, quantized_demo, *IMAGES, "--json").out)["tensors"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<span class="badge plain">scales undone</span>') == sum(tensor["rescaled"] for tensor in found)
    # No figure is far below what the outputs have.
    output = next(tensor["sqnr_db"]["mean"] for tensor in found if tensor["is_output"])
    assert min(tensor["sqnr_db"]["mean"] for tensor in found) > output - 20


def test_models_at_the_same_scales_are_listed_with_their_worst(detent, tmp_path):
    recipe = package.find_recipe("XINT8").replace(equalize=False)
    package.quantize(MODEL, tmp_path / "plain.onnx", CALIBRATION, recipe, preprocess=PREPROCESS)
    text = detent("compare", MODEL, tmp_path / "plain.onnx", *IMAGES).out
    assert "worst tensors of the same name" in text
    assert "other scales" not in text


def test_saved_results(detent, quantized_demo, tmp_path):
    for name, model, batch in (("a", MODEL, 4), ("b", quantized_demo, 1)):
        outcome = detent("infer", model, *IMAGES, "--out", tmp_path / name, "--batch", batch)
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith("Wrote 6 files to ")
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
        (["nowhere", "elsewhere"], "There is no nowhere: give two models, or two folders"),
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


def test_three_models_side_by_side(detent, quantized_demo, tmp_path):
    page = tmp_path / "page.html"
    outcome = detent("compare", MODEL, quantized_demo, quantized_demo, *IMAGES, "--device", "phx", "--html", page)
    assert outcome.code == 0, outcome.err
    assert "estimated ms" in outcome.out.lower()
    assert "Front" in page.read_text("utf-8")
    found = json.loads(detent("compare", MODEL, quantized_demo, *IMAGES, "--device", "stx", "--json").out)
    assert found["models"][1]["estimated_milliseconds"] > 0
    for wrong in ([MODEL], [MODEL, quantized_demo, MODEL], [MODEL, quantized_demo, MODEL, *IMAGES, "--inner"]):
        refused = detent("compare", *wrong)
        assert refused.code == 2
        assert "Give" in refused.err or "give" in refused.err
