"""The walk computes, bit for bit, what the emitted model computes in exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.devices.catalog import find_device
from detent.emit import emit
from detent.emulator import EmulatedValues
from detent.execute.quantized_walk import Program, QuantizedWalk, cut_segments
from detent.graph.load import load
from detent.graph.session import Runner
from detent.graph.values import constant
from detent.numerics.formats import QuantParams
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Sample
from detent.observe.sources import input_specs, open_source
from detent.observe.sweep import sweep
from detent.plan.layout import Role, lay_out
from detent.plan.plan import make_plan
from detent.plan.select import Selection
from detent.prepare import default_passes, prepare
from detent.recipe.file import find_recipe
from tests.models import IMAGE, SMALL_MODELS, XINT8, build, info, node, normal, planned, run

FEEDS = [{"x": normal(*IMAGE, seed=seed)} for seed in (9, 10, 11)]


def walked(model, plan, feeds, threads=2):
    """Every activation site of all samples, as the walk sees it."""
    walk = QuantizedWalk(model, plan, [f"sample {index}" for index in range(len(feeds))], threads)
    found = {}

    def keep(name, frontier):
        found[name] = [frontier.get(name, sample) for sample in range(len(feeds))]

    for index, sample in enumerate(feeds):
        walk.start(index, Sample(index, f"sample {index}", sample))
    for value in model.graph.inputs:
        keep(str(value.name), walk.frontier)
    walk.run(lambda _: None, keep)
    return found


def assert_simulates(model, plan, feeds):
    found = walked(model, plan, feeds)
    dequantized = emit(model, plan)
    runner = Runner(model, list(dequantized.values()), exact=True)
    sites = list(dequantized)
    assert sites == [site.value for site in plan.layout.of_role(Role.ACTIVATION)]
    for index, sample in enumerate(feeds):
        for name, expected in zip(sites, runner(sample), strict=True):
            np.testing.assert_array_equal(found[name][index], expected, err_msg=f"{name}, sample {index}")


def assert_simulates_device(model, plan, feeds):
    """With ties as the device has them: what the emulator computes in integers."""
    found = walked(model, plan, feeds)
    dequantized = emit(model, plan)
    emulated = EmulatedValues(model, "dpu")
    for index, sample in enumerate(feeds):
        for name, expected in zip(dequantized, emulated(sample, "the sample", list(dequantized.values())), strict=True):
            np.testing.assert_array_equal(found[name][index], expected, err_msg=f"{name}, sample {index}")


def correct(model, plan, target="npu-cnn"):
    prepare(model, [make(plan.layout.quantizes) for make in find_device(target).corrections])


@pytest.mark.parametrize("name", SMALL_MODELS)
@pytest.mark.parametrize("corrected", [False, True])
def test_every_site_of_the_small_models(name, corrected):
    model, plan = planned(SMALL_MODELS[name]())
    if corrected:
        correct(model, plan)
    assert_simulates(model, plan, FEEDS)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_every_site_on_a_device_that_rounds_ties_up(name):
    """All sums, and halves of a code of the input, are ties of some site."""
    model, plan = planned(SMALL_MODELS[name](), recipe=XINT8.replace(rounding="dpu"))
    correct(model, plan)
    half = float(plan.of("x").scale) / 2
    halves = [{"x": np.rint(sample["x"] / half).astype(np.float32) * np.float32(half)} for sample in FEEDS]
    assert_simulates_device(model, plan, halves)


@pytest.mark.parametrize("recipe", ["A8W8", "A16W8"])
def test_other_formats(recipe):
    """Float scales round on the way, so that a value between two codes may fall to the other side."""
    model, plan = planned(SMALL_MODELS["residual"](), recipe=find_recipe(recipe))
    found = walked(model, plan, FEEDS)
    dequantized = emit(model, plan)
    runner = Runner(model, list(dequantized.values()), exact=True)
    for index, sample in enumerate(FEEDS):
        for name, expected in zip(dequantized, runner(sample), strict=True):
            step = float(plan.of(name).scale)
            assert np.abs(found[name][index] - expected).max() <= step * 1.001
            assert (found[name][index] != expected).mean() < 0.01


def test_refined_numbers_are_those_that_are_emitted():
    model, plan = planned(SMALL_MODELS["conv_relu_conv"]())
    plain = walked(model, plan, FEEDS)["y"][0]
    plan = plan.with_refined({"w2": plan.of("w2").snap(normal(2, 4, 1, 1, seed=5)).astype(np.float32)})
    plan = plan.with_refined({"b2": plan.of("b2").snap(normal(2, seed=6)).astype(np.float32)})
    assert not np.array_equal(walked(model, plan, FEEDS)["y"][0], plain)
    assert_simulates(model, plan, FEEDS)


def test_samples_of_different_shapes():
    proto = build(
        [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "y")],
        "y",
        {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1)},
        inputs=[info("x", ["N", 3, "H", "W"])],
    )
    model, plan = planned(proto)
    assert_simulates(model, plan, [{"x": normal(*shape)} for shape in ((1, 3, 8, 8), (2, 3, 4, 16), (5, 3, 6, 6))])


def test_control_flow_several_outputs_and_float_nodes():
    """An If that reads a site and a constant of the graph, a Split, and a TopK that stays float."""
    then = helper.make_graph([node("Add", "r k", "t")], "then", [], [info("t", None)])
    other = helper.make_graph([node("Sub", "r k", "o")], "else", [], [info("o", None)])
    proto = build(
        [
            node("Conv", "x w b", "c"),
            node("Relu", "c", "r"),
            node("ReduceMax", "r", "m", keepdims=0),
            node("Greater", "m k", "flag"),
            node("If", "flag", "branch", then_branch=then, else_branch=other),
            node("Split", "branch", "left right", axis=1),
            node("Mul", "left right", "p"),
            node("TopK", "p two", "best where", axis=3),
            node("Cast", "where", "f", to=TensorProto.FLOAT),
            node("Add", "best f", "y"),
        ],
        "y",
        {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1), "k": np.float32(0.5), "two": np.array([2])},
    )
    assert_simulates(*planned(proto), FEEDS)


def test_a_constant_is_decoded_for_those_only_that_read_it_as_data():
    """The Clip reads 0.3 as its bound, and the Add reads the number nearest to it."""
    proto = build(
        [node("Add", "x k", "a"), node("Clip", "a k", "c"), node("Add", "c k", "y")], "y", {"k": np.float32(0.3)}
    )
    model, plan = planned(proto)
    plan = replace(plan, params={**plan.params, "k": QuantParams.at(XINT8.weights, 2)})
    plan = replace(plan, params={**plan.params, "c": QuantParams.at(XINT8.activations, 6)})
    assert_simulates(model, plan, FEEDS)


def test_sequences_between_nodes():
    proto = build(
        [
            node("Conv", "x w b", "c"),
            node("SplitToSequence", "c", "parts", axis=1),
            node("SequenceAt", "parts zero", "first"),
            node("SequenceAt", "parts one", "second"),
            node("Add", "first second", "y"),
        ],
        "y",
        {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1), "zero": np.int64(0), "one": np.int64(1)},
    )
    assert_simulates(*planned(proto), FEEDS)


def test_a_value_on_a_fused_edge_stays_inside_its_segment():
    model, plan = planned(SMALL_MODELS["residual"]())
    segments = cut_segments(model, plan.layout.sites)
    assert [[one.op_type for one in segment.nodes] for segment in segments] == [
        ["Conv", "Relu"],
        ["Conv"],
        ["Add", "Relu"],
    ]
    assert [[value.name for value in segment.outputs] for segment in segments] == [["r1"], ["c2"], ["y"]]


def test_values_are_dropped_after_their_last_reader():
    model, plan = planned(SMALL_MODELS["residual"]())
    walk = QuantizedWalk(model, plan, ["only"], 1)
    walk.start(0, Sample(0, "only", FEEDS[0]))
    held = []
    walk.run(lambda one: held.append((one.name, sorted(walk.frontier.names))))
    assert held == [
        ("conv_c1", ["x"]),
        ("relu_r1", ["x"]),
        ("conv_c2", ["r1"]),
        ("add_s", ["c2", "r1"]),
        ("relu_y", ["c2", "r1"]),
    ]
    assert not walk.frontier.names


def test_the_demo():
    model = load(MODEL)
    target = find_device("npu-cnn")
    prepare(model, default_passes(None, [make() for make in target.preparations]))
    layout = lay_out(model, Selection(), XINT8)
    specs = input_specs(model)
    source = open_source(CALIBRATION, specs, preprocess=PreprocessOptions(file=PREPROCESS), limit=8)
    leaders = [site.value for site in layout.of_role(Role.ACTIVATION) if layout.leader(site.value) == site.value]
    observation = sweep(model, leaders, source)
    plan = make_plan(model, layout, observation.statistics, XINT8)
    plan = target.constraints.constrain(model, plan)
    correct(model, plan)
    assert_simulates(model, plan, [pending.load().feeds for pending in source])


def looping():
    """A Conv, and a Loop that starts from a constant which its body reads by name as well."""
    body = helper.make_graph(
        [node("Add", "sum start", "more"), node("Identity", "again", "going")],
        "body",
        [info("i", [], TensorProto.INT64), info("again", [], TensorProto.BOOL), info("sum", [1])],
        [info("going", [], TensorProto.BOOL), info("more", [1])],
    )
    return build(
        [
            node("Conv", "x w", "c"),
            node("Loop", "times true start", "total", name="loop", body=body),
            node("Mul", "c total", "y"),
        ],
        [info("y", [1, 4, 8, 8])],
        {
            "w": normal(4, 3, 1, 1),
            "times": np.array(3, np.int64),
            "true": np.array(True),
            "start": np.array([0.5], np.float32),
        },
    )


def test_a_constant_that_a_loop_captures_and_has_as_an_input():
    model = load(looping())
    (loop,) = [each for each in model.graph if each.op_type == "Loop"]
    program = Program(model, [loop], loop.outputs, {}, lambda node, index: constant(node.inputs[index]))
    np.testing.assert_array_equal(program({}, "a sample")[0], [2.0])


def test_a_model_with_such_a_loop_is_quantized():
    data = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(4)]
    report = detent.quantize(looping(), None, data)
    found, expected = (run(proto, data[0])["y"] for proto in (report.model, looping()))
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_size_of_the_frontier_is_known_from_the_shapes(name):
    model, plan = planned(SMALL_MODELS[name]())
    prepare(model, default_passes())
    walk, found = QuantizedWalk(model, plan, ["the sample"], 1), [0]
    walk.start(0, Sample(0, "the sample", FEEDS[0]))
    walk.run(lambda _: None, lambda _, frontier: found.append(frontier.nbytes))
    expected = walk.expected_bytes(FEEDS[0])
    # Values that are looked up in a table take nothing, and that is not foreseen.
    assert expected is None or (expected >= max(found) if "swish" in name else expected == max(found))


def test_an_open_batch_is_that_of_the_sample():
    proto = build([node("Relu", "x", "y")], [info("y", ["n", 4])], inputs=[info("x", ["n", 4])])
    model, plan = planned(proto, {"x": normal(3, 4)})
    assert QuantizedWalk(model, plan, ["the sample"], 1).expected_bytes({"x": normal(3, 4)}) == 2 * 3 * 4
    model.graph.outputs[0].shape = None
    assert QuantizedWalk(model, plan, ["the sample"], 1).expected_bytes({"x": normal(3, 4)}) is None


def test_a_constant_may_be_a_node():
    """Models of Paddle are full of them; before preparation nobody has made initializers of them."""
    held = helper.make_node("Constant", [], ["w"], value=helper.make_tensor("", TensorProto.FLOAT, [2], [1.0, 2.0]))
    model = load(build([held, node("Add", "x w", "y")], [info("y", [2])], inputs=[info("x", [2])]))
    add = model.graph[1]
    program = Program(model, [add], add.outputs, {"x": normal(2)}, lambda each, index: constant(each.inputs[index]))
    np.testing.assert_array_equal(program({"x": np.float32([1, 1])}, "the sample")[0], [2, 3])
