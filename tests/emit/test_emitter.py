from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import detent
from detent.devices.constraints import SHIFTS
from detent.emit import emit
from detent.graph.save import serialize
from detent.numerics.formats import QuantParams
from detent.plan.layout import Role
from detent.plan.plan import Plan
from detent.recipe.recipe import POWER_OF_TWO_INT8, POWER_OF_TWO_UINT8
from tests.grids import INT8, UINT8_ZERO_128
from tests.models import (
    IMAGE,
    SMALL_MODELS,
    build,
    concat,
    conv_relu_conv,
    info,
    node,
    normal,
    plan_at,
    planned,
    residual,
    run,
    session,
    values_of,
)

FEEDS = {"x": normal(*IMAGE, seed=9)}
FLAG = info("flag", [], TensorProto.BOOL)
X = info("x", IMAGE)
W = {"w": normal(3, 3, 3, 3)}


def emitted(model, plan):
    """The emitted model, checked for everything that holds for all of them, and where each site went."""
    inputs = [value.name for value in model.graph.inputs]
    outputs = [value.name for value in model.graph.outputs]
    dequantized = emit(model, plan)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert [value.name for value in proto.graph.input] == inputs
    assert [value.name for value in proto.graph.output] == outputs
    check_sorted(proto)
    names = [name for one in proto.graph.node for name in one.output if name]
    names += [tensor.name for tensor in proto.graph.initializer]
    assert len(names) == len(set(names))
    assert len({one.name for one in proto.graph.node}) == len(proto.graph.node)
    assert set(dequantized) == {site.value for site in plan.layout.of_role(Role.ACTIVATION)}
    return proto, dequantized


def check_sorted(proto):
    known = {value.name for value in (*proto.graph.input, *proto.graph.initializer)} | {""}
    for one in proto.graph.node:
        assert known.issuperset(one.input), f"'{one.name}' comes before what it reads"
        known.update(one.output)


def constants_of(proto):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def producer_of(proto, name):
    return next(one for one in proto.graph.node if name in one.output)


def weight_codes(proto, name):
    """The codes and the scale behind a weight, which is a DequantizeLinear alone."""
    one = next(one for one in proto.graph.node if one.name == f"{name}_DequantizeLinear")
    held = constants_of(proto)
    codes, scale, zero_point = (held[part] for part in one.input)
    assert codes.dtype == np.int8 and zero_point == 0
    return codes, float(scale)


def simulate(proto, plan, feeds):
    """Every node in float, one by one, and every site moved to its grid."""

    def snap(name, array):
        if name not in plan.layout.sites:
            return array
        return plan.of(name).snap(array).astype(np.float32)

    values = {name: snap(name, array) for name, array in {**feeds, **constants_of(proto)}.items()}
    for one in proto.graph.node:
        results = ReferenceEvaluator(one).run(None, {name: values[name] for name in one.input})
        values.update({name: snap(name, array) for name, array in zip(one.output, results, strict=True)})
    return values


@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
def test_the_emitted_model_is_the_float_model_on_the_grids(maker, constrained):
    proto = maker()
    model, plan = planned(proto, FEEDS)
    if constrained:
        plan = SHIFTS.constrain(model, plan)
        assert SHIFTS.violations(model, plan) == []
    expected = simulate(proto, plan, FEEDS)
    result, dequantized = emitted(model, plan)
    got = values_of(result, list(dequantized.values()), FEEDS)
    for site, name in dequantized.items():
        # Products of 8-bit codes are exact in float32 in any order of summation; only averages may round.
        difference = np.abs(got[name] - expected[site])
        if maker.__name__ in ("conv_relu_conv", "residual", "concat"):
            assert difference.max() == 0, site
        else:
            assert difference.max() <= float(plan.of(site).scale) + 1e-6 and (difference > 1e-6).mean() < 0.02, site
        levels = got[name] / float(plan.of(site).scale)
        assert (levels == np.rint(levels)).all() and levels.min() >= -128 and levels.max() <= 127


