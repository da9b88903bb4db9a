"""The ladder: what each rung adds, and where a recipe cannot have it."""

from __future__ import annotations

from detent.presets import find_preset
from detent.refinements import BiasCorrection, Rounding
from detent.tuning.rungs import INGREDIENTS, plain, ways_up

BY_NAME = {ingredient.name: ingredient for ingredient in INGREDIENTS}


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
