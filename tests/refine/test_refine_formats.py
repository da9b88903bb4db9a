"""Refinement of whole models whose weights or biases are no integers, down to what is emitted."""

from __future__ import annotations

import numpy as np
import pytest

from detent.emit import emit
from detent.errors import UsageError
from detent.graph.session import Runner
from detent.numerics.formats import IntegerFormat
from detent.plan.layout import Role
from detent.recipe import Override
from detent.recipe.file import find_recipe
from detent.refine.refine import check_refinement, refine
from detent.refinements import AdaQuant, AdaRound, BiasCorrection, Rounding
from tests.models import IMAGE, as_ir, build, conv_relu_conv, info, node, normal, planned, residual
from tests.refine.test_refine import SAMPLES, error_on, mean_errors, pending, smooth

QUICK = AdaQuant(iterations=100, learning_rate=1e-3)
FLOAT_BIAS = find_recipe("A8W8").replace(biases=None, weights=IntegerFormat("int8"))
COARSE = FLOAT_BIAS.replace(weights=IntegerFormat("int4"))
GROUPS = FLOAT_BIAS.replace(weights=IntegerFormat("int4", granularity="per_group:2"), opset=21)


@pytest.mark.parametrize("name", ["BF16", "FP16", "BFP16", "MX6", "MXINT8", "MXFP4E2M1", "MX9_INT8", "BF16_BFP16"])
def test_weights_and_biases_of_every_format_are_refined(name):
    proto, recipe = residual(), find_recipe(name)
    model, plan = planned(proto, recipe=recipe)
    slow = AdaQuant(iterations=200, learning_rate=1e-4)
    plan, reports = refine(model, model, plan, slow, pending(*(smooth(seed) for seed in range(30))))
    assert [one.name for one in reports] == ["conv_c1", "conv_c2"]
    assert all(one.after <= one.before for one in reports)
    assert all(one.method.startswith(("adaquant", "bias correction")) for one in reports)
    for constant, array in plan.refined.items():
        np.testing.assert_array_equal(plan.of(constant).stored(array), array)


@pytest.mark.parametrize("name", ["MX4", "MX6", "MXFP4E2M1"])
def test_what_is_emitted_is_closer_to_float_on_new_data(name):
    proto, recipe = residual(), find_recipe(name)
    seen, unseen = [smooth(seed) for seed in range(30)], [smooth(90 + k) for k in range(15)]
    found = []
    for refinement in (None, BiasCorrection(), QUICK):
        model, plan = planned(proto, recipe=recipe)
        if refinement is not None:
            plan, _ = refine(model, model, plan, refinement, pending(*seen))
        found.append(error_on(proto, model, plan, unseen))
    assert found[2] < found[1] and found[2] < 0.9 * found[0]


@pytest.mark.parametrize("refinement", [BiasCorrection(), Rounding(), AdaRound(iterations=40), QUICK])
def test_a_bias_that_stays_float_is_refined_and_written(refinement):
    proto = residual()
    model, plan = planned(proto, recipe=COARSE)
    assert not list(plan.layout.of_role(Role.BIAS))
    plan, reports = refine(model, model, plan, refinement, SAMPLES)
    assert "b2" in plan.refined and all(one.after <= one.before for one in reports)
    biases = [name for name in plan.refined if name.startswith("b")]
    own = {name: model.graph.initializers[name].const_value.numpy().copy() for name in biases}
    emit(model, plan)
    for name, before in own.items():
        written = model.graph.initializers[name].const_value.numpy()
        assert written.dtype == np.float32 and np.array_equal(written, plan.refined[name])
        assert not np.array_equal(written, before)


def test_with_float_biases_every_channel_has_nearly_the_float_mean(value="c2"):
    proto = residual()
    before = np.abs(mean_errors(proto, *planned(proto, recipe=COARSE), value)).max()
    model, plan = planned(proto, recipe=COARSE)
    plan, _ = refine(model, model, plan, BiasCorrection(), SAMPLES)
    assert np.abs(mean_errors(proto, model, plan, value)).max() < 0.3 * before


def test_a_float_bias_takes_over_the_whole_mean():
    """2.48 x with x always 1, and weights of 4 bits that are multiples of 0.2: the bias makes up for it exactly."""
    proto = build(
        [node("Conv", "x w b", "y")],
        "y",
        {"w": np.array([0.34, 0.74, 1.4], np.float32).reshape(1, 3, 1, 1), "b": np.float32([0.1])},
    )
    ones = {"x": np.ones(IMAGE, np.float32)}
    recipe = FLOAT_BIAS.replace(activations=None, weights=IntegerFormat("int4"))
    model, plan = planned(proto, ones, recipe=recipe)
    plan, _ = refine(model, model, plan, BiasCorrection(), pending(ones))
    # 0.34, 0.74 and 1.4 are 1.7, 3.7 and 7 steps of 0.2: 2, 4 and 7 of them are 2.6.
    np.testing.assert_allclose(plan.refined["b"], [0.1 + 2.48 - 2.6], atol=1e-6)
    emit(model, plan)
    np.testing.assert_allclose(Runner(model, exact=True)(ones)[0], 2.58, atol=1e-6)


