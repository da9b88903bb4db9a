"""Plans with float scales: the unit of a bias, scales per channel, and room where the bias would not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import UsageError
from detent.methods import Entropy, MinMax, NonOverflow
from detent.numerics.formats import LEAST_SCALE, IntegerFormat, QuantParams
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Role
from detent.plan.plan import check_methods, make_plan
from detent.recipe.file import find_recipe
from tests.models import (
    IMAGE,
    SMALL_MODELS,
    XINT8,
    build,
    concat,
    conv_relu_conv,
    count_sample,
    info,
    laid_out,
    node,
    normal,
    planned,
    values_of,
)

FEEDS = {"x": normal(*IMAGE, seed=9)}
A8W8, A16W8 = (find_recipe(name).replace(method=MinMax(), weights=IntegerFormat("int8")) for name in ("A8W8", "A16W8"))
PER_CHANNEL = A8W8.replace(weights=IntegerFormat("int8", granularity="per_channel"))


def constants_of(model):
    return {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}


def seen(*values):
    statistics = TensorStatistics()
    if values:
        count_sample(statistics, np.array(values, np.float32))
    return statistics


def unit_of(plan, source, weight):
    return np.float32(plan.of(source).scale) * np.float32(plan.of(weight).scale)


@pytest.mark.parametrize("recipe", [A8W8, A16W8], ids=["A8W8", "A16W8"])
@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_every_scale_spreads_the_codes_over_the_data(maker, recipe):
    proto = maker()
    model, plan = planned(proto, FEEDS, recipe)
    names = [site.value for site in plan.layout.of_role(Role.ACTIVATION)]
    arrays = {**values_of(proto, names, FEEDS), **constants_of(model)}
    for site in plan.layout.sites.values():
        if site.role is not Role.BIAS and plan.layout.leader(site.value) == site.value:
            steps = 127 if site.role is Role.WEIGHT or recipe is A8W8 else 32767
            assert plan.of(site.value).scale == np.float32(np.abs(arrays[site.value]).max() / np.float64(steps))
            assert plan.of(site.value).zero_point == 0
            assert not plan.of(site.value).clipped(arrays[site.value]).any()
    assert plan.moves == ()


def test_known_scales():
    constants = {"w": np.full((1, 3, 1, 1), 0.5, np.float32), "b": np.full(1, 1.5, np.float32)}
    _, plan = planned(build([node("Conv", "x w b", "y")], "y", constants), {"x": np.full(IMAGE, 2, np.float32)}, A8W8)
    # 3 * 0.5 * 2 + 1.5 = 4.5
    largest = {"x": 2, "w": 0.5, "y": 4.5}
    assert {name: float(plan.of(name).scale) for name in largest} == {
        name: float(np.float32(value / 127)) for name, value in largest.items()
    }
    assert plan.of("b").scale == np.float32(2 / 127) * np.float32(0.5 / 127)
    assert plan.of("b").encode(1.5) == round(1.5 / float(plan.of("b").scale)) == 24194


def test_a_bias_is_counted_in_the_unit_of_its_products_wherever_these_go():
    _, plan = planned(conv_relu_conv(), FEEDS, A8W8)
    assert plan.products == {"b1": ("x", "w1"), "b2": ("r1", "w2")}
    for bias, (source, weight) in plan.products.items():
        assert plan.of(bias).scale == unit_of(plan, source, weight)
        assert plan.of(bias).format == IntegerFormat("int32") and plan.of(bias).zero_point == 0
    before = plan.of("b1").scale, plan.of("b2").scale
    plan = plan.with_params("r1", QuantParams.of(A8W8.activations, 0.7, 0), "a rule", "a node")
    assert plan.of("b1").scale == before[0]
    assert plan.of("b2").scale == np.float32(0.7) * np.float32(plan.of("w2").scale) != before[1]


def test_assigning_what_is_there_already_is_no_move():
    _, plan = planned(conv_relu_conv(), FEEDS, A8W8)
    same = QuantParams.of(A8W8.activations, float(plan.of("x").scale), 0)
    assert plan.with_params("x", same, "a rule", "a node") is plan
    wider_type = QuantParams.of(IntegerFormat("int16"), float(plan.of("x").scale), 0)
    plan = plan.with_params("x", wider_type, "a rule", "a node")
    assert plan.of("x").format.dtype == "int16"


CHANNELS = {
    "conv": (node("Conv", "x w b", "y"), (4, 3, 3, 3), 4, 0),
    "depthwise": (node("Conv", "x w b", "y", group=3), (3, 1, 3, 3), 3, 0),
    "transposed": (node("ConvTranspose", "x w b", "y"), (3, 5, 2, 2), 5, 1),
    "transposed in groups": (node("ConvTranspose", "x w b", "y", group=3), (3, 2, 2, 2), 6, None),
    "gemm": (node("Gemm", "x w b", "y"), (8, 5), 5, 1),
    "gemm transB": (node("Gemm", "x w b", "y", transB=1), (5, 8), 5, 0),
    "matmul": (node("MatMul", "x w", "y"), (8, 5), None, 1),
    "batched matmul": (node("MatMul", "x w", "y"), (3, 8, 5), None, 2),
    "matmul from the left": (node("MatMul", "w x", "y"), (5, 8), None, None),
    "no layer": (node("Mul", "x w", "y"), (3, 1, 1), None, None),
}


def layer(kind):
    one, shape, biases, axis = CHANNELS[kind]
    size = (4, 8) if one.op_type == "Gemm" else IMAGE
    constants = {"w": normal(*shape) * np.geomspace(1, 100, shape[axis or 0]).reshape(
        [-1 if index == (axis or 0) else 1 for index in range(len(shape))]
    ).astype(np.float32)}  # fmt: skip
    if biases:
        constants["b"] = normal(biases, seed=1)
    return build([one], "y", constants, inputs=[info("x", size)]), {"x": normal(*size, seed=9)}, constants, axis


@pytest.mark.parametrize("kind", CHANNELS)
def test_scales_per_channel(kind):
    proto, feeds, constants, axis = layer(kind)
    _, plan = planned(proto, feeds, PER_CHANNEL)
    weight = np.abs(constants["w"]).astype(np.float64)
    params = plan.of("w")
    assert params.axis == axis
    largest = weight.max() if axis is None else np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).max(axis=1)
    np.testing.assert_array_equal(params.scale, np.float32(largest / 127))
    np.testing.assert_array_equal(params.zero_point, np.zeros(np.shape(largest)))
    if "b" in constants:
        bias = plan.of("b")
        np.testing.assert_array_equal(bias.scale, unit_of(plan, "x", "w"))
        assert bias.encode(constants["b"]).shape == constants["b"].shape
        assert np.abs(bias.snap(constants["b"]) - constants["b"]).max() <= bias.scale.max() / 2 * (1 + 1e-9)
    assert plan.of("y").axis is None and plan.of("x").axis is None


@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((1, 5), 0), ((4, 5), 0), ((), None), ((1,), None), ((4, 1), None)]
)
def test_the_bias_of_a_gemm_has_many_shapes(shape, axis):
    # A bias of (4, 1) adds one number to all channels: there is no unit per channel to count it in.
    proto = build(
        [node("Gemm", "x w b", "y", transB=1)],
        "y",
        {"w": normal(5, 8), "b": normal(*shape, seed=1) * 100},
        inputs=[info("x", (4, 8))],
    )
    model, plan = planned(proto, {"x": normal(4, 8, seed=9)}, PER_CHANNEL.replace(activations=IntegerFormat("int16")))
    assert plan.of("w").axis == axis
    bias = constants_of(model)["b"]
    snapped = plan.of("b").snap(bias)
    assert snapped.shape == shape
    assert np.abs(snapped - bias).max() <= plan.of("b").scale.max() / 2 * (1 + 1e-9)


def one_layer(bias, weight=(1.0, 0.5)):
    data = np.array(weight, np.float32).reshape(len(weight), 1, 1, 1) * np.ones((1, 3, 1, 1), np.float32)
    return build([node("Conv", "x w b", "y")], "y", {"w": data, "b": np.array(bias, np.float32)})


def test_room_for_a_large_bias_with_sixteen_bits():
    proto = one_layer([1000.0, 1.0])
    model, layout = laid_out(proto)
    plan = make_plan(model, layout, {"x": seen(-1, 1), "y": seen(-1000, 1000)}, A16W8)
    # 1/32767 * 1/127 * (2^31 - 1) = 516 is the largest bias in this unit: 1000 wants a weight of about twice the scale.
    assert plan.of("w").scale == pytest.approx(1000 / (2**31 - 1) * 32767, rel=1e-6)
    assert plan.of("b").scale == unit_of(plan, "x", "w")
    assert not plan.of("b").clipped([1000.0, 1.0]).any()
    assert plan.of("b").encode(1000.0) == pytest.approx(2**31, rel=1e-6)
    (move,) = plan.moves
    assert (move.value, move.rule, move.node) == ("w", "room for the bias", "conv_y")
    assert (move.before, move.after) == (float(np.float32(1 / 127)), float(plan.of("w").scale))


def test_room_is_made_in_the_channel_that_needs_it():
    recipe = A16W8.replace(weights=IntegerFormat("int8", granularity="per_channel"))
    model, layout = laid_out(one_layer([1000.0, 1.0]))
    plan = make_plan(model, layout, {"x": seen(-1, 1), "y": seen(-1000, 1000)}, recipe)
    assert plan.of("w").scale[0] == pytest.approx(1000 / (2**31 - 1) * 32767, rel=1e-6)
    assert plan.of("w").scale[1] == np.float32(0.5 / 127)
    assert not plan.of("b").clipped([1000.0, 1.0]).any()


def test_room_with_eight_bits_is_there_already():
    model, layout = laid_out(one_layer([1000.0, 1.0]))
    plan = make_plan(model, layout, {"x": seen(-1, 1), "y": seen(-1000, 1000)}, A8W8)
    assert plan.moves == ()


def test_room_on_powers_of_two_is_a_power_of_two():
    wide = IntegerFormat("int16", scale="power_of_two")
    recipe = XINT8.replace(activations=wide, biases=IntegerFormat("int32", scale="power_of_two"), method=NonOverflow())
    model, layout = laid_out(one_layer([1000.0, 0.0]))
    plan = make_plan(model, layout, {"x": seen(-1, 1), "y": seen(-1000, 1000)}, recipe)
    # Positions 14 and 6 leave 2^31 / 2^20 = 2048 of room; a bias of 10000 takes three of them.
    assert (plan.position("x"), plan.position("w"), plan.position("b"), plan.moves) == (14, 6, 20, ())
    model, layout = laid_out(one_layer([10000.0, 0.0]))
    plan = make_plan(model, layout, {"x": seen(-1, 1), "y": seen(-1000, 1000)}, recipe)
    assert (plan.position("w"), plan.position("b")) == (3, 17)
    assert not plan.of("b").clipped([10000.0]).any()


@given(st.floats(1e-20, 1e6), st.floats(1e-6, 1e3), st.floats(1e-3, 1e6), st.booleans())
def test_no_bias_ever_saturates(inputs, weight, bias, per_channel):
    recipe = A16W8.replace(weights=IntegerFormat("int8", granularity="per_channel" if per_channel else "per_tensor"))
    values = np.array([bias, -bias / 3], np.float32)
    model, layout = laid_out(one_layer(values, (weight, weight)))
    plan = make_plan(model, layout, {"x": seen(inputs), "y": seen(1)}, recipe)
    assert not plan.of("b").clipped(values).any()
    assert (plan.of("b").scale == unit_of(plan, "x", "w")).all()
    assert (plan.of("w").scale == np.float32(plan.of("w").scale)).all()


@pytest.mark.parametrize("recipe", [A8W8, A16W8, PER_CHANNEL], ids=["A8W8", "A16W8", "per channel"])
def test_zeros_and_values_never_seen(recipe):
    proto = one_layer([0.0, 0.0], (0.0, 0.0))
    model, layout = laid_out(proto)
    plan = make_plan(model, layout, {"x": seen(), "y": seen(0.0)}, recipe)
    for name in ("x", "w", "b", "y"):
        assert (plan.of(name).scale == 1.0).all() and (plan.of(name).zero_point == 0).all()
    assert plan.free == {"x", "w", "b", "y"}
    assert (plan.of("b").encode([0.0, 0.0]) == 0).all()


def test_a_product_of_scales_below_float32_is_no_zero():
    model, layout = laid_out(one_layer([0.0, 0.0], (1e-30, 1e-30)))
    plan = make_plan(model, layout, {"x": seen(1e-30), "y": seen(0)}, A8W8)
    assert plan.of("b").scale == LEAST_SCALE
    assert (plan.of("b").encode([0.0, 0.0]) == 0).all()


def test_asymmetric_activations():
    recipe = A8W8.replace(activations=IntegerFormat("uint8", symmetric=False))
    model, layout = laid_out(one_layer([1.0, 2.0]))
    plan = make_plan(model, layout, {"x": seen(-64, 191), "y": seen(3, 255)}, recipe)
    assert (float(plan.of("x").scale), int(plan.of("x").zero_point)) == (1.0, 64)
    assert (float(plan.of("y").scale), int(plan.of("y").zero_point)) == (1.0, 0)
    assert plan.of("b").scale == np.float32(1 / 127)
    assert plan.of("b").zero_point == 0


def test_biases_with_a_scale_of_their_own():
    model, plan = planned(conv_relu_conv(), FEEDS, A8W8.replace(biases=IntegerFormat("int8")))
    assert plan.products == {} and plan.finest == {}
    bias = constants_of(model)["b1"]
    assert plan.of("b1").scale == np.float32(np.abs(bias).max() / np.float64(127))


def test_a_weight_that_is_data_has_the_format_of_weights():
    _, plan = planned(concat(), FEEDS, A16W8)
    assert plan.of("extra").format.dtype == "int8"
    assert plan.of("cat").format.dtype == "int16"


def test_methods_that_do_not_fit_their_formats():
    check_methods(A8W8.replace(method=Entropy()))
    with pytest.raises(UsageError, match="Entropy.*uint8"):
        check_methods(XINT8.replace(method=Entropy()))
    with pytest.raises(UsageError, match="NonOverflow.*int8"):
        check_methods(XINT8.replace(method=NonOverflow(), biases=IntegerFormat("int8")))
    check_methods(XINT8.replace(method=NonOverflow(), biases=IntegerFormat("int32")))
