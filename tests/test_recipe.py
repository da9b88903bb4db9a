from __future__ import annotations

import json

import pytest

from detent.errors import UsageError, nearest
from detent.methods import MinMSE, NonOverflow
from detent.recipe import Recipe
from detent.recipe.file import find_recipe, to_plain
from detent.recipe.recipe import POWER_OF_TWO_INT8, POWER_OF_TWO_UINT8, PRESETS


def test_xint8_is_what_the_device_wants():
    recipe = find_recipe("XINT8")
    assert (recipe.activations, recipe.weights, recipe.biases) == (
        POWER_OF_TWO_UINT8,
        POWER_OF_TWO_INT8,
        POWER_OF_TWO_INT8,
    )
    assert recipe.method == MinMSE()
    assert recipe.target == "npu-cnn"


@pytest.mark.parametrize("name", ["XINT8", "xint8", "XINT8_CONFIG"])
def test_names(name):
    assert find_recipe(name) is PRESETS["XINT8"]


def test_a_recipe_is_its_own_name():
    recipe = Recipe("mine", "")
    assert find_recipe(recipe) is recipe


@pytest.mark.parametrize(("field", "text"), [("weights", "int4"), ("method", "MinMax"), ("operators", "Conv")])
def test_text_is_not_taken_for_an_object(field, text):
    with pytest.raises(UsageError, match=f"{field}={text}"):
        find_recipe("A8W8").replace(**{field: text})


def test_replace_and_equality():
    recipe = find_recipe("XINT8")
    assert recipe.replace() == recipe
    assert recipe.replace(method=NonOverflow()) != recipe
    with pytest.raises(UsageError, match=r"no field 'methud'. Did you mean 'method'"):
        recipe.replace(methud=NonOverflow())


def test_an_alpha_may_be_a_whole_number():
    """Also in the text of a report and in a statistics file, which tell a number from a way to smooth."""
    assert [type(PRESETS["A8W8"].replace(smooth=alpha).smooth) for alpha in (0, 1)] == [float, float]


def test_unknown_recipe():
    with pytest.raises(UsageError, match="Did you mean 'XINT8'"):
        find_recipe("XNT8")


def test_plain_values():
    assert json.loads(json.dumps(to_plain(find_recipe("XINT8"))))["method"]["name"] == "MinMSE"


def test_nearest():
    assert nearest("conv1", ["conv2", "relu"]) == " Did you mean 'conv2'?"
    assert nearest("zzz", ["conv2"]) == ""
