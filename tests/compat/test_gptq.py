from __future__ import annotations

import pytest

from detent.compat.algorithms import GPTQConfig
from detent.compat.option_rules import Request
from detent.compat.table import apply_options
from detent.errors import UsageError
from detent.recipe.file import find_recipe
from detent.refinements import Gptq


def recipe_of(base="A8W8", **options):
    return apply_options(Request(find_recipe(base)), options).recipe


def test_the_switch_and_its_parameters():
    assert recipe_of(UseGPTQ=True).refinement == Gptq(order="natural")
    params = {"PercDamp": 0.05, "BlockSize": 32, "ActOrder": True, "Bits": 8, "MSE": False, "WeightSymmetric": True}
    assert recipe_of(UseGPTQ=True, GPTQParams=params).refinement == Gptq(damping=0.05, block=32, order="activation")
    assert recipe_of(UseGPTQ=False).refinement == recipe_of().refinement
    assert recipe_of(**GPTQConfig().options()).refinement == Gptq(order="natural")


def test_scales_of_groups_and_channels():
    assert recipe_of(UseGPTQ=True, GPTQParams={"GroupSize": 32}).weights.granularity == "per_group:32"
    assert recipe_of(UseGPTQ=True, GPTQParams={"PerChannel": True}).weights.granularity == "per_channel"
    assert recipe_of(UseGPTQ=True, GPTQParams={"GroupSize": -1}).weights == recipe_of().weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"GPTQParams": {"Bits": 8}}, "without UseGPTQ=True"),
        ({"UseGPTQ": True, "GPTQParams": {"Bits": 4}}, "Bits 4, and the weights are int8"),
        ({"UseGPTQ": True, "GPTQParams": {"MSE": True}}, "MSE"),
        ({"UseGPTQ": True, "GPTQParams": {"WeightSymmetric": False}}, "WeightSymmetric"),
        ({"UseGPTQ": True, "GPTQParams": {"ActOder": True}}, "ActOrder"),
        ({"UseGPTQ": True, "FastFinetune": {"NumIterations": 3}}, "one of them"),
    ],
)
def test_what_cannot_be_had(options, message):
    with pytest.raises(UsageError, match=message):
        recipe_of(**options)


def test_only_integers():
    with pytest.raises(UsageError, match="integers"):
        recipe_of("BF16", UseGPTQ=True)
