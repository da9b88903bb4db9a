"""The ladder: what each rung adds, and where a recipe cannot have it."""

from __future__ import annotations

from detent.equalizations import CrossLayer
from detent.numerics.formats import IntegerFormat
from detent.pipeline.job import Job
from detent.pipeline.run import Run
from detent.recipe import Override
from detent.recipe.presets import find_preset
from detent.refinements import BiasCorrection, Rounding
from detent.search.probing import unrefined
from detent.sensitivity_analysis.layer_errors import sensitivity
from detent.tuning.steps import exception_stages, exceptions, ingredients, plain, ways_up
from tests.conftest import tiny_model

W4 = find_preset("A8W8").replace(weights=IntegerFormat("int4"))
BY_NAME = {ingredient.name: ingredient for ingredient in ingredients(find_preset("XINT8"))}


def test_the_lowest_rung_does_nothing_clever():
    recipe = plain(find_preset("XINT8")).recipe
    assert not recipe.equalize
    assert not recipe.search_ranges
    assert recipe.refinement is None


def test_each_rung_adds_one_thing():
    bare = plain(find_preset("XINT8")).recipe
    corrected = BY_NAME["bias correction"].added_to(bare).recipe
    assert corrected == bare.replace(refinement=BiasCorrection())
    equalized = BY_NAME["equalization"].added_to(corrected).recipe
    assert equalized == corrected.replace(equalize=True)
    assert BY_NAME["rounding"].added_to(equalized).recipe == equalized.replace(refinement=Rounding())


def test_what_a_recipe_has_already_is_no_rung():
    recipe = plain(find_preset("XINT8")).recipe.replace(refinement=Rounding())
    assert BY_NAME["rounding"].added_to(recipe) is None


def test_float_weights_are_not_rounded_to_integers():
    recipe = plain(find_preset("BF16")).recipe
    assert BY_NAME["rounding"].added_to(recipe) is None
    assert BY_NAME["AdaRound"].added_to(recipe) is None
    assert BY_NAME["AdaQuant"].added_to(recipe) is not None


def test_a_recipe_without_clipping_may_try_it():
    assert BY_NAME["MinMSE"].added_to(plain(find_preset("A8W8")).recipe) is not None
    assert BY_NAME["MinMSE"].added_to(plain(find_preset("XINT8")).recipe) is None
    assert BY_NAME["MinMSE"].added_to(plain(find_preset("BF16")).recipe) is None


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
    bare = plain(base).recipe
    assert own["equalization"].added_to(bare).recipe.equalize == CrossLayer(steps=3)
    assert own["rounding"].added_to(bare).recipe.refinement == Rounding(rows=7)
    assert own["bias correction"].added_to(bare).recipe.refinement == BiasCorrection()
