"""`detent mix` and detent.mix(), on the demo model."""

from __future__ import annotations

import json

import pytest

import detent as package
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.numerics.formats import IntegerFormat
from detent.recipe.file import find_recipe, read_recipe
from detent.search.mixed_precision import parse_candidates
from tests.conftest import tiny_model

DEMO = [MODEL, "--calib", CALIBRATION, "--preprocess", PREPROCESS, "--samples", "8"]


def test_a_recipe_to_quantize_with(detent, tmp_path):
    file = tmp_path / "mixed.toml"
    done = detent("mix", *DEMO, "--max-error", "-15dB", "--toml", file, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["reached"]
    assert found["error"] <= 10**-1.5
    assert found["uniform"]["int4"]["error"] > found["error"]
    narrow = {each["name"] for each in found["formats"] if each["format"] == "int4"}
    assert narrow
    (override,) = read_recipe(file).overrides
    assert set(override.nodes) == narrow
    assert override.weights.bits == 4
    out = tmp_path / "mixed.onnx"
    done = detent("quantize", MODEL, out, "--calib", CALIBRATION, "--preprocess", PREPROCESS, "--recipe", file)
    assert done.code == 0
    assert out.stat().st_size < MODEL.stat().st_size


def test_an_error_that_nobody_can_reach(detent):
    done = detent("mix", *DEMO, "--max-error", "-90dB")
    assert done.code == 6
    assert "-90.0 dB cannot be reached by choosing from int4, int8: the best is -" in done.out


def test_as_many_bits_as_are_wished_for(samples):
    report = package.mix(tiny_model(), samples, mean_bits=8, samples=2)
    assert isinstance(report, package.PrecisionReport)
    assert report.found.mean_bits == 8
    assert report.recipe == find_recipe("A8W8"), "all of it is as the recipe has it"
    # 4 x 3 x 3 x 3 and 2 x 4 weights; biases have 32 bits whatever is chosen.
    assert report.numbers == 108 + 8
    half = package.mix(tiny_model(), samples, mean_bits=4.5, samples=2)
    assert {name: fmt.bits for name, fmt in half.found.formats.items()} == {"first": 4, "second": 8}
    assert half.bits == 108 * 4 + 8 * 8
    assert half.bits_before == 116 * 8


def test_what_was_chosen_by_hand_is_chosen_anew(samples):
    by_hand = package.Override(nodes=("first",), weights=IntegerFormat("int16"))
    report = package.mix(
        tiny_model(), samples, find_recipe("A8W8").replace(overrides=(by_hand,)), mean_bits=8, samples=2
    )
    assert report.recipe.overrides == (
        by_hand,
        package.Override(nodes=("first", "second"), weights=find_recipe("A8W8").weights),
    )


def test_candidates_have_the_scales_of_the_recipe():
    recipe = find_recipe("A8W8").replace(weights=IntegerFormat("int8", granularity="per_channel"))
    assert parse_candidates("int4, int8", recipe, "weights") == [
        IntegerFormat("int4", granularity="per_channel"),
        IntegerFormat("int8", granularity="per_channel"),
    ]
    own = IntegerFormat("int4")
    assert parse_candidates([own, "int8"], recipe, "weights") == [own, recipe.weights]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give one of an error to stay below"),
        (["--max-error", "-30dB", "--mean-bits", "6"], "Give one of an error to stay below"),
        (["--max-error", "loud"], "expected decibels"),
        (["--max-error", "25dB"], "Decibels are below 0: -25dB"),
        (["--max-error", "0dB"], "Decibels are below 0: -25dB"),
        (["--mean-bits", "3"], "ask for 4 to 8"),
        (["--mean-bits", "nan"], "ask for 4 to 8"),
        (["--mean-bits", "6", "--candidates", "int4,int9"], "'int9' is not an integer format. Did you mean 'int8'"),
        (["--mean-bits", "6", "--candidates", "int4,MX9"], "'MX9' is not an integer format"),
        (["--mean-bits", "6", "--candidates", "int8"], "at least two"),
        (["--mean-bits", "6", "--candidates", "int8,int8"], "at least two"),
        (["--mean-bits", "9", "--candidates", "int8,int32"], "int32"),
        (
            ["--mean-bits", "6", "--recipe", "XINT8"],
            "npu-cnn stores weights as int8, and the weights of recipe XINT8 are int4",
        ),
        (["--mean-bits", "6", "--recipe", "BF16"], "no weights of integers"),
        (["--mean-bits", "6", "--what", "activations"], "activations of recipe A8W8 are int4"),
    ],
)
def test_bad_input(detent, arguments, message):
    done = detent("mix", *DEMO, *arguments)
    assert done.code == 2
    assert message in done.err


def test_without_data(detent, tiny):
    done = detent("mix", tiny, "--mean-bits", "6")
    assert done.code == 2
    assert "give calibration data" in done.err


def test_what_is_one_of_two(samples):
    with pytest.raises(package.UsageError, match="'weights' or 'activations'"):
        package.mix(tiny_model(), samples, what="biases", mean_bits=6)