@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_the_shape_of_what_is_emitted(maker):
    proto = maker()
    model, plan = planned(proto, FEEDS)
    result, dequantized = emitted(model, plan)
    held = constants_of(result)
    for site in plan.layout.sites.values():
        if site.role is Role.ACTIVATION:
            back = producer_of(result, dequantized[site.value])
            there = producer_of(result, back.input[0])
            assert (there.op_type, back.op_type) == ("QuantizeLinear", "DequantizeLinear")
            assert list(there.input[1:]) == list(back.input[1:])
            assert held[there.input[1]] == np.float32(plan.of(site.value).scale)
            assert held[there.input[1]].shape == ()
            assert held[there.input[2]] == 128 and held[there.input[2]].dtype == np.uint8
        else:
            codes, scale = weight_codes(result, site.value)
            assert scale == float(plan.of(site.value).scale)
            np.testing.assert_array_equal(codes, INT8.encode(constants_of(proto)[site.value], scale))
            assert site.value not in held
    kinds = [one.op_type for one in result.graph.node]
    activations = len(list(plan.layout.of_role(Role.ACTIVATION)))
    assert kinds.count("QuantizeLinear") == activations
    assert kinds.count("DequantizeLinear") == len(plan.layout.sites)
    originals = [
        one.op_type for one in result.graph.node if "QuantizeLinear" not in one.op_type and "Deq" not in one.op_type
    ]
    assert originals == [one.op_type for one in proto.graph.node]


def test_names_are_those_that_other_tools_write():
    model, plan = planned(conv_relu_conv(), FEEDS)
    result, dequantized = emitted(model, plan)
    assert dequantized == {"x": "x_DequantizeLinear_Output", "r1": "r1_DequantizeLinear_Output", "y": "y"}
    last = producer_of(result, "y")
    assert last.op_type == "DequantizeLinear"
    assert producer_of(result, "y_QuantizeLinear_Input").name == "conv_y"
    assert {"w1_quantized", "b2_quantized", "x_scale", "x_zero_point"} <= set(constants_of(result))


def test_codes_follow_a_position_that_moves_after_the_plan_was_made():
    # 1024 positive inputs to one output: the cut is 19, so the weight goes three positions down. Codes that had been
    # made for the old position would be read as weights eight times as large.
    data = np.abs(normal(4, 1024, 1, 1)) / 100
    proto = build([node("Conv", "x w", "y")], "y", {"w": data}, inputs=[info("x", (1, 1024, 1, 1))])
    feeds = {"x": np.full((1, 1024, 1, 1), 1.0, np.float32)}
    original = run(proto, feeds)["y"]
    model, plan = plan_at(proto, {"x": 6, "w": 14, "y": 1})
    stale = INT8.encode(data, float(plan.of("w").scale))
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == []
    assert plan.position("w") == 11
    result, _ = emitted(model, plan)
    codes, scale = weight_codes(result, "w")
    assert scale == 2.0**-11
    np.testing.assert_array_equal(codes, INT8.encode(data, 2.0**-11))
    assert not np.array_equal(codes, stale)
    np.testing.assert_allclose(run(result, feeds)["y"], original, rtol=0.05)


def with_activations(plan, fmt):
    """The same positions, with activations in another format."""
    params = {
        name: QuantParams.at(fmt if plan.layout.sites[name].role is Role.ACTIVATION else each.format, each.position)
        for name, each in plan.params.items()
    }
    return Plan(plan.layout, params)


@pytest.mark.parametrize("maker", SMALL_MODELS.values(), ids=SMALL_MODELS)
def test_int8_and_uint8_files_compute_the_same(maker):
    results = {}
    for fmt in (POWER_OF_TWO_UINT8, POWER_OF_TWO_INT8):
        model, plan = planned(maker(), FEEDS)
        result, _ = emitted(model, with_activations(plan, fmt))
        results[fmt.dtype] = run(result, FEEDS)["y"]
        zero_points = {array.dtype: int(array) for array in constants_of(result).values() if array.shape == ()}
        assert zero_points[np.dtype(fmt.dtype)] == fmt.middle
    np.testing.assert_array_equal(results["int8"], results["uint8"])


def test_the_int8_file_reaches_minus_128_though_the_grid_does_not():
    # QuantizeLinear saturates at the end of its type: one code below what the plan counts with.
    for fmt, lowest in ((POWER_OF_TWO_UINT8, -128), (POWER_OF_TWO_INT8, -128)):
        model, plan = plan_at(build([node("Relu", "x", "r"), node("Neg", "x", "y")], "r y"), default=0)
        result, dequantized = emitted(model, with_activations(plan, fmt))
        got = values_of(result, [dequantized["x"]], {"x": np.full(IMAGE, -1000, np.float32)})
        assert got[dequantized["x"]].min() == lowest
    assert INT8.snap([-1000.0], 1.0)[0] == -127


def test_the_bytes_are_always_the_same():
    def once():
        model, plan = planned(residual(), FEEDS)
        plan = SHIFTS.constrain(model, plan)
        return serialize(emitted(model, plan)[0])

    assert once() == once()


