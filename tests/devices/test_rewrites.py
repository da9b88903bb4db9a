"""A Clip whose bound the codes set already, as a Relu: the same codes for every input."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.devices.rewrites import (
    HARD_SIGMOID_FACTOR,
    RoundLeakySlope,
    SaturatingClip,
    ScaleHardSigmoid,
    ScalePools,
    ScaleReduceMean,
    SigmoidToHardSigmoid,
    Substitution,
    reciprocal_factor,
    window_factor,
)
from detent.graph.load import load
from detent.plan.select import Selection
from detent.prepare import prepare
from tests.models import IMAGE, build, find, info, laid_out, node, normal, plan_at, pools, run


def square(side, channels=2):
    return (info("x", (1, channels, side, side)),)


def rewritten(proto, make, selection=None):
    """The model after one pass, valid and with the same inputs and outputs; and the pass."""
    model, layout = laid_out(proto, selection)
    step = make(layout if issubclass(make, Substitution) else layout.quantizes)
    prepare(model, [step])
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [value.name for value in after.graph.input] == [value.name for value in proto.graph.input]
    assert [value.name for value in after.graph.output] == [value.name for value in proto.graph.output]
    return after, step


def attributes(one):
    return {entry.name: helper.get_attribute_value(entry) for entry in one.attribute}


def named(proto, name):
    return next(one for one in proto.graph.node if one.name == name)


@pytest.mark.parametrize(
    ("side", "factor"),
    [
        (1, 1.0),
        (2, 1.0),
        (3, 0.984375),  # 9 * 7 / 64
        (4, 1.0),
        (5, 0.9765625),  # 25 * 10 / 256
        (6, 0.984375),  # 36 * 7 / 256
        (7, 1.0048828125),  # 49 * 21 / 1024
        (8, 1.0),
        (10, 1.0009765625),  # 100 * 41 / 4096
        (12, 1.001953125),  # 144 * 57 / 8192
        (14, 1.0048828125),  # 196 * 21 / 4096
        (16, 1.0),
        (255, 65025 * 65 / 2**22),  # 2^22 / 65025 = 64.503
        (256, 1.0),
        (1000, 1.0),
    ],
)
def test_window_factors(side, factor):
    assert window_factor(side) == factor


def test_reciprocals_are_the_best_that_the_shifter_has():
    for count in (*range(1, 300), 1000, 1024, 7 * 7 * 64, 65025):
        bits = 0
        while 2**bits < count:
            bits += 1
        candidates = [count * k / 2**m for m in range(7 + bits) for k in (2**m // count, 2**m // count + 1)]
        best = min(abs(candidate - 1) for candidate in candidates)
        assert abs(reciprocal_factor(count) - 1) == pytest.approx(best, abs=1e-12), count
        assert best <= 1 / 128
        if count & (count - 1) == 0:
            assert reciprocal_factor(count) == 1.0


def test_the_hard_sigmoid_factor():
    assert HARD_SIGMOID_FACTOR == 1.0001220703125


@pytest.mark.parametrize(
    ("alpha", "rounded"),
    [(0.1, 26 / 256), (0.01, 3 / 256), (0.2, 51 / 256), (0.3, 77 / 256), (0.001, 0.0), (-0.1, -26 / 256), (1.5, 1.5)],
)
def test_leaky_slopes(alpha, rounded):
    proto = build([node("LeakyRelu", "x", "y", alpha=alpha)], "y")
    after, step = rewritten(proto, RoundLeakySlope)
    assert attributes(after.graph.node[0])["alpha"] == rounded
    assert bool(step.changes) is (alpha != rounded)
    x = normal(1, 3, 8, 8)
    np.testing.assert_array_equal(run(after, {"x": x})["y"], np.where(x < 0, x * np.float32(rounded), x))


def test_the_default_slope_is_written_out():
    after, step = rewritten(build([node("LeakyRelu", "x", "y", "leaky")], "y"), RoundLeakySlope)
    assert attributes(after.graph.node[0])["alpha"] == 3 / 256
    assert [(change.node, change.what) for change in step.changes] == [
        ("leaky", "slope 0.01 rounded to 0.0117188 (3/256)")
    ]


@pytest.mark.parametrize("outputs", ["s", "y", "s y"])
def test_sigmoid_becomes_hard_sigmoid(outputs):
    proto = build([node("Sigmoid", "x", "s", "gate"), node("Mul", "x s", "y")], outputs)
    after, step = rewritten(proto, SigmoidToHardSigmoid)
    hard = named(after, "gate")
    assert (hard.op_type, list(hard.input), list(hard.output)) == ("HardSigmoid", ["x"], ["s"])
    assert attributes(hard) == {"alpha": pytest.approx(1 / 6), "beta": 0.5}
    assert [one.op_type for one in after.graph.node] == ["HardSigmoid", "Mul"]
    x = normal(1, 3, 8, 8) * 3
    gate = np.clip(x / 6 + 0.5, 0, 1)
    for name, array in run(after, {"x": x}).items():
        np.testing.assert_allclose(array, {"s": gate, "y": x * gate}[name], rtol=1e-6, atol=1e-6)
    assert [change.node for change in step.changes] == ["gate"]


def check_factor(proto, make, name, factor, value="y"):
    """One product is inserted behind the node, takes over the name of its result, and multiplies by the factor."""
    after, step = rewritten(proto, make)
    product = named(after, f"{name}/device_factor")
    before = named(after, name)
    assert product.op_type == "Mul"
    assert product.input[0] == before.output[0] != value
    assert list(product.output) == [value]
    assert len(after.graph.node) == len(proto.graph.node) + 1
    feeds = {one.name: normal(*[dim.dim_value for dim in one.type.tensor_type.shape.dim]) for one in proto.graph.input}
    original, scaled = run(proto, feeds)["y"], run(after, feeds)["y"]
    np.testing.assert_allclose(scaled, original * factor, rtol=1e-6)
    assert [change.node for change in step.changes] == [name]
    return after


@pytest.mark.parametrize(("side", "factor"), [(3, 0.984375), (5, 0.9765625), (7, 1.0048828125), (10, 1.0009765625)])
def test_average_pools(side, factor):
    proto = build([node("AveragePool", "x", "y", "pool", kernel_shape=[side, side])], "y", inputs=square(11))
    check_factor(proto, ScalePools, "pool", factor)


@pytest.mark.parametrize(("side", "factor"), [(6, 0.984375), (7, 1.0048828125), (12, 1.001953125), (14, 1.0048828125)])
def test_global_pools(side, factor):
    proto = build([node("GlobalAveragePool", "x", "y", "pool")], "y", inputs=square(side))
    check_factor(proto, ScalePools, "pool", factor)


@pytest.mark.parametrize("side", [1, 2, 4, 8])
def test_powers_of_two_are_exact(side):
    proto = build([node("GlobalAveragePool", "x", "y", "pool")], "y", inputs=square(side))
    after, step = rewritten(proto, ScalePools)
    assert [one.op_type for one in after.graph.node] == ["GlobalAveragePool"]
    assert (step.changes, step.declined) == ([], [])


@pytest.mark.parametrize(
    "proto",
    [
        build([node("AveragePool", "x", "y", "pool", kernel_shape=[3, 5])], "y"),
        build([node("GlobalAveragePool", "x", "y", "pool")], "y", inputs=[info("x", (1, 2, 3, 5))]),
        build([node("GlobalAveragePool", "x", "y", "pool")], "y", inputs=[info("x", (1, 2, "h", 7))]),
        build([node("AveragePool", "x", "y", "pool", kernel_shape=[3])], "y", inputs=[info("x", (1, 2, 9))]),
    ],
    ids=["3x5", "global 3x5", "unknown height", "1-D"],
)
def test_other_windows_are_declined(proto):
    after, step = rewritten(proto, ScalePools)
    assert [one.op_type for one in after.graph.node] == [proto.graph.node[0].op_type]
    assert [change.node for change in step.declined] == ["pool"]


def test_hard_sigmoid_is_scaled():
    proto = build([node("HardSigmoid", "x", "y", "gate", alpha=1 / 6)], "y")
    check_factor(proto, ScaleHardSigmoid, "gate", 1.0001220703125)


@pytest.mark.parametrize(
    ("axes", "opset", "factor"),
    [
        ([1], 17, reciprocal_factor(6)),
        ([-1], 17, reciprocal_factor(5)),
        ([1, 2], 17, reciprocal_factor(42)),
        ([1, 2, -1], 18, reciprocal_factor(210)),
        ([2], 18, reciprocal_factor(7)),
    ],
)
def test_reduce_mean(axes, opset, factor):
    inputs = [info("x", (2, 6, 7, 5))]
    if opset == 17:
        proto = build([node("ReduceMean", "x", "y", "mean", axes=axes)], "y", inputs=inputs)
    else:
        proto = build(
            [node("ReduceMean", "x axes", "y", "mean")], "y", {"axes": np.array(axes, np.int64)}, inputs, opset=18
        )
    assert factor != 1.0
    check_factor(proto, ScaleReduceMean, "mean", factor)


def test_a_mean_of_unknown_size_is_declined():
    proto = build([node("ReduceMean", "x", "y", "mean", axes=[1])], "y", inputs=[info("x", (1, "n", 4))])
    after, step = rewritten(proto, ScaleReduceMean)
    assert len(after.graph.node) == 1
    assert [change.node for change in step.declined] == ["mean"]
    given = build(
        [node("ReduceMean", "x axes", "y", "mean")],
        [info("y", ("a", "b", "c"))],
        inputs=[info("x", (1, 3, 4)), info("axes", (1,), TensorProto.INT64)],
        opset=18,
    )
    assert [change.node for change in rewritten(given, ScaleReduceMean)[1].declined] == ["mean"]


def test_a_result_inside_the_graph_is_scaled_for_every_reader():
    proto = build(
        [
            node("AveragePool", "x", "a", "pool", kernel_shape=[3, 3]),
            node("Relu", "a", "r"),
            node("Add", "a r", "y"),
        ],
        "y",
    )
    after = check_factor(proto, ScalePools, "pool", 0.984375, value="a")
    assert [list(one.input) for one in after.graph.node if one.op_type in ("Relu", "Add")] == [["a"], ["a", "r"]]


def test_a_result_that_a_body_reads_is_scaled():
    bodies = {
        key: helper.make_graph([node(op, "a", f"{key}_o")], key, [], [info(f"{key}_o", (1, 3, 6, 6))])
        for key, op in (("then_branch", "Identity"), ("else_branch", "Neg"))
    }
    proto = build(
        [node("AveragePool", "x", "a", "pool", kernel_shape=[3, 3]), node("If", "flag", "y", **bodies)],
        "y",
        inputs=[info("x", (1, 3, 8, 8)), info("flag", [], TensorProto.BOOL)],
    )
    after, _ = rewritten(proto, ScalePools)
    feeds = {"x": normal(1, 3, 8, 8), "flag": np.array(True)}
    np.testing.assert_allclose(run(after, feeds)["y"], run(proto, feeds)["y"] * 0.984375, rtol=1e-6)


def test_two_pools_in_a_row():
    after, step = rewritten(pools(), ScalePools)
    # The 3x3 average and the global one over 6x6 are both 63/64 of what they were.
    x = normal(1, 3, 8, 8)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(pools(), {"x": x})["y"] * 0.984375**2, rtol=1e-5)
    assert len(step.changes) == 2


@pytest.mark.parametrize(
    ("make", "op", "given"),
    [
        (RoundLeakySlope, "LeakyRelu", {"alpha": 0.1}),
        (SigmoidToHardSigmoid, "Sigmoid", {}),
        (ScaleHardSigmoid, "HardSigmoid", {"alpha": 1 / 6}),
        (ScalePools, "AveragePool", {"kernel_shape": [3, 3]}),
        (ScaleReduceMean, "ReduceMean", {"axes": [1]}),
    ],
)
def test_only_quantized_nodes_are_touched(make, op, given):
    proto = build([node(op, "x", "v", "first", **given), node(op, "x", "y", "second", **given)], "v y")
    after, step = rewritten(proto, make, Selection(exclude=("first",)))
    assert [change.node for change in step.changes] == ["second"]
    assert named(after, "first") == named(proto, "first")
    feeds = {"x": normal(1, 3, 8, 8)}
    np.testing.assert_array_equal(run(after, feeds)["v"], run(proto, feeds)["v"])
    assert not np.array_equal(run(after, feeds)["y"], run(proto, feeds)["y"])


SAMPLES = np.stack([normal(*IMAGE[1:], seed=seed) for seed in range(8)])


def clip(low: float, high: float):
    return build(
        [node("Conv", "x w", "c"), node("Clip", "c low high", "y")],
        "y",
        {"w": normal(4, 3, 1, 1), "low": np.float32(low), "high": np.float32(high)},
    )


@pytest.mark.parametrize(
    ("low", "high", "position", "becomes"),
    [
        (0.0, 127 / 16, 4, "Relu"),
        (0.0, 127 / 16, 5, "Relu"),
        (0.0, 127 / 16, 3, "Clip"),
        (0.0, 7.0, 4, "Clip"),
        (0.0, 8.0, 4, "Relu"),
        (-1.0, 127 / 16, 4, "Clip"),
        (0.0, 6.0, 5, "Clip"),  # the device has this one
    ],
)
def test_which_clips_become_relus(low, high, position, becomes):
    model, plan = plan_at(clip(low, high), {"y": position})
    step = SaturatingClip(plan)
    step(model)
    assert find(model, "clip_y").op_type == becomes
    assert len(step.changes) == (becomes == "Relu")
    if becomes == "Relu":
        x = 40 * normal(*IMAGE)
        before, after = run(clip(low, high), {"x": x})["y"], run(model, {"x": x})["y"]
        assert (before != after).any()
        params = plan.integers("y")
        np.testing.assert_array_equal(params.encode(before), params.encode(after))


@pytest.mark.parametrize("recipe", ["A8W8", "A16W8", "U8S8_AAWS"])
def test_statistics_of_another_recipe_leave_no_clip_that_the_device_has_not(tmp_path, recipe):
    """The bounds were moved for powers of two. With float scales the largest code stands for just about the bound."""
    files = {"calibration": CALIBRATION, "preprocess": PREPROCESS}
    detent.quantize(MODEL, tmp_path / "first.onnx", **files, save_stats=tmp_path / "it.stats")
    output = tmp_path / "out.onnx"
    detent.quantize(MODEL, output, **files, recipe=recipe, stats=tmp_path / "it.stats")
    clips = [node for node in load(output).graph if node.op_type == "Clip"]
    assert {float(node.inputs[2].const_value.numpy()) for node in clips} <= {6.0}


def test_a_network_of_relu6_that_cuts(tmp_path):
    """Quantized with equalization, no Clip has a bound that the device has not, and the answers are those of float."""
    nodes, constants, before = [], {"zero": np.float32(0), "six": np.float32(6)}, "x"
    for number in range(3):
        constants[f"w{number}"] = 2 * normal(4, 3 if number == 0 else 4, 1, 1, seed=number)
        nodes += [node("Conv", f"{before} w{number}", f"c{number}"), node("Clip", f"c{number} zero six", f"k{number}")]
        before = f"k{number}"
    constants["last"] = normal(2, 4, 1, 1, seed=5)
    proto = build([*nodes, node("Conv", f"{before} last", "y")], "y", constants)
    output = tmp_path / "out.onnx"
    report = detent.quantize(proto, output, SAMPLES, "XINT8")
    written = load(output)
    kinds = {node.op_type for node in written.graph}
    assert "Relu" in kinds
    bounds = {float(node.inputs[2].const_value.numpy()) for node in written.graph if node.op_type == "Clip"}
    assert bounds <= {6.0}
    assert report.fidelity is not None and report.fidelity.outputs["y"].sqnr_db > 20
