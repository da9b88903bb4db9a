from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ([], {"name": "GlobalEqualization", "absorb": False}),
        (["--equalize", "--equalize-with", "globalequalization:absorb=true"], {"absorb": True}),
        (["--equalize-with", "CrossLayer:steps=3"], {"name": "CrossLayer", "steps": 3}),
        (["--equalize-with", "none"], "none"),
        (["--no-equalize", "--equalize-with", "none"], "none"),
    ],
)
def test_the_way_to_equalize_is_an_option(flags, chosen, detent, demo_arguments):
    recipe = json.loads(detent(*demo_arguments, "--dry-run", "--json", *flags).out)["recipe"]
    assert recipe["equalize"] == chosen if chosen == "none" else chosen.items() <= recipe["equalize"].items()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no-equalize", "--equalize-with", "CrossLayer"], "--no-equalize and --equalize-with CrossLayer contradict"),
        (["--equalize", "--equalize-with", "none"], "--equalize and --equalize-with none contradict"),
        (["--equalize-with", "CrosLayer"], "Did you mean 'CrossLayer'"),
        (["--equalize-with", "CrossLayer:step=3"], "Did you mean 'steps'"),
    ],
)
def test_ways_to_equalize_that_are_refused(flags, words, detent, demo_arguments):
    outcome = detent(*demo_arguments, *flags)
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())


def test_the_rounding_of_the_device_is_an_option(detent, demo_arguments):
    found = json.loads(detent(*demo_arguments, "--limit", "8", "--rounding", "dpu", "--json").out)
    assert (found["recipe"]["rounding"], found["fidelity"]["emulated"]) == ("dpu", "dpu")
    for flags, words in {
        ("--rounding", "dup"): "Did you mean 'dpu'",
        ("--rounding", "dpu", "--recipe", "A8W8"): "have float scales. Choose a recipe with these, such as XINT8",
    }.items():
        outcome = detent(*demo_arguments, *flags)
        assert outcome.code == 2
        assert words in " ".join(outcome.err.split())


def test_without_bias_correction_nothing_is_refined(detent, demo_arguments):
    plain = json.loads(detent(*demo_arguments, "--limit", "8", "--no-bias-correction", "--json").out)
    assert plain["refined"] == [] and plain["recipe"]["refinement"] == "none"


def test_refinements_that_include_bias_correction_cannot_be_without(detent, demo_arguments):
    for name in ("Rounding", "AdaRound", "Gptq"):
        failed = detent(*demo_arguments, "--refine", name, "--no-bias-correction")
        assert failed.code != 0
        assert f"{name} corrects biases along with the weights" in failed.err