def test_it_runs_with_all_optimizations_too():
    proto = concat()
    model, plan = planned(proto, FEEDS)
    plan = SHIFTS.constrain(model, plan)
    result, _ = emitted(model, plan)
    import onnxruntime

    fast = onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    scale = float(plan.of("y").scale)
    difference = np.abs(fast.run(None, FEEDS)[0] - run(result, FEEDS)["y"]) / scale
    assert difference.max() <= 1


def bodies(name, shape):
    return {
        key: helper.make_graph([node(op, name, f"{key}_o")], key, [], [info(f"{key}_o", shape)])
        for key, op in (("then_branch", "Identity"), ("else_branch", "Neg"))
    }


@pytest.mark.parametrize("flag", [True, False])
def test_an_activation_captured_by_a_body(flag):
    proto = build(
        [
            node("Conv", "x w", "c"),
            node("If", "flag", "picked", **bodies("c", (1, 3, 6, 6))),
            node("Sigmoid", "picked", "y"),
        ],
        "y",
        W,
        inputs=[X, FLAG],
    )
    model, plan = plan_at(proto, {"x": 5, "w": 5, "c": 3, "picked": 9, "y": 7})
    result, dequantized = emitted(model, plan)
    feeds = {**FEEDS, "flag": np.array(flag)}
    got = values_of(result, [dequantized["c"], "picked"], feeds)
    np.testing.assert_array_equal(got["picked"], got[dequantized["c"]] * (1 if flag else -1))
    np.testing.assert_array_equal(got["picked"], np.rint(got["picked"] * 8) / 8)


@pytest.mark.parametrize("if_first", [True, False])
def test_a_weight_captured_by_a_body(if_first):
    branch, conv = node("If", "flag", "picked", **bodies("w", (3, 3, 3, 3))), node("Conv", "x w", "c")
    proto = build([branch, conv] if if_first else [conv, branch], "c picked", W, inputs=[X, FLAG])
    model, plan = plan_at(proto, {"x": 5, "w": 5, "c": 3})
    result, _ = emitted(model, plan)
    got = run(result, {**FEEDS, "flag": np.array(True)})
    np.testing.assert_array_equal(got["picked"], W["w"])  # graphs inside stay float
    codes, scale = weight_codes(result, "w")
    np.testing.assert_array_equal(INT8.snap(W["w"], 2.0**-5), codes * np.float32(scale))


def test_a_bound_of_a_clip_that_is_also_data_stays_a_bound():
    nodes = [node("Add", "x top", "a"), node("Clip", "a _ top", "y")]
    proto = build(nodes, "y", {"top": np.array(0.7, np.float32)}, inputs=[X])
    model, plan = plan_at(proto, {"x": 5, "top": 5, "a": 5, "y": 5})
    result, _ = emitted(model, plan)
    clip = next(one for one in result.graph.node if one.op_type == "Clip")
    assert clip.input[2] == "top"
    run(result, FEEDS)


def test_a_graph_input_that_is_a_graph_output():
    proto = build([node("Conv", "x w", "c")], [onnx.ValueInfoProto(name="c"), X], W)
    model, plan = plan_at(proto, {"x": 2, "w": 5, "c": 1})
    result, _ = emitted(model, plan)
    got = run(result, FEEDS)
    np.testing.assert_array_equal(got["x"], FEEDS["x"])  # it goes out as it came in
    expected = simulate(proto, plan, FEEDS)
    np.testing.assert_array_equal(got["c"], expected["c"])


def test_a_weight_that_is_a_graph_output():
    proto = build([node("Conv", "x w", "c")], [onnx.ValueInfoProto(name="c"), info("w", (3, 3, 3, 3))], W)
    model, plan = plan_at(proto, {"x": 2, "w": 5, "c": 1})
    result, _ = emitted(model, plan)
    got = run(result, FEEDS)
    np.testing.assert_array_equal(got["w"], W["w"])
    np.testing.assert_array_equal(got["c"], simulate(proto, plan, FEEDS)["c"])


def test_a_value_used_twice_by_one_node():
    proto = build([node("Mul", "x x", "y"), node("Concat", "x x", "z", axis=1)], "y z")
    model, plan = plan_at(proto, {"x": 5, "y": 4, "z": 5})
    result, dequantized = emitted(model, plan)
    snapped = UINT8_ZERO_128.snap(FEEDS["x"], 2.0**-5)
    got = run(result, FEEDS)
    np.testing.assert_array_equal(got["y"], UINT8_ZERO_128.snap(snapped * snapped, 2.0**-4))
    product = next(one for one in result.graph.node if one.op_type == "Mul")
    assert list(product.input) == [dequantized["x"]] * 2
    assert sum(one.op_type == "QuantizeLinear" for one in result.graph.node) == 3


