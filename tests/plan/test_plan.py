from __future__ import annotations

import numpy as np
import pytest

from detent.methods import NonOverflow
from detent.numerics.formats import min_mse_position_of, non_overflow_position
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Role
from detent.plan.plan import Move, make_plan
from detent.recipe.recipe import POWER_OF_TWO_INT8
from tests.grids import INT8, UINT8_ZERO_128
from tests.models import (
    IMAGE,
    SMALL_MODELS,
    XINT8,
    build,
    conv_relu_conv,
    count_sample,
    laid_out,
    node,
    normal,
    plan_at,
    planned,
    statistics,
    values_of,
)

FEEDS = {"x": normal(*IMAGE, seed=9)}
NON_OVERFLOW = XINT8.replace(method=NonOverflow())


def constants_of(model):
    return {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}


@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_every_position_is_the_best_of_its_data(maker):
    proto = maker()
    model, plan = planned(proto, FEEDS)
    names = [site.value for site in plan.layout.of_role(Role.ACTIVATION)]
    values = values_of(proto, names, FEEDS)
    for name in names:
        if plan.layout.leader(name) == name:
            assert plan.position(name) == min_mse_position_of(values[name], UINT8_ZERO_128)
            assert plan.of(name).format == XINT8.activations
    constants = constants_of(model)
    for role in (Role.WEIGHT, Role.BIAS):
        for site in plan.layout.of_role(role):
            assert plan.position(site.value) == min_mse_position_of(constants[site.value], INT8)
            assert plan.of(site.value).format == XINT8.weights
    assert plan.moves == ()
    assert set(plan.positions) == {plan.layout.leader(name) for name in plan.layout.sites}


@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_non_overflow_clips_nothing(maker):
    proto = maker()
    model, layout = laid_out(proto)
    found = statistics(layout, proto, FEEDS)
    plan = make_plan(model, layout, found, NON_OVERFLOW)
    for name, seen in found.items():
        histogram = seen.histogram
        expected = non_overflow_position(min(0, histogram.minimum), max(0, histogram.maximum), UINT8_ZERO_128)
        assert plan.position(name) == expected
        assert not plan.of(name).clipped([histogram.minimum, histogram.maximum]).any()
    for name, array in constants_of(model).items():
        if name in layout.sites:
            levels = np.rint(array * 2.0 ** plan.position(name))
            assert np.abs(levels).max() <= 127
            assert np.abs(np.rint(array * 2.0 ** (plan.position(name) + 1))).max() > 127


def test_known_positions():
    proto = build(
        [node("Conv", "x w b", "c")],
        "c",
        {"w": np.full((1, 3, 1, 1), 0.5, np.float32), "b": np.full(1, 100.0, np.float32)},
    )
    _, plan = planned(proto, {"x": np.ones(IMAGE, np.float32)})
    # 1.0 is exact at 6 and clipped at 7, and half of it is one finer. 100 and the result, 101.5, have base 0: the first
    # candidate is -1, where 100 is exact; 101.5 is half a step of 1 off at -1 and at 0, so the first wins.
    assert plan.positions == {"x": 6, "w": 7, "b": -1, "c": -1}
    assert plan.of("w").scale == 2.0**-7
    assert plan.of("c").scale == 2.0


@pytest.mark.parametrize("recipe", [XINT8, NON_OVERFLOW], ids=["MinMSE", "NonOverflow"])
def test_zeros_and_values_never_seen(recipe):
    proto = build(
        [node("Conv", "x w b", "y")],
        "y",
        {"w": np.zeros((2, 3, 1, 1), np.float32), "b": np.zeros(2, np.float32)},
    )
    model, layout = laid_out(proto)
    zeros = TensorStatistics()
    count_sample(zeros, np.zeros(10, np.float32))
    plan = make_plan(model, layout, {"x": TensorStatistics(), "y": zeros}, recipe)
    expected = -1 if recipe is XINT8 else 0
    assert plan.positions == dict.fromkeys(("x", "w", "b", "y"), expected)


