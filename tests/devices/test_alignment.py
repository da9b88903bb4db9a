from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import detent
from detent.devices.catalog import find_device
from detent.devices.constraints import CONCATS
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Role
from detent.plan.plan import make_plan
from detent.recipe.file import find_recipe
from detent.recipe.presets import PRESETS
from tests.models import XINT8, build, concat, conv_relu_conv, count_sample, info, laid_out, node, normal, planned

A8W8, A16W8 = find_recipe("A8W8"), find_recipe("A16W8")
ASYMMETRIC = A8W8.replace(activations=IntegerFormat("uint8", symmetric=False))


def aligned(nodes, ranges, recipe=A8W8, outputs="y", constants=None):
    """The plan after the rule, from the range of each value; the graph inputs are those that no node computes."""
    computed = {name for one in nodes for name in one.output}
    read = dict.fromkeys(name for one in nodes for name in one.input)
    inputs = [info(name, (1, 2, 3)) for name in read if name not in computed and name not in (constants or {})]
    model, layout = laid_out(build(nodes, outputs, constants, inputs=inputs))
    statistics = {}
    for site in layout.of_role(Role.ACTIVATION):
        statistics[site.value] = TensorStatistics()
        if site.value in ranges:
            count_sample(statistics[site.value], np.array(ranges[site.value], np.float32))
    plan = make_plan(model, layout, statistics, recipe)
    before = dict(plan.params)
    assert CONCATS.constrain(model, plan) == []
    moves = list(plan.moves)
    assert CONCATS.constrain(model, plan) == [] and plan.moves == moves  # once is enough
    return plan, before


def shared(plan, *names):
    """The scale, zero point and type that all of them have."""
    found = {(float(plan.of(name).scale), int(plan.of(name).zero_point), plan.of(name).format.dtype) for name in names}
    assert len(found) == 1
    return found.pop()


def cat(inputs, output, **attributes):
    return node("Concat", inputs, output, axis=1, **attributes)


def test_the_widest_decides():
    plan, _ = aligned([cat("a b c", "y")], {"a": [-127, 50], "b": [1], "c": [254], "y": [3]})
    assert shared(plan, "a", "b", "c", "y") == (2.0, 0, "int8")
    assert {(move.value, move.before, move.after, move.rule, move.node) for move in plan.moves} == {
        ("a", 1.0, 2.0, "align", "concat_y"),
        ("b", float(np.float32(1 / 127)), 2.0, "align", "concat_y"),
        ("y", float(np.float32(3 / 127)), 2.0, "align", "concat_y"),
    }


def test_ranges_on_either_side_are_joined():
    plan, _ = aligned([cat("a b", "y")], {"a": [-55, 0], "b": [0, 200], "y": [-55, 200]}, ASYMMETRIC)
    assert shared(plan, "a", "b", "y") == (1.0, 55, "uint8")


def test_concats_in_a_chain():
    nodes = [cat("a b", "m"), cat("m c", "n"), cat("n d", "y"), cat("e f", "z")]
    ranges = {"a": [127], "b": [2], "m": [127], "c": [3], "n": [127], "d": [1270], "y": [1270], "e": [1], "f": [127]}
    plan, _ = aligned(nodes, ranges, outputs="y z")
    assert shared(plan, "a", "b", "c", "d", "m", "n", "y") == (10.0, 0, "int8")
    assert shared(plan, "e", "f", "z") == (1.0, 0, "int8")


@pytest.mark.parametrize("widest", ["a", "c"])
def test_concats_that_a_later_one_joins(widest):
    nodes = [cat("a b", "m"), cat("c d", "n"), cat("b d", "y")]
    ranges = {**{name: [1] for name in "abcdmny"}, widest: [-255, 0]}
    plan, _ = aligned(nodes, ranges, outputs="m n y")
    assert shared(plan, *"abcdmny")[0] == float(np.float32(255 / 127))
    joined_at = {**dict.fromkeys("abm", "concat_m"), **dict.fromkeys("cdn", "concat_n"), "y": "concat_y"}
    del joined_at[widest]
    assert {move.value: move.node for move in plan.moves} == joined_at