def test_a_weight_used_by_two_nodes():
    proto = build([node("Conv", "x w", "a"), node("Conv", "x w", "b")], "a b", W)
    model, plan = plan_at(proto, {"x": 5, "w": 5, "a": 3, "b": 2})
    result, _ = emitted(model, plan)
    readers = [one.input[1] for one in result.graph.node if one.op_type == "Conv"]
    assert readers == ["w_DequantizeLinear_Output"] * 2
    expected = simulate(proto, plan, FEEDS)
    for name, array in run(result, FEEDS).items():
        np.testing.assert_array_equal(array, expected[name])


def test_an_inner_value_that_is_a_graph_output():
    proto = build([node("Conv", "x w", "c"), node("Sigmoid", "c", "y")], "c y", W)
    model, plan = plan_at(proto, {"x": 5, "w": 5, "c": 3, "y": 7})
    result, dequantized = emitted(model, plan)
    assert dequantized["c"] == "c"
    assert next(one for one in result.graph.node if one.op_type == "Sigmoid").input[0] == "c"
    got = run(result, FEEDS)
    np.testing.assert_array_equal(got["c"], simulate(proto, plan, FEEDS)["c"])


def test_names_that_are_taken_already():
    taken = ["x_QuantizeLinear_Output", "x_DequantizeLinear_Output", "x_scale", "w_quantized"]
    proto = build(
        [
            node("Conv", "x w", taken[0], "x_QuantizeLinear"),
            node("Sigmoid", taken[0], taken[1], "x_DequantizeLinear"),
            node("Mul", f"{taken[1]} {taken[2]}", taken[3], "w_DequantizeLinear"),
        ],
        taken[3],
        {**W, "x_scale": np.array([0.5], np.float32)},
    )
    model, plan = plan_at(proto)
    result, _ = emitted(model, plan)
    assert run(result, FEEDS)[taken[3]].shape == (1, 3, 6, 6)


def test_several_inputs_of_which_some_are_not_quantized():
    proto = build(
        [node("Gather", "x at", "g"), node("Add", "g z", "y")],
        "y",
        inputs=[info("x", (4, 3)), info("at", (2,), TensorProto.INT64), info("z", (2, 3))],
    )
    model, plan = plan_at(proto, {"x": 3, "z": 4, "y": 3})
    result, _ = emitted(model, plan)
    feeds = {"x": normal(4, 3), "at": np.array([3, 1]), "z": normal(2, 3, seed=1)}
    total = UINT8_ZERO_128.snap(feeds["x"], 1 / 8)[[3, 1]] + UINT8_ZERO_128.snap(feeds["z"], 1 / 16)
    np.testing.assert_array_equal(run(result, feeds)["y"], UINT8_ZERO_128.snap(total, 1 / 8))


@pytest.mark.parametrize("position", [-120, -30, 30, 100, 126, 127])
def test_scales_at_the_ends_of_float32(position):
    proto = build([node("MaxPool", "x", "y", kernel_shape=[1, 1])], "y")
    model, plan = plan_at(proto, {"x": position})
    result, _ = emitted(model, plan)
    levels = np.arange(-96, 96, dtype=np.float64).reshape(IMAGE)
    x = (levels * 2.0**-position).astype(np.float32)
    np.testing.assert_array_equal(run(result, {"x": x})["y"], x)


def test_a_session_takes_the_emitted_shapes():
    model, plan = planned(conv_relu_conv(), FEEDS)
    live = session(emitted(model, plan)[0])
    assert [value.shape for value in live.get_outputs()] == [[1, 2, 6, 6]]


def test_equal_constants_that_stay_float_are_stored_once(tmp_path):
    """Two layers that are left out read one weight; each had got a copy of it, so that it could have its own scale."""
    nodes = [node("Conv", "x w", "a", name="first"), node("Conv", "x w", "b", name="second")]
    nodes += [node("Concat", "a b", "c", axis=1, name="join"), node("Conv", "c v", "y", name="last")]
    model = build(nodes, "y", {**W, "v": normal(2, 6, 1, 1)}, [X])
    sizes = {}
    for exclude in ((), ("first", "second")):
        detent.quantize(model, tmp_path / "q.onnx", [FEEDS], "XINT8", exclude=exclude, equalize=False)
        constants = constants_of(onnx.load(tmp_path / "q.onnx"))
        sizes[exclude] = [array.dtype for array in constants.values() if array.size == W["w"].size]
    assert sizes == {(): [np.int8, np.int8], ("first", "second"): [np.float32]}
