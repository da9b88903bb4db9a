"""Other scales of a layer's weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detent.devices.constraints import SHIFTS
from detent.numerics.formats import IntegerFormat
from detent.recipe.file import find_recipe
from detent.refine.layers import SCALE_RULE, find_layers
from detent.refine.refine import refine, scale_candidates
from detent.refinements import Rounding
from tests.models import conv_relu_conv, leaky, planned, residual
from tests.refine.test_refine import error_on, pending, smooth

SEEN, UNSEEN = [smooth(seed) for seed in range(40)], [smooth(90 + k) for k in range(20)]

WIDEST = {"x": 1.5 * max((one["x"] for one in SEEN), key=lambda x: float(np.abs(x).max()))}  # nothing saturates


def anything(*_):
    return True


def layers_of(model, plan):
    return list(find_layers(model, plan.layout)[0].values())


def test_powers_of_two_have_the_finer_and_the_coarser_one():
    model, plan = planned(residual())
    layer = layers_of(model, plan)[0]
    position = plan.position("w1")
    assert [one.weights.position for one in scale_candidates(layer, plan, anything)] == [position + 1, position - 1]
    assert plan.position("w1") == position and not plan.moves  # nothing is decided yet


def test_only_what_the_device_can_shift_is_tried():
    """cut = weight + in - out is at most 16: at 16 no finer weight is possible, at 0 no coarser one."""
    model, plan = planned(residual())
    layer = layers_of(model, plan)[0]
    source, output = plan.position("x"), plan.position(plan.layout.output_site(layer.node))
    for cut, steps in ((16, [-1]), (0, [1]), (8, [1, -1])):
        position = cut + output - source
        plan = plan.with_position("w1", position, "test", "")
        # Where the rule on biases has room on both sides.
        plan = plan.with_position("b1", position + source, "test", "")
        found = [one.weights.position - position for one in scale_candidates(layer, plan, SHIFTS.permits)]
        assert found == steps


def test_a_bias_in_the_unit_of_the_products_follows():
    recipe = find_recipe("A8W8").replace(weights=IntegerFormat("int8"))
    model, plan = planned(residual(), recipe=recipe)
    layer = layers_of(model, plan)[0]
    found = scale_candidates(layer, plan, anything)
    assert len(found) == 2
    for one in found:
        assert float(one.weights.scale) == np.float32(one.weights.scale) < float(plan.of("w1").scale)
        expected = np.float32(plan.of("x").scale) * np.float32(one.weights.scale)
        assert one.bias.scale == pytest.approx(float(expected), rel=1e-6)


def test_scales_for_groups_of_weights_stay():
    recipe = find_recipe("A8W8").replace(weights=IntegerFormat("int4", granularity="per_group:2"), biases=None)
    model, plan = planned(residual(), recipe=recipe)
    assert scale_candidates(layers_of(model, plan)[0], plan, anything) == []


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8"])
def test_a_scale_that_is_far_too_coarse_becomes_finer(recipe):
    proto, found = conv_relu_conv(), find_recipe(recipe)
    coarse = found.replace(weights=IntegerFormat("int4", scale=found.weights.scale))
    errors, methods = [], []
    for rescale in (False, True):
        model, plan = planned(proto, WIDEST, recipe=coarse)
        if found.weights.power_of_two:
            plan = plan.with_position("w1", plan.position("w1") - 1, "test", "")
        plan = replace(plan, moves=())
        plan, _ = refine(model, model, plan, Rounding(rescale=rescale), pending(*SEEN))
        methods.append([move.rule for move in plan.moves])
        for name in ("w1", "w2"):
            np.testing.assert_array_equal(plan.of(name).stored(plan.refined[name]), plan.refined[name])
        errors.append(error_on(proto, model, plan, UNSEEN))
    assert methods[0] == [] and SCALE_RULE in methods[1]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("maker", [residual, leaky])
def test_the_rules_of_the_device_still_hold(maker):
    model, plan = planned(maker(), SEEN[0])
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == []
    moves = len(plan.moves)
    plan, _ = refine(model, model, plan, Rounding(rescale=True), pending(*SEEN), permits=SHIFTS.permits)
    assert SHIFTS.violations(model, plan) == []
    assert all(SHIFTS.permits(node, plan) for node in model.graph)
    assert all(move.rule == SCALE_RULE for move in plan.moves[moves:])
