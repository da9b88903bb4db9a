"""The ladder: what each rung adds, and where a recipe cannot have it."""

from __future__ import annotations

from detent.equalizations import CrossLayer
from detent.methods import MinMax
from detent.numerics.formats import IntegerFormat
from detent.pipeline.job import Job
from detent.pipeline.run import Run
from detent.recipe import Override
from detent.recipe.recipe import find_preset
from detent.refinements import QuickRounding, Rounding
from detent.search import unrefined
from detent.sensitivity_analysis import sensitivity
from detent.tuning.steps import (
    Blame,
    exception_stages,
    exceptions,
    ingredients,
    ways_up,
    worth_trying,
)
from tests.conftest import tiny_model

W4 = find_preset("A8W8").replace(weights=IntegerFormat("int4"))


def bare(recipe):
    """The recipe without anything that tuning could add."""
    return recipe.replace(equalize=False, search_ranges=False, refinement=None)


BARE = bare(find_preset("XINT8"))
BY_NAME = {ingredient.name: ingredient for ingredient in ingredients(BARE)}


def test_what_is_not_to_blame_is_left_alone():
    names = [each.name for each in worth_trying(BARE, Blame(weights=0.01, activations=0.99))]
    assert names == ["quick rounding", "equalization", "MinMSE", "range search"]
    names = [each.name for each in worth_trying(BARE, Blame(weights=0.99, activations=0.01))]
    assert names == ["quick rounding", "equalization", "rounding", "AdaRound", "AdaQuant"]


def test_two_gates_are_worth_trying_where_a_sigmoid_was_exchanged():
    tried = worth_trying(BARE, Blame(weights=0.01, activations=0.99, hardened=True))
    (gates,) = [each for each in tried if each.name == "two gates"]
    step = gates.added_to(BARE)
    assert step.recipe.also == ("silu_to_two_gates",)
    assert gates.added_to(step.recipe) is None, "once is enough"


def test_what_makes_most_of_the_error_comes_first_and_what_is_slow_last():
    names = [each.name for each in worth_trying(BARE, Blame(weights=0.6, activations=0.4))]
    assert names == ["quick rounding", "equalization", "rounding", "MinMSE", "range search", "AdaRound", "AdaQuant"]


def test_what_the_recipe_has_is_taken_away_behind_all_that_adds_to_it():
    names = [each.name for each in worth_trying(find_preset("XINT8"), Blame(weights=0.4, activations=0.6))]
    assert names[-3:] == ["no equalization", "AdaRound", "AdaQuant"]


def test_each_rung_adds_one_thing():
    bare = BARE
    corrected = BY_NAME["quick rounding"].added_to(bare).recipe
    assert corrected == bare.replace(refinement=QuickRounding())
    equalized = BY_NAME["equalization"].added_to(corrected).recipe
    assert equalized == corrected.replace(equalize=True)
    assert BY_NAME["rounding"].added_to(equalized).recipe == equalized.replace(refinement=Rounding())


def test_what_a_recipe_has_already_is_no_rung():
    recipe = BARE.replace(refinement=Rounding())
    assert BY_NAME["rounding"].added_to(recipe) is None


def test_float_weights_are_not_rounded_to_integers():
    recipe = bare(find_preset("BF16"))
    assert BY_NAME["rounding"].added_to(recipe) is None
    assert BY_NAME["AdaRound"].added_to(recipe) is None
    assert BY_NAME["AdaQuant"].added_to(recipe) is not None


def test_a_recipe_without_clipping_may_try_it():
    assert BY_NAME["MinMSE"].added_to(bare(find_preset("A8W8").replace(method=MinMax()))) is not None
    assert BY_NAME["MinMSE"].added_to(bare(find_preset("A8W8"))) is None
    assert BY_NAME["MinMSE"].added_to(bare(find_preset("XINT8"))) is None
    assert BY_NAME["MinMSE"].added_to(bare(find_preset("BF16"))) is None


def test_what_can_be_given_up():
    assert ways_up(find_preset("XINT8")) == ("exclude",)
    assert ways_up(find_preset("A8W8")) == ("a16", "exclude")
    assert ways_up(find_preset("A16W8")) == ("exclude",)
    assert ways_up(W4) == ("w8", "a16", "exclude")
    assert ways_up(find_preset("MATMUL_NBITS")) == ("w8", "exclude")
    assert ways_up(W4.replace(activations=None, weights=None, biases=None)) == ()


def test_wider_weights_come_first():
    assert exception_stages(find_preset("A8W8")) == (("a16", "exclude"),)
    assert exception_stages(W4) == (("w8",), ("a16", "exclude"))


def test_ever_more_weights_in_8_bits(samples):
    planned = Run(unrefined(Job(tiny_model(), None, W4, samples), 2)).planned
    found = sensitivity(planned.model, planned.plan, planned.probes)
    rungs = list(exceptions(W4, planned.plan.layout, found, ("w8",)))
    assert [rung.name for rung in rungs] == ["W8 x1", "W8 x2"]
    (override,) = rungs[-1].recipe.overrides
    assert override == Override(nodes=("first", "second"), weights=IntegerFormat("int8"))


def test_what_the_recipe_chose_itself_is_what_is_tried():
    base = find_preset("XINT8").replace(equalize=CrossLayer(steps=3), refinement=Rounding(rows=7))
    own = {ingredient.name: ingredient for ingredient in ingredients(base)}
    assert own["no equalization"].added_to(base).recipe == base.replace(equalize=False)
    assert own["rounding"].added_to(bare(base)).recipe.refinement == Rounding(rows=7)
    assert own["quick rounding"].added_to(base).recipe.refinement == QuickRounding()
