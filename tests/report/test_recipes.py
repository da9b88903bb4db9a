from __future__ import annotations

import io

import pytest
from rich.console import Console

from detent.equalizations import CrossLayer
from detent.numerics import NAMED_FORMATS
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.recipe.file import from_plain
from detent.recipe.recipe import PRESETS
from detent.report.documents import text_of
from detent.report.listings import recipes_document
from detent.report.terminal import print_document
from tests.recipe.test_toml_text import tomllib


def printed(show, what, width=100):
    text = io.StringIO()
    show(what, Console(file=text, width=width, highlight=False))
    return text.getvalue()


def test_the_list_fits_a_hundred_columns():
    lines = printed(print_document, recipes_document(list(PRESETS.values()))).splitlines()
    assert max(map(len, lines)) <= 100
    twins = {name for name in PRESETS if name.endswith(("_ADAROUND", "_ADAQUANT"))}
    first_words = [line.split()[0] for line in lines if line.strip()]
    for name in set(PRESETS) - twins:
        assert first_words.count(name) == 1
    assert not twins & set(first_words)
    targets = [line.split()[1] for line in lines if line.startswith("for ")]
    assert targets == ["npu-cnn", "npu-vaiml", "npu-float-scale", "cpu", "npu-bf16"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("XINT8", ["uint8 2^n", "int8 2^n", "MinMSE", "_ADAROUND _ADAQUANT"]),
        ("U8U8_AAWA", ["uint8 asym", "uint8 asym", "Percentile"]),
        ("UINT8_DYNAMIC_QUANT", ["uint8 asym", "uint8", "at run time"]),
        ("MATMUL_NBITS", ["float", "int4 per_group:128", "none"]),
        ("BF16", ["bfloat16", "bfloat16", "none", "_ADAQUANT"]),
        ("INT8_TRANSFORMER_DEFAULT", ["uint8 asym", "int8 per_channel", "mean MinMax"]),
        ("INT8_CNN_ACCURATE", ["uint8 asym", "int8 per_channel", "Percentile", "AdaRound"]),
        ("S16S16_MIXED_S8S8", ["int16 asym/int8", "int16/int8", "Percentile"]),
        ("BF16_MIXED_BFP16", ["bfloat16/BFP16", "bfloat16/BFP16", "none", "_ADAQUANT"]),
    ],
)
def test_lines(name, words):
    lines = printed(print_document, recipes_document(list(PRESETS.values()))).splitlines()
    line = next(line for line in lines if line.split()[:1] == [name])
    assert " ".join(line.split()) == " ".join([name, *words])


@pytest.mark.parametrize("recipe", PRESETS.values(), ids=PRESETS)
def test_one_recipe_is_a_sentence_its_steps_and_a_file(recipe):
    head, _, file = text_of(recipe, 200).partition("\n\n")
    file, _, following = file.rpartition("\n")
    assert following == f"Next: detent quantize MODEL OUTPUT --calib DATA --recipe {recipe.name}"
    assert head.startswith(f"{recipe.name}: ")
    assert f"write as {recipe.format}. Target: {recipe.target}." in " ".join(head.split())
    assert from_plain(tomllib.loads(file)) == recipe


def test_steps():
    def steps(recipe):
        return next(line for line in text_of(recipe).splitlines() if line.startswith("Steps"))

    xint8 = PRESETS["XINT8"]
    assert steps(xint8).startswith("Steps: equalize channels, calibrate with MinMSE, QuickRounding, write as qdq.")
    assert "smooth activations (0.5), calibrate" in steps(xint8.replace(smooth=0.5))
    layerwise = xint8.replace(equalize=CrossLayer(absorb=True))
    assert steps(layerwise).startswith("Steps: absorb biases, equalize layer by layer, calibrate")
    assert "AdaRound" in steps(PRESETS["A8W8_ADAROUND"])
    assert steps(PRESETS["BF16"]) == "Steps: correct biases, write as cast. Target: npu-bf16."
    scaled = PRESETS["BF16"].replace(activations=FloatFormat("bfloat16", scaled=True))
    assert "calibrate with MinMax" in steps(scaled)
    assert "calibrate" not in steps(PRESETS["UINT8_DYNAMIC_QUANT"])


def test_formats_in_a_few_words():
    assert IntegerFormat("int8", symmetric=False, scale="int16").description == "int8 asym M/2^N"
    assert FloatFormat("float8_e4m3", scaled=True).description == "float8_e4m3 scaled"
    assert all(fmt.description == name for name, fmt in NAMED_FORMATS.items())
