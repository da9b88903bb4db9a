from __future__ import annotations

import pytest

from detent.devices.catalog import check_steps, find_device
from detent.emit.output_formats import check_formats
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.plan.plan import check_methods
from detent.recipe.recipe import PRESETS, find_preset
from detent.refine.refine import check_refinement
from detent.refinements import AdaQuant, AdaRound


@pytest.mark.parametrize("recipe", PRESETS.values(), ids=PRESETS)
def test_no_preset_contradicts_itself(recipe):
    check_formats(recipe)
    check_methods(recipe)
    check_steps(recipe)
    check_refinement(recipe)
    find_device(recipe.target).check(recipe)
    assert recipe.description and len(recipe.description) < 110


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith(("_ADAROUND", "_ADAQUANT"))])
def test_twins_differ_in_nothing_but_the_refinement(name):
    recipe = PRESETS[name]
    plain = PRESETS[name.rpartition("_")[0]]
    expected = AdaRound if name.endswith("_ADAROUND") else AdaQuant
    assert isinstance(recipe.refinement, expected)
    assert recipe.refinement.samples == 1000 and recipe.refinement.early_stop
    assert plain == recipe.replace(name=plain.name, description=plain.description, refinement=plain.refinement)


@pytest.mark.parametrize("name", ["U8S8_AAWS", "S8S8_AAWS", "S16S8_ASWS", "U16S8_AAWS", "U8U8_AAWA"])
def test_names_that_spell_the_formats(name):
    numbers, symmetries = name.split("_")
    recipe = PRESETS[name]
    assert recipe.activations.symmetric == (symmetries[:2] == "AS")
    assert recipe.weights.symmetric == (symmetries[2:] == "WS")
    spelled = "".join(
        fmt.dtype.replace("uint", "U").replace("int", "S") for fmt in (recipe.activations, recipe.weights)
    )
    assert spelled == numbers
    assert recipe.biases == IntegerFormat("int32")


@pytest.mark.parametrize("name", ["bf16", "BF16_CONFIG", "bf16_config"])
def test_names_in_any_case(name):
    assert find_preset(name) is PRESETS["BF16"]


def test_a_misspelt_name():
    with pytest.raises(UsageError, match="'A8W9'.*'A8W8'"):
        find_preset("A8W9")


def test_there_are_as_many_as_documented():
    assert len(PRESETS) == 65
    assert all(name == recipe.name for name, recipe in PRESETS.items())
