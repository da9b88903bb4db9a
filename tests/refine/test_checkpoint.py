"""An interrupted refinement goes on where it stopped, and ends with the bytes of one that was never interrupted."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest

import detent
from detent.errors import DataError, OutputError
from detent.numerics.formats import IntegerFormat
from detent.pipeline.job import refinement_beside
from detent.recipe.file import find_recipe
from detent.refine.refine import _unpack
from detent.refinements import AdaRound, BiasCorrection, Refinement, Rounding
from tests.models import conv_relu_conv, residual
from tests.observe.test_rows import Trap
from tests.refine.test_refine import smooth

IMAGES = np.concatenate([smooth(seed)["x"] for seed in range(40)])
XINT8 = find_recipe("XINT8").replace(equalize=False)
CASES = {
    "AdaRound": XINT8.replace(refinement=AdaRound(iterations=30)),
    "Rounding with other scales": find_recipe("A8W8").replace(
        weights=IntegerFormat("int4"), refinement=Rounding(rescale=True), equalize=False
    ),
}


def stop_after(layers):
    """Progress that is interrupted once so many layers were refined."""
    seen = []

    def progress(stage, done, total):
        if stage == "refine" and total is not None:
            seen.append(done)
            if done == total - 2 + layers:  # both models have two layers
                raise KeyboardInterrupt

    return progress


def interrupt(output, recipe, model=None):
    with pytest.raises(KeyboardInterrupt):
        detent.quantize(model or conv_relu_conv(), output, IMAGES, recipe, progress=stop_after(1))


@pytest.mark.parametrize("recipe", CASES.values(), ids=CASES)
def test_the_same_bytes_and_reports(recipe, tmp_path, monkeypatch):
    whole, output = tmp_path / "whole.onnx", tmp_path / "out.onnx"
    expected = detent.quantize(conv_relu_conv(), whole, IMAGES, recipe)
    interrupt(output, recipe)
    assert refinement_beside(output).exists() and not output.exists()
    chosen = []
    choose = Refinement.choose
    monkeypatch.setattr(
        Refinement, "choose", lambda self, problem, *rest: chosen.append(problem.name) or choose(self, problem, *rest)
    )
    found = detent.quantize(conv_relu_conv(), output, IMAGES, recipe)
    assert output.read_bytes() == whole.read_bytes()
    assert list(found.refined) == list(expected.refined) and found.moves == expected.moves
    assert chosen == [expected.refined[1].name]  # the first layer was not solved again
    assert any("1 layers were refined already" in warning for warning in found.warnings)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.onnx", "whole.onnx"]


@pytest.mark.parametrize(
    ("recipe", "model", "images"),
    [
        (CASES["AdaRound"].replace(refinement=AdaRound(iterations=31)), conv_relu_conv(), IMAGES),
        (
            CASES["AdaRound"].replace(activations=find_recipe("A8W8").activations, target="cpu"),
            conv_relu_conv(),
            IMAGES,
        ),
        (CASES["AdaRound"].replace(rounding="dpu"), conv_relu_conv(), IMAGES),
        (CASES["AdaRound"], residual(), IMAGES),
        (CASES["AdaRound"], conv_relu_conv(), IMAGES + 0.01),
    ],
    ids=["settings", "scales", "rounding", "model", "data"],
)
def test_what_another_run_left_is_ignored(recipe, model, images, tmp_path):
    whole, output = tmp_path / "whole.onnx", tmp_path / "out.onnx"
    interrupt(output, CASES["AdaRound"])
    detent.quantize(model, whole, images, recipe)
    found = detent.quantize(model, output, images, recipe)
    assert output.read_bytes() == whole.read_bytes()
    assert any("is of another run" in warning for warning in found.warnings)
    assert not refinement_beside(output).exists()


def test_a_damaged_file_is_told_and_ignored(tmp_path):
    output = tmp_path / "out.onnx"
    interrupt(output, CASES["AdaRound"])
    kept = refinement_beside(output)
    kept.write_bytes(kept.read_bytes()[:-7])
    found = detent.quantize(conv_relu_conv(), output, IMAGES, CASES["AdaRound"])
    assert any("cannot be used" in warning and "cut short" in warning for warning in found.warnings)


def test_a_foreign_file_is_not_overwritten(tmp_path):
    output = tmp_path / "out.onnx"
    refinement_beside(output).write_text("mine")
    with pytest.raises(OutputError, match="in the way"):
        detent.quantize(conv_relu_conv(), output, IMAGES, CASES["AdaRound"])
    assert refinement_beside(output).read_text() == "mine"


@pytest.mark.parametrize(
    ("refinement", "options"), [(BiasCorrection(), {}), (AdaRound(iterations=5), {"resume": False})]
)
def test_nothing_is_kept(refinement, options, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        detent.quantize(
            conv_relu_conv(),
            tmp_path / "out.onnx",
            IMAGES,
            XINT8.replace(refinement=refinement),
            progress=stop_after(1),
            **options,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_runs_no_code(tmp_path):
    sprung = tmp_path / "sprung"
    archive = io.BytesIO()
    np.savez(archive, np.array([Trap(sprung)], object))
    for body in (archive.getvalue(), pickle.dumps(Trap(sprung))):
        with pytest.raises(DataError, match="forged is damaged"):
            _unpack(body, "forged")
    assert not sprung.exists()
