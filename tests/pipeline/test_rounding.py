"""A model for a device that rounds ties upwards: what is refined, measured and refused."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.recipe import Override
from detent.recipe.file import find_recipe
from detent.refinements import AdaRound, Rounding
from tests.models import build, node, normal, run_all

XINT8 = find_recipe("XINT8")
DPU = XINT8.replace(rounding="dpu")
BLOCKS, CHANNELS = 6, 8
ROWS = normal(64, 3, 8, 8, seed=5)
UNSEEN = [{"x": row[None]} for row in normal(24, 3, 8, 8, seed=6)]


def residual_blocks():
    """Sums of sums: their range grows, and so each Add shifts by a bit, which makes every second sum a tie."""
    nodes = [node("Conv", "x w b", "r0")]
    constants = {"w": normal(CHANNELS, 3, 1, 1) / 2, "b": normal(CHANNELS, seed=1) / 8}
    for i in range(BLOCKS):
        constants |= {f"w{i}": normal(CHANNELS, CHANNELS, 1, 1, seed=10 + i) / 4, f"b{i}": normal(CHANNELS, seed=i) / 8}
        nodes += [node("Conv", f"r{i} w{i} b{i}", f"c{i}"), node("Add", f"r{i} c{i}", f"r{i + 1}")]
    constants |= {"last": normal(10, CHANNELS, 1, 1, seed=30) / 4, "bias": normal(10, seed=31) / 8}
    nodes += [node("Conv", f"r{BLOCKS} last bias", "scores"), node("GlobalAveragePool", "scores", "g")]
    return build([*nodes, node("Flatten", "g", "y")], "y", constants)


MODEL = residual_blocks()
EXPECTED = np.stack([each["y"] for each in run_all(MODEL, UNSEEN)])


@pytest.fixture(scope="module")
def reports():
    return {recipe.rounding: detent.quantize(MODEL, None, ROWS, recipe) for recipe in (XINT8, DPU)}


def error(report, rounding):
    """The noise power at the output of the emulated file."""
    emulator = detent.Emulator(report.model, rounding=rounding)
    return float(np.square(np.stack([emulator(feeds)[0] for feeds in UNSEEN]) - EXPECTED).mean())


def test_bias_correction_takes_out_the_bias_of_the_ties(reports):
    assert error(reports["dpu"], "dpu") < error(reports["half-even"], "dpu") / 2
    assert error(reports["half-even"], "half-even") < error(reports["dpu"], "half-even") / 2


def test_the_result_is_measured_in_integers(reports):
    found = reports["dpu"].fidelity
    assert found.emulated == "dpu" and reports["half-even"].fidelity.emulated is None
    # The same file, measured as onnxruntime computes it, is much further from float.
    judged = detent.evaluate([MODEL, reports["dpu"].model], ROWS, labels=None, emulate="dpu").models[1].scores
    plain = detent.evaluate([MODEL, reports["dpu"].model], ROWS, labels=None).models[1].scores
    measured = found.outputs["y"].sqnr_db
    assert judged.outputs["y"].sqnr_db == pytest.approx(measured, abs=1.5)
    assert plain.outputs["y"].sqnr_db < measured - 2
    assert set(found.tensors) == set(reports["half-even"].fidelity.tensors) > {"r1", "c5"}
    assert ", in integers, with the rounding dpu" in str(reports["dpu"])
    assert "in integers" not in str(reports["half-even"])


@pytest.mark.parametrize(
    ("refinement", "search_ranges"), [(Rounding(), True), (AdaRound(iterations=20, output_rounded=True), False)]
)
def test_other_refinements_see_it_too(refinement, search_ranges):
    recipes = [each.replace(refinement=refinement, search_ranges=search_ranges) for each in (XINT8, DPU)]
    plain, device = (detent.quantize(MODEL, None, ROWS, recipe) for recipe in recipes)
    assert error(device, "dpu") < error(plain, "dpu")


REFUSED = {
    "float scales": (find_recipe("A8W8"), "activations of recipe A8W8 have float scales.*such as XINT8"),
    "small floats": (find_recipe("BF16"), "activations of recipe BF16 are bfloat16"),
    "channels": (
        XINT8.replace(weights=IntegerFormat("int8", scale="power_of_two", granularity="per_channel")),
        "The target npu-cnn computes with one power-of-two scale",
    ),
    "16 bits": (
        XINT8.replace(target="cpu", activations=IntegerFormat("int16", scale="power_of_two")),
        "activations of recipe XINT8 are int16.*or leave the rounding half-even",
    ),
    "16 bits in a part": (
        XINT8.replace(
            target="cpu",
            overrides=(Override(nodes=("conv*",), activations=IntegerFormat("int16", scale="power_of_two")),),
        ),
        r"activations for conv\* of recipe XINT8 are int16",
    ),
    "form": (XINT8.replace(format="qoperator"), "format qoperator cannot be emulated.*--format qdq.*detent convert"),
    "no codes": (XINT8.replace(target="cpu", activations=None), "activations of recipe XINT8 stay float"),
    "scales found later": (find_recipe("UINT8_DYNAMIC_QUANT"), "have float scales"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_recipes_that_the_device_cannot_compute(case):
    recipe, words = REFUSED[case]
    with pytest.raises(UsageError, match=words):
        detent.quantize(MODEL, None, ROWS, recipe.replace(rounding="dpu"))


def test_a_rounding_that_there_is_not():
    with pytest.raises(UsageError, match="There is no rounding 'dup'. Did you mean 'dpu'"):
        XINT8.replace(rounding="dup")