def test_a_value_with_another_reader_moves_for_both():
    nodes = [cat("a b", "y"), node("Sigmoid", "a", "s"), node("Transpose", "a", "t")]
    plan, before = aligned(nodes, {"a": [1], "b": [127], "s": [1], "y": [127]}, outputs="y s t")
    assert shared(plan, "a", "b", "y", "t") == (1.0, 0, "int8")
    assert plan.of("s") is before["s"]


def test_zeros_do_not_widen():
    plan, _ = aligned([cat("a zero never", "y")], {"a": [1.27], "zero": [0], "y": [1.27]})
    assert shared(plan, "a", "zero", "never", "y") == (float(np.float32(np.float32(1.27) / np.float64(127))), 0, "int8")
    plan, _ = aligned([cat("a b", "y")], {"a": [0]})
    assert shared(plan, "a", "b", "y") == (1.0, 0, "int8")
    assert plan.moves == []


@pytest.mark.parametrize("order", ["a extra", "extra a"])
@pytest.mark.parametrize(("largest", "scale"), [(10.0, 1.0), (65534.0, 2.0)])
def test_a_constant_takes_the_type_of_the_activations(order, largest, scale):
    constants = {"extra": np.full((1, 2, 3), largest, np.float32)}
    plan, _ = aligned([cat(order, "y")], {"a": [32767], "y": [32767]}, A16W8, constants=constants)
    assert shared(plan, "a", "extra", "y") == (scale, 0, "int16")


def test_power_of_two_scales_stay_powers_of_two():
    recipe = XINT8.replace(target="npu-float-scale")
    constants = {"extra": np.full((1, 2, 3), 100.0, np.float32)}
    plan, _ = aligned([cat("a extra", "y")], {"a": [1], "y": [1]}, recipe, constants=constants)
    scale, zero_point, dtype = shared(plan, "a", "extra", "y")
    assert (np.frexp(scale)[0], zero_point, dtype) == (0.5, 128, "uint8")
    assert plan.of("y").clipped(100.0) == np.False_


def test_a_zero_input_that_gets_a_small_scale_leaves_room_for_the_bias():
    nodes = [node("Conv", "z w b", "c"), cat("z a", "y")]
    constants = {"w": np.ones((1, 3, 1, 1), np.float32) / 1000, "b": np.array([500.0], np.float32)}
    model, layout = laid_out(build(nodes, "c y", constants, inputs=[info("z", (1, 3, 2, 2)), info("a", (1, 3, 2, 2))]))
    statistics = {name: TensorStatistics() for name in "zacy"}
    for name, largest in {"z": 0, "a": 1, "c": 500, "y": 1}.items():
        count_sample(statistics[name], np.array([largest], np.float32))
    plan = make_plan(model, layout, statistics, A16W8)
    assert plan.moves == []  # the scale of z is 1: all the room in the world
    CONCATS.constrain(model, plan)
    assert plan.of("z").scale == plan.of("a").scale == np.float32(1 / np.float64(32767))
    assert not plan.of("b").clipped([500.0]).any()
    assert [(move.value, move.rule) for move in plan.moves][-1] == ("w", "room for the bias")


limits = st.tuples(st.floats(-1e3, 0), st.floats(0, 1e3))
pairs = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=8)


@given(pairs, st.lists(limits, min_size=8, max_size=8), st.sampled_from([A8W8, ASYMMETRIC, A16W8]))
def test_any_net_of_concats_ends_aligned(edges, extents, recipe):
    # Half of the concats join inputs, the others an input with what a concat before them made.
    nodes = []
    for index, (left, right) in enumerate(edges):
        second = f"o{index - 1}" if index % 2 else f"i{right}"
        nodes.append(cat(f"i{left} {second}", f"o{index}"))
    ranges = {f"i{index}": extent for index, extent in enumerate(extents)}
    plan, before = aligned(nodes, ranges, recipe, outputs=" ".join(f"o{index}" for index in range(len(edges))))
    for one in nodes:
        shared(plan, *one.input, *one.output)
        params = plan.of(one.output[0])
        step = float(params.scale)
        for name in one.input:
            if name in before and name not in plan.free:
                low, high = before[name].span
                assert params.span[0] <= low + 0.51 * step and params.span[1] >= high - 0.51 * step


