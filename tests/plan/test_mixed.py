"""Mixed precision by hand: what each value is stored in, one conversion at every border, and none elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import detent
from detent.errors import UsageError
from detent.graph.load import load
from detent.graph.save import serialize
from detent.methods import MinMax
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.plan.layout import Role
from detent.plan.mixed import arrange
from detent.plan.select import Selection
from detent.prepare import prepare
from detent.prepare.shapes import InferShapes
from detent.recipe import Override
from detent.recipe.file import find_recipe
from detent.recipe.recipe import PRESETS
from tests.emit.forms import emitted, snapped
from tests.models import (
    IMAGE,
    as_ir,
    build,
    concat,
    conv_relu_conv,
    info,
    node,
    normal,
    residual,
    run,
    since_runtime,
    values_of,
)

INT8, INT16, BF16 = IntegerFormat("int8"), IntegerFormat("int16"), FloatFormat("bfloat16")
A8W8 = PRESETS["A8W8"].replace(method=MinMax(), weights=IntegerFormat("int8"))
FREE = A8W8.replace(biases=None, target="cpu")
FEEDS = {"x": normal(*IMAGE, seed=9)}


def arranged(proto, *overrides, recipe=FREE):
    model = load(proto)
    prepare(model, [InferShapes()])
    return model, arrange(model, Selection(), recipe.replace(overrides=overrides))


def conversions(model):
    return [(one.inputs[0].name, [user.name for user in one.outputs[0].consumers()])
            for one in model.graph if one.op_type == "Identity"]  # fmt: skip


def dtypes(layout, role=Role.ACTIVATION):
    return {site.value: layout.formats[site.value].dtype for site in layout.of_role(role)}


PARTS = {
    "name": Override(nodes=("conv_y",), activations=INT16),
    "pattern": Override(nodes=("conv_?",), activations=INT16),
    "between": Override(between=(("conv_y",), ("conv_y",)), activations=INT16),
    "to the end": Override(between=(("conv_y",), ()), activations=INT16),
}


@pytest.mark.parametrize("part", PARTS)
def test_the_ways_to_name_a_part(part):
    model, layout = arranged(conv_relu_conv(), PARTS[part])
    assert conversions(model) == [("r1", ["conv_y"])]
    assert dtypes(layout) == {"x": "int8", "r1": "int8", "r1/converted": "int16", "y": "int16"}
    assert dtypes(layout, Role.WEIGHT) == {"w1": "int8", "w2": "int8"}


def test_a_part_by_operator_type():
    model, layout = arranged(residual(), Override(op_types=("Add",), activations=INT16, weights=INT16))
    assert sorted(conversions(model)) == [("c2", ["add_s"]), ("r1", ["add_s"])]
    assert dtypes(layout)["y"] == "int16"  # the Relu is computed with the Add
    assert dtypes(layout)["r1"] == dtypes(layout)["c2"] == "int8"
    assert set(dtypes(layout, Role.WEIGHT).values()) == {"int8"}


def test_weights_alone_need_no_conversion():
    model, layout = arranged(conv_relu_conv(), Override(nodes=("conv_c1",), weights=INT16))
    assert conversions(model) == []
    assert dtypes(layout, Role.WEIGHT) == {"w1": "int16", "w2": "int8"}


def test_formats_that_agree_are_not_converted():
    everywhere = Override(op_types=("Conv", "Relu", "Add"), activations=INT16)
    model, layout = arranged(residual(), everywhere)
    assert conversions(model) == []
    assert set(dtypes(layout).values()) == {"int16"}
    model, _ = arranged(residual(), Override(nodes=("*",), activations=INT8))
    assert conversions(model) == []


def test_the_last_override_that_says_something_wins():
    _, layout = arranged(
        conv_relu_conv(),
        Override(nodes=("*",), activations=INT16, weights=INT16),
        Override(nodes=("conv_y",), weights=IntegerFormat("uint8")),
    )
    assert set(dtypes(layout).values()) == {"int16"}
    assert dtypes(layout, Role.WEIGHT) == {"w1": "int16", "w2": "uint8"}


def test_a_fused_activation_follows_its_layer():
    model, layout = arranged(conv_relu_conv(), Override(nodes=("conv_c1",), activations=INT16))
    assert dtypes(layout) == {"x": "int16", "r1": "int16", "r1/converted": "int8", "y": "int8"}
    assert conversions(model) == [("r1", ["conv_y"])]
    with pytest.raises(UsageError, match="relu_r1.*'conv_c1'"):
        arranged(conv_relu_conv(), Override(nodes=("relu_r1",), activations=INT16))
    apart = FREE.replace(fuse=())
    _, layout = arranged(conv_relu_conv(), Override(nodes=("relu_r1",), activations=INT16), recipe=apart)
    assert dtypes(layout) == {
        **{"x": "int8", "c1": "int8", "c1/converted": "int16", "r1": "int16"},
        **{"r1/converted": "int8", "y": "int8"},
    }


def test_a_pad_follows_the_pool_that_it_is_computed_with():
    nodes = [
        node("Conv", "x w", "c"),
        node("Pad", "c pads", "p"),
        node("AveragePool", "p", "y", kernel_shape=[2, 2]),
    ]
    proto = build(nodes, "y", {"w": normal(2, 3, 3, 3), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
    model, layout = arranged(proto, Override(op_types=("AveragePool",), activations=INT16))
    assert dtypes(layout) == {"x": "int8", "c": "int8", "c/converted": "int16", "y": "int16"}
    assert conversions(model) == [("c", ["pad_p"])]


def fan_out():
    return build(
        [
            node("Conv", "x w", "a"),
            node("Conv", "x v", "b"),
            node("Conv", "x v", "c"),
            node("Add", "a b", "s"),
            node("Add", "s c", "y"),
        ],
        "y",
        {"w": normal(4, 3, 3, 3), "v": normal(4, 3, 3, 3, seed=1)},
    )


def test_an_input_with_readers_of_several_formats_has_one_copy_for_each():
    model, layout = arranged(
        fan_out(),
        Override(nodes=("conv_b", "conv_c"), activations=INT16),
        Override(op_types=("Add",), activations=BF16),
    )
    assert dtypes(layout)["x"] == "int8"
    copies = dict(conversions(model)[:1])
    assert copies == {"x": ["conv_b", "conv_c"]}
    assert sum(source == "x" for source, _ in conversions(model)) == 1
    assert {source for source, _ in conversions(model)} == {"x", "a", "b", "c"}


def test_the_first_reader_decides_what_an_input_is():
    model, layout = arranged(fan_out(), Override(nodes=("conv_a",), activations=INT16))
    assert dtypes(layout)["x"] == "int16" and dtypes(layout)["x/converted"] == "int8"
    assert conversions(model)[0] == ("x", ["conv_b", "conv_c"])


def test_a_part_that_is_left_float():
    model, layout = arranged(
        residual(), Override(nodes=("conv_c2",), leave_float=True), Override(nodes=("add_s",), activations=INT16)
    )
    assert not layout.decisions["conv_c2"].quantized
    assert layout.decisions["conv_c2"].reason == "left float by the override of conv_c2"
    # c2 is computed in float and read by the Add alone; r1 is rounded by its layer first.
    assert dtypes(layout) == {"x": "int8", "r1": "int8", "r1/converted": "int16", "c2": "int16", "y": "int16"}
    assert conversions(model) == [("r1", ["add_s"])]


def test_activations_in_one_part_only():
    recipe = FREE.replace(activations=None)
    model, layout = arranged(conv_relu_conv(), Override(nodes=("conv_y",), activations=INT8), recipe=recipe)
    assert conversions(model) == [("r1", ["conv_y"])]
    assert dtypes(layout) == {"r1/converted": "int8", "y": "int8"}


def test_single_tensors():
    _, layout = arranged(
        conv_relu_conv(),
        Override(tensors=("r1",), activations=INT16),
        Override(tensors=("x",), range=(-2.0, 4.0)),
        Override(tensors=("w*",), weights=INT16, range=(-1.0, 1.0)),
    )
    assert dtypes(layout) == {"x": "int8", "r1": "int16", "y": "int8"}
    assert dtypes(layout, Role.WEIGHT) == {"w1": "int16", "w2": "int16"}
    assert layout.ranges == {"x": (-2.0, 4.0), "w1": (-1.0, 1.0), "w2": (-1.0, 1.0)}


def test_a_tensor_takes_all_that_share_its_scale_along():
    nodes = [node("Conv", "x w", "c"), node("MaxPool", "c", "m", kernel_shape=[2, 2]), node("Sigmoid", "m", "y")]
    proto = build(nodes, "y", {"w": normal(2, 3, 3, 3)})
    _, layout = arranged(proto, Override(tensors=("m",), activations=INT16, range=(-1.0, 1.0)))
    assert dtypes(layout) == {"x": "int8", "c": "int16", "m": "int16", "y": "int8"}
    assert layout.ranges == {"c": (-1.0, 1.0)}


def test_a_given_range_is_what_the_scale_spans():
    recipe = FREE.replace(overrides=(Override(tensors=("x",), range=(-2.0, 4.0)),))
    plan = emitted(conv_relu_conv(), recipe, FEEDS).plan
    assert plan.of("x").scale == np.float32(4 / 127)


BAD = {
    "no such node": (Override(nodes=("conv_z",), activations=INT16), ("'conv_z'", "'conv_y'")),
    "no such operator": (Override(op_types=("LSTM",), activations=INT16), ("LSTM", "no such operator")),
    "no such tensor": (Override(tensors=("r7",), activations=INT16), ("tensor 'r7'", "'r1'")),
    "a fused tensor": (Override(tensors=("c1",), activations=INT16), ("tensor 'c1'", "none that is quantized")),
    "no such end": (Override(between=(("conv_c1",), ("nd",)), activations=INT16), ("conv_c1 to nd", "'nd'")),
    "nothing between": (Override(between=(("conv_y",), ("conv_c1",)), activations=INT16), ("conv_y to conv_c1",)),
    "another role": (Override(tensors=("w1",), activations=INT16), ("'w1'", "weights", "says nothing")),
    "the range of a float": (
        Override(tensors=("x",), activations=BF16, range=(-1.0, 1.0)),
        ("'x'", "range", "bfloat16"),
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_overrides_that_fit_nothing(kind):
    override, words = BAD[kind]
    with pytest.raises(UsageError) as caught:
        arranged(conv_relu_conv(), override)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (Override(nodes=("conv_y",), activations=BF16), ("'b2'", "conv_y", "'r1/converted' is bfloat16")),
        (Override(nodes=("conv_y",), weights=FloatFormat("float16")), ("'b2'", "'w2' is float16")),
        (
            Override(nodes=("conv_y",), weights=IntegerFormat("int4", granularity="per_group:2")),
            ("'b2'", "'w2' is int4 per_group:2"),
        ),
        (Override(tensors=("b1",), range=(-1.0, 1.0)), ("'b1'", "range", "int32")),
    ],
)
def test_biases_that_would_have_no_unit(override, words):
    with pytest.raises(UsageError) as caught:
        arranged(conv_relu_conv(), override, recipe=A8W8)
    for word in words:
        assert word in str(caught.value)


def producers(proto):
    return {name: one for one in proto.graph.node for name in one.output}


@pytest.mark.parametrize(
    "form",
    ["qdq", *(pytest.param(f"{each}-qdq", marks=since_runtime(26, "overloads")) for each in ("extended", "vitis"))],
)
@pytest.mark.parametrize("dedicated", [False, True])
def test_the_file_converts_at_the_border(form, dedicated):
    override = Override(nodes=("conv_y",), activations=INT16)
    recipe = FREE.replace(overrides=(override,), format=form, dedicated_pairs=dedicated)
    result, plan, rounded, _ = emitted(conv_relu_conv(), recipe, FEEDS)
    assert "Identity" not in {one.op_type for one in result.graph.node}
    made = producers(result)
    chain = []
    name = next(one for one in result.graph.node if one.name == "conv_y").input[0]
    for _ in range(4):
        chain.append(made[name].op_type.removeprefix("Extended").removeprefix("Vitis"))
        name = made[name].input[0]
    assert chain == ["DequantizeLinear", "QuantizeLinear"] * 2
    assert made[name].op_type == "Relu"
    got = values_of(result, list(rounded.values()), FEEDS)
    first, copy = got[rounded["r1"]], got[rounded["r1/converted"]]
    np.testing.assert_array_equal(copy, snapped(plan.of("r1/converted"), first))
    assert plan.of("r1").format.dtype == "int8" and plan.of("r1/converted").format.dtype == "int16"


def test_a_border_at_a_graph_output_and_in_a_body():
    bodies = {
        key: helper.make_graph([node(op, "c", f"{key}_o")], key, [], [info(f"{key}_o", (1, 3, 6, 6))])
        for key, op in (("then_branch", "Identity"), ("else_branch", "Neg"))
    }
    proto = build(
        [node("Conv", "x w", "c"), node("If", "flag", "picked", **bodies), node("Sigmoid", "c", "y")],
        "c picked y",
        {"w": normal(3, 3, 3, 3)},
        inputs=[info("x", IMAGE), info("flag", [], TensorProto.BOOL)],
    )
    feeds = {**FEEDS, "flag": np.array(True)}
    recipe = FREE.replace(overrides=(Override(op_types=("Sigmoid",), activations=INT16),))
    result, plan, rounded, _ = emitted(proto, recipe, feeds)
    assert rounded["c"] == "c"
    got = values_of(result, ["c", "picked", rounded["c/converted"]], feeds)
    np.testing.assert_array_equal(got["picked"], got["c"])
    np.testing.assert_array_equal(got[rounded["c/converted"]], snapped(plan.of("c/converted"), got["c"]))


def test_several_readers_each_with_a_pair_of_its_own():
    recipe = FREE.replace(dedicated_pairs=True)
    proto = build(
        [node("Conv", "x w", "c"), node("Sigmoid", "c", "a"), node("Tanh", "c", "b"), node("Add", "a b", "y")],
        "y c",
        {"w": normal(3, 3, 3, 3)},
    )
    result, _, rounded, _ = emitted(proto, recipe, FEEDS)
    made = producers(result)
    reads = {one.op_type: one.input[0] for one in result.graph.node if one.op_type in ("Sigmoid", "Tanh")}
    assert len({*reads.values(), "c"}) == 3
    assert all(made[name].op_type == "DequantizeLinear" for name in (*reads.values(), "c"))
    got = values_of(result, ["c", *reads.values()], FEEDS)
    for name in reads.values():
        np.testing.assert_array_equal(got[name], got["c"])
    plain = run(emitted(proto, FREE, FEEDS).proto, FEEDS)
    for name, array in run(result, FEEDS).items():
        np.testing.assert_array_equal(array, plain[name])
    assert rounded["c"] == "c"


@pytest.mark.parametrize("maker", [residual, concat, conv_relu_conv])
def test_weight_pairs_change_no_number(maker):
    plain, paired = (emitted(maker(), FREE.replace(weight_pairs=pairs), FEEDS).proto for pairs in (False, True))
    np.testing.assert_array_equal(run(plain, FEEDS)["y"], run(paired, FEEDS)["y"])
    kinds = [[one.op_type for one in proto.graph.node] for proto in (plain, paired)]
    assert kinds[1].count("QuantizeLinear") == kinds[1].count("DequantizeLinear") == kinds[0].count("DequantizeLinear")


SAMPLES = np.stack([normal(*IMAGE[1:], seed=seed) for seed in range(6)])


def test_statistics_of_a_copy_are_those_of_the_original():
    recipe = A8W8.replace(overrides=(Override(nodes=("conv_y",), activations=IntegerFormat("uint8")),))
    report = detent.quantize(conv_relu_conv(), None, SAMPLES, recipe)
    tensors = {tensor.name: tensor for tensor in report.tensors}
    original, copy = tensors["r1"], tensors["r1/converted"]
    assert (copy.dtype, original.dtype) == ("uint8", "int8")
    assert copy.scale * 255 == pytest.approx(original.scale * 254, rel=1e-6)


@pytest.mark.parametrize("target", ["cpu", "npu-float-scale"])
def test_a_concat_of_several_formats(target):
    recipe = FREE.replace(
        target=target,
        refinement=None,
        overrides=(
            Override(nodes=("conv_c1",), activations=INT16),
            Override(nodes=("conv_c2",), activations=BF16, weights=BF16),
            Override(op_types=("Concat",), activations=INT8),
        ),
    )
    report = detent.quantize(concat(), None, SAMPLES, recipe)
    assert report.fidelity.outputs["y"].sqnr_db > 25
    made = producers(report.model)
    join = next(one for one in report.model.graph.node if one.op_type == "Concat")
    scales = {made[name].input[1] for name in join.input}
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in report.model.graph.initializer}
    assert len({float(held[name]) for name in scales}) == (1 if target == "npu-float-scale" else 3)


def test_a_concat_of_floats_among_integers():
    recipe = FREE.replace(target="npu-float-scale", overrides=(Override(op_types=("Concat",), activations=BF16),))
    assert detent.quantize(concat(), None, SAMPLES, recipe).fidelity.outputs["y"].sqnr_db > 25


@pytest.mark.parametrize("maker", [residual, conv_relu_conv])
def test_equalization_and_bias_correction_work_on_mixed_models(maker):
    recipe = A8W8.replace(overrides=(Override(op_types=("Add",), nodes=("conv_c1",), activations=INT16),))
    if maker is conv_relu_conv:
        recipe = recipe.replace(overrides=(Override(nodes=("conv_c1",), activations=INT16),))
    report = detent.quantize(maker(), None, SAMPLES, recipe)
    assert report.fidelity.outputs["y"].sqnr_db > 30
    layers = {"conv_c1", "conv_y" if maker is conv_relu_conv else "conv_c2"}
    taken_back = any("taken back" in remark for remark in report.remarks)
    assert {layer.name for layer in report.refined} == (set() if taken_back else layers)
    assert report.equalization is not None
    again = detent.quantize(maker(), None, SAMPLES, recipe)
    assert serialize(again.model) == serialize(report.model)


def test_more_bits_in_a_part_make_a_better_model():
    plain = detent.quantize(residual(), None, SAMPLES, A8W8)
    wide = detent.quantize(
        residual(), None, SAMPLES, A8W8.replace(overrides=(Override(nodes=("*",), activations=INT16),))
    )
    assert wide.fidelity.outputs["y"].sqnr_db > plain.fidelity.outputs["y"].sqnr_db + 5


def test_an_empty_plan_is_refused():
    with pytest.raises(UsageError, match="there is nothing to do"):
        arranged(conv_relu_conv(), recipe=FREE.replace(activations=None, weights=None))


def test_the_graph_is_left_alone_where_nothing_is_overridden():
    proto = residual()
    model, _ = arranged(proto)
    assert [one.name for one in model.graph] == [one.name for one in proto.graph.node]


@pytest.mark.parametrize("recipe", ["BFP16", "MXINT8", "BF16_BFP16", "MX6"])
def test_a_scalar_has_no_neighbours_to_share_an_exponent_with(recipe):
    proto = build([node("Div", "x four", "d"), node("Relu", "d", "y")], "y", {"four": np.float32(4.1)})
    report = detent.quantize(proto, None, FEEDS["x"], recipe)
    constants = {tensor.name: tensor for tensor in report.model.graph.initializer}
    divide = next(one for one in report.model.graph.node if one.op_type == "Div")
    assert onnx.numpy_helper.to_array(constants[divide.input[1]]) == np.float32(4.1)


DPU = find_recipe("XINT8").replace(rounding="dpu")


def ties(recipe, **selected):
    layout = arrange(as_ir(residual()), Selection(**selected), recipe)
    return {name: layout.ties_of(name) for name in layout.sites}


def test_the_device_rounds_up_what_it_computes_and_the_host_to_even_what_it_feeds():
    assert ties(DPU) == {
        "x": "half_even",
        "w1": "half_even",
        "b1": "half_even",
        "r1": "half_up",
        "w2": "half_even",
        "b2": "half_even",
        "c2": "half_up",
        "y": "half_up",
    }


def test_the_result_of_a_node_that_stays_float_is_quantized_by_the_host():
    found = ties(DPU, exclude=("conv_c2",))
    assert (found["c2"], found["r1"], found["y"]) == ("half_even", "half_up", "half_up")


def test_half_to_even_is_what_the_file_says():
    assert set(ties(DPU.replace(rounding="half-even")).values()) == {"half_even"}