def test_layers_behind_each_other_whose_activations_stay_float():
    recipe = FLOAT_BIAS.replace(activations=None, weights=IntegerFormat("int4"))
    proto = conv_relu_conv()
    model, plan = planned(proto, recipe=recipe)
    before = np.abs(mean_errors(proto, *planned(proto, recipe=recipe), "y")).max()
    plan, reports = refine(model, model, plan, BiasCorrection(), SAMPLES)
    assert len(reports) == 2
    assert np.abs(mean_errors(proto, model, plan, "y")).max() < 0.3 * before


def test_a_float_bias_that_others_see_is_left_alone():
    proto = build(
        [node("Conv", "x w b", "y"), node("Conv", "x v k", "z")],
        [info("y", [1, 2, 8, 8]), info("z", [1, 2, 8, 8]), info("b", [2])],
        {"w": normal(2, 3, 1, 1), "b": normal(2), "v": normal(2, 3, 1, 1, seed=1), "k": normal(2, seed=2)},
    )
    model, plan = planned(proto, recipe=FLOAT_BIAS)
    plan, found = refine(model, model, plan, BiasCorrection(), SAMPLES)
    reports = {one.name: one for one in found}
    assert "bias 'b' is a graph output" in reports["conv_y"].note
    assert set(plan.refined) == {"k"}


@pytest.mark.parametrize(("refinement", "method"), [(Rounding(), "rounding"), (QUICK, "adaquant")])
def test_groups_of_weights_that_share_a_scale(refinement, method):
    model, plan = planned(residual(), recipe=GROUPS)
    plan, reports = refine(model, model, plan, refinement, pending(*(smooth(seed) for seed in range(30))))
    assert all(one.method.startswith(method) and one.after < one.before for one in reports)
    np.testing.assert_array_equal(plan.of("w1").stored(plan.refined["w1"]), plan.refined["w1"])


def test_groups_of_weights_are_not_for_adaround():
    model, plan = planned(residual(), recipe=GROUPS)
    plan, reports = refine(model, model, plan, AdaRound(iterations=10), SAMPLES)
    assert all("a scale for each group" in one.note for one in reports) and set(plan.refined) == {"b1", "b2"}


@pytest.mark.parametrize(("channels", "declined"), [(8, False), (6, True)])
def test_blocks_that_cross_groups(channels, declined):
    """Two groups of 8 input channels are a block of BFP16 each; of 6, a block holds some of both."""
    proto = build(
        [node("Conv", "x w b", "c"), node("ConvTranspose", "c v k", "y", group=2)],
        "y",
        {"w": normal(2 * channels, 3, 1, 1), "b": normal(2 * channels), "v": normal(2 * channels, 3, 2, 2, seed=1),
         "k": normal(6, seed=2)},
    )  # fmt: skip
    model, plan = planned(proto, recipe=find_recipe("BFP16"))
    plan, (_, report) = refine(model, model, plan, QUICK, SAMPLES)
    assert ("hold channels of two groups" in report.note) == declined
    assert ("v" in plan.refined) != declined


def test_what_a_refinement_cannot_do_is_said_before_any_work():
    bfp16 = find_recipe("BFP16")
    check_refinement(bfp16.replace(refinement=AdaQuant()))
    for refinement in (Rounding(), AdaRound()):
        with pytest.raises(UsageError, match="BFP16.*AdaQuant works on every format"):
            check_refinement(bfp16.replace(refinement=refinement))
    rounded = AdaQuant(output_rounded=True)
    check_refinement(find_recipe("A8W8").replace(refinement=rounded))
    mixed = find_recipe("A8W8").replace(overrides=(Override(op_types=("Conv",), activations=bfp16.activations),))
    for recipe in (bfp16, mixed):
        with pytest.raises(UsageError, match=r"output_rounded of AdaQuant .* are BFP16"):
            check_refinement(recipe.replace(refinement=rounded))


def test_a_model_that_is_refined_in_float_formats_runs():
    proto = residual()
    model, plan = planned(proto, recipe=find_recipe("BF16"))
    plan, _ = refine(model, model, plan, QUICK, SAMPLES)
    emit(model, plan, "cast")
    feeds = {"x": normal(*IMAGE, seed=50)}
    expected, found = Runner(as_ir(proto))(feeds)[0], Runner(model)(feeds)[0]
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