def test_the_model_of_a_concat():
    model, plan = planned(concat(), recipe=A8W8)
    find_device("npu-float-scale").constraints.constrain(model, plan)
    shared(plan, "c1", "c2", "extra", "cat", "y")


# What a target cannot do is refused before anything else is looked at: there is no such model, and nobody asks for it.


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (A8W8.replace(target="npu-cnn"), "target npu-cnn .* the activations of recipe A8W8 have float scales"),
        (XINT8.replace(weights=IntegerFormat("int8")), "npu-cnn .* the weights of recipe XINT8 have float scales"),
        (XINT8.replace(biases=IntegerFormat("int32")), "npu-cnn .* the biases of recipe XINT8 have float scales"),
        (
            XINT8.replace(weights=IntegerFormat("int8", scale="power_of_two", granularity="per_channel")),
            "npu-cnn .* the weights of recipe XINT8 have a scale for each channel",
        ),
        (A8W8.replace(activations=IntegerFormat("int4")), "activations of recipe A8W8 are int4, .*int8, uint8, int16"),
        (A8W8.replace(activations=IntegerFormat("int32")), "activations of recipe A8W8 are int32"),
        (A8W8.replace(activations=IntegerFormat("uint4")), "activations of recipe A8W8 are uint4"),
        (A8W8.replace(weights=IntegerFormat("int32")), "weights of recipe A8W8 are int32"),
        (A8W8.replace(weights=IntegerFormat("uint32")), "weights of recipe A8W8 are uint32"),
        (A8W8.replace(biases=IntegerFormat("uint32")), "biases of recipe A8W8 are uint32, .* int32"),
        (
            A8W8.replace(activations=IntegerFormat("int8", granularity="per_channel")),
            "activations .* are per_channel: only weig",
        ),
        (
            A8W8.replace(biases=IntegerFormat("int32", granularity="per_channel")),
            "biases .* are per_channel: only weights",
        ),
        (
            A8W8.replace(activations=IntegerFormat("uint8", symmetric=False, scale="power_of_two")),
            "activations .* power_of_two scales and symmetric=False",
        ),
        (A8W8.replace(method=detent.NonOverflow()), "NonOverflow chooses a power-of-two scale"),
        (A8W8.replace(target="npu"), "There is no target 'npu'"),
    ],
)
def test_contradictions_are_refused_before_any_work(recipe, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        detent.quantize(tmp_path / "no such model.onnx", tmp_path / "out.onnx", recipe=recipe)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["npu-cnn", "cpu", "npu-float-scale"])
@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_power_of_two_recipes_go_everywhere(target, dtype):
    recipe = XINT8.replace(target=target, biases=IntegerFormat(dtype, scale="power_of_two"))
    report = detent.quantize(conv_relu_conv(), calibration=normal(4, 3, 8, 8), recipe=recipe)
    assert all(np.frexp(tensor.scale)[0] == 0.5 for tensor in report.tensors)
    assert {tensor.dtype for tensor in report.tensors if tensor.role == "bias"} == {dtype}


def test_every_preset_fits_its_target():
    for recipe in PRESETS.values():
        find_device(recipe.target).check(recipe)


def test_a_concat_of_activations_that_stay_float():
    recipe = PRESETS["A8W8"].replace(activations=None, biases=None, refinement=None)
    proto = build([node("Conv", "x w", "c"), node("Concat", "c k", "y", axis=1)], "y",
                  {"w": normal(3, 3, 1, 1), "k": normal(1, 2, 8, 8)})  # fmt: skip
    assert detent.quantize(proto, None, normal(1, 3, 8, 8, seed=2), recipe).model is not None