def test_values_that_share_have_one_position():
    proto = build(
        [node("Transpose", "x", "t"), node("MaxPool", "t", "m", kernel_shape=[1, 1]), node("Sigmoid", "m", "y")], "y"
    )
    _, plan = planned(proto, FEEDS)
    assert set(plan.positions) == {"x", "y"}
    assert plan.position("m") == plan.position("t") == plan.position("x") == plan.positions["x"]
    plan = plan.with_position("m", 1, "a rule", "a node")
    assert [plan.position(name) for name in ("x", "t", "m")] == [1, 1, 1]
    assert plan.of("t").scale == 0.5


@pytest.mark.parametrize("recipe", [XINT8, NON_OVERFLOW], ids=["MinMSE", "NonOverflow"])
def test_the_finest_position_of_a_bias_does_not_saturate(recipe):
    model, plan = planned(conv_relu_conv(), FEEDS, recipe)
    assert set(plan.finest) == {"b1", "b2"}
    for name, position in plan.finest.items():
        bias = constants_of(model)[name]
        assert np.abs(np.rint(bias * 2.0**position)).max() <= 127 < np.abs(np.rint(bias * 2.0 ** (position + 1))).max()


def test_moves_are_recorded():
    _, plan = plan_at(conv_relu_conv(), {"w1": 5})
    assert plan.with_position("w1", 5, "nothing", "conv_c1") is plan
    moved = plan.with_position("w1", 3, "shift cut", "conv_c1")
    assert moved.moves == (Move("w1", 5, 3, "shift cut", "conv_c1"),)
    assert moved.position("w1") == 3
    assert plan.moves == () and plan.position("w1") == 5  # a plan is a value


@pytest.mark.parametrize("op_type", ["Softmax", "Sigmoid"])
def test_probabilities_use_their_whole_range_whatever_was_seen(op_type):
    # No observed probability came near 1, but one will: 1/128 spreads the settled range over the codes.
    model, layout = laid_out(build([node(op_type, "x", "y")], "y"))
    small = TensorStatistics()
    count_sample(small, np.full(10, 0.01, np.float32))
    plan = make_plan(model, layout, {"x": small, "y": small}, XINT8.replace(clip_outputs=False))
    assert plan.position("y") == 7


def test_a_gate_within_a_network_has_the_range_that_was_seen():
    model, layout = laid_out(build([node("Sigmoid", "x", "g"), node("Mul", "x g", "y")], "y"))
    small = TensorStatistics()
    count_sample(small, np.full(10, 0.01, np.float32))
    assert make_plan(model, layout, dict.fromkeys(("x", "g", "y"), small), XINT8).position("g") == 13


def test_int8_activations():
    model, layout = laid_out(conv_relu_conv())
    found = statistics(layout, conv_relu_conv(), FEEDS)
    plan = make_plan(model, layout, found, XINT8.replace(activations=POWER_OF_TWO_INT8))
    assert plan.of("x").format == POWER_OF_TWO_INT8
    assert plan.position("x") == min_mse_position_of(FEEDS["x"], INT8)


def test_the_scores_of_a_model_are_not_clipped():
    # One value in a thousand is far out: MinMSE cuts it off inside the network, but not where it decides the class.
    proto = build([node("Relu", "x", "r"), node("Relu", "r", "y")], "y")
    model, layout = laid_out(proto)
    seen = TensorStatistics()
    count_sample(seen, np.append(np.linspace(0, 1, 10000), 5.0).astype(np.float32))
    found = dict.fromkeys(("x", "r", "y"), seen)
    plan = make_plan(model, layout, found, XINT8.replace(clip_outputs=False))
    assert plan.position("r") > plan.position("y")
    assert not plan.of("y").clipped([5.0])
    assert plan.of("r").clipped([5.0])
    assert make_plan(model, layout, found, XINT8).position("y") == plan.position("r")
