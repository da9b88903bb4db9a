from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import detent
from detent.devices.catalog import find_device
from detent.devices.constraints import CONCATS, MAX_ROUNDS, SHIFTS
from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Role
from detent.plan.plan import Move, make_plan
from detent.recipe.file import find_recipe
from detent.recipe.recipe import PRESETS
from tests.models import (
    XINT8,
    build,
    concat,
    conv_relu_conv,
    count_sample,
    hard_swish,
    info,
    laid_out,
    leaky,
    node,
    normal,
    plan_at,
    planned,
)

W = {"w": normal(3, 3, 1, 1), "b": normal(3)}


def settle(proto, positions, default=4):
    """The positions that changed, after all rules; every rule must hold then, and a second run change nothing."""
    model, plan = plan_at(proto, positions, default)
    before = dict(plan.positions)
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == []
    assert SHIFTS.violations(model, plan) == []
    assert broken(model, plan) == []
    moves = len(plan.moves)
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == [] and len(plan.moves) == moves
    return {name: position for name, position in plan.positions.items() if position != before[name]}


# An independent reading of the rules: inequalities only, nothing moves.


def before(value, plan):
    """The site that a node reads, through a fused Pad."""
    while value.name not in plan.layout.sites:
        value = value.producer().inputs[0]
    return plan.position(value.name)


def behind(value, plan):
    """The site that a node writes, through fused nodes."""
    while value.name not in plan.layout.sites:
        value = value.consumers()[0].outputs[0]
    return plan.position(value.name)


def broken(model, plan):
    found = []
    for one in model.graph:
        if not plan.layout.quantizes(one):
            continue
        operands = {"Concat": len(one.inputs), "Add": 2, "Sub": 2, "Mul": 2, "Conv": 2, "Gemm": 2}.get(one.op_type, 1)
        data = [before(value, plan) for value in one.inputs[:operands]]
        out = behind(one.outputs[0], plan)
        if not holds(one, data, out, plan):
            found.append(f"{one.name}: {data} -> {out}")
    return found


def holds(one, data, out, plan):
    op = one.op_type
    if op in ("Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Pad", "Slice"):
        return set(data) == {out}
    if op in ("Add", "Sub"):
        return max(data) - min(data) <= 7 and (op == "Sub" or -7 <= min(data) - out <= 25)
    if op == "Mul":
        return 0 <= sum(data) - out <= (15 if swish(one) else 32)
    if op == "HardSigmoid":
        return 0 <= data[0] <= 15 and out >= 7 and 0 <= 14 + data[0] - out <= 31
    return op not in ("Conv", "Gemm") or product_holds(one, sum(data), out, plan)


def swish(one):
    return any(reader.op_type == "HardSigmoid" for value in one.inputs for reader in value.consumers())


def product_holds(one, products, out, plan):
    cut = products - out
    if not 0 <= cut <= 16:
        return False
    if len(one.inputs) < 3:
        return True
    shift = products - plan.position(one.inputs[2].name)
    leaky_behind = any(reader.op_type == "LeakyRelu" for reader in one.outputs[0].consumers())
    return (0 if leaky_behind else min(0, -(24 - (8 + cut)))) <= shift <= 15


CONV = build([node("Conv", "x w b", "y")], "y", W)
ADD = build([node("Add", "x z", "y")], "y", inputs=[info("x", (1, 4)), info("z", (1, 4))])
SUB = build([node("Sub", "x z", "y")], "y", inputs=[info("x", (1, 4)), info("z", (1, 4))])
MUL = build([node("Mul", "x z", "y")], "y", inputs=[info("x", (1, 4)), info("z", (1, 4))])
CONCAT = build([node("Concat", "x z", "y", axis=1)], "y", inputs=[info("x", (1, 4)), info("z", (1, 4))])
HARD_SIGMOID = build([node("HardSigmoid", "x", "y", alpha=1 / 6)], "y")
SWISH = hard_swish()  # x, w, b -> c -> h, and y = c * h


@pytest.mark.parametrize(
    ("x", "w", "y", "moved"),
    [
        (4, 6, 10, {}),  # cut 0
        (4, 5, 10, {"w": 6}),  # cut -1
        (4, -20, 10, {"w": 6}),
        (4, 22, 10, {}),  # cut 16
        (4, 23, 10, {"w": 22}),  # cut 17
        (12, 13, 6, {"w": 10}),  # cut 19: the case where the reference tool leaves stale codes behind
    ],
)
def test_shift_cut(x, w, y, moved):
    assert settle(CONV, {"x": x, "w": w, "y": y, "b": x + moved.get("w", w)}) == moved


@pytest.mark.parametrize(
    ("cut", "bias_shift", "moved_to"),
    [
        (8, 15, None),
        (8, 16, 15),
        (8, 30, 15),
        (8, -8, None),  # the bias may be 16 - cut finer than the products
        (8, -9, -8),
        (0, -16, None),
        (0, -17, -16),
        (16, 0, None),
        (16, -1, 0),
        (16, 15, None),
    ],
)
def test_shift_bias(cut, bias_shift, moved_to):
    # Products at position 10, so bias_shift = 10 - bias.
    moved = {} if moved_to is None else {"b": 10 - moved_to}
    assert settle(CONV, {"x": 4, "w": 6, "y": 10 - cut, "b": 10 - bias_shift}) == moved


@pytest.mark.parametrize(("bias_shift", "moved_to"), [(0, None), (-1, 0), (-8, 0), (15, None), (16, 15)])
def test_shift_bias_before_a_leaky_relu(bias_shift, moved_to):
    moved = {} if moved_to is None else {"b": 10 - moved_to}
    assert settle(leaky(), {"x": 4, "w": 6, "y": 2, "b": 10 - bias_shift}) == moved


@pytest.mark.parametrize(
    ("finest", "moved"),
    [
        (9, {"b": 0}),
        (0, {"b": 0}),
        (-1, {"b": -1, "w": 8}),  # the weight gives way by one, so that the bias may stay one short
        (-4, {"b": -4, "w": 5}),
        (-7, {"w": 2}),  # it does not go one step finer than it is
        (-9, {"w": 2}),  # it clips as it is, by choice: nothing is made of that
    ],
)
def test_a_bias_is_not_moved_into_saturation(finest, moved):
    # Products at 15 want the bias at 0 or finer, and it is at -7.
    model, plan = plan_at(CONV, {"x": 6, "w": 9, "y": -1, "b": -7})
    plan = replace(plan, finest={"b": finest})
    first = dict(plan.positions)
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == []
    assert broken(model, plan) == SHIFTS.violations(model, plan) == []
    assert {name: position for name, position in plan.positions.items() if position != first[name]} == moved
    assert all(move.rule == "shift bias" for move in plan.moves)


def test_a_bias_may_become_coarser_whatever_its_finest_position():
    model, plan = plan_at(CONV, {"x": 4, "w": 6, "y": 2, "b": 30})
    plan = replace(plan, finest={"b": 2})
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == []
    assert plan.positions["b"] == 18  # products 10, cut 8: at most 8 finer than the products


def test_gemm_follows_the_rules_of_conv():
    gemm = build([node("Gemm", "x w b", "y")], "y", {"w": normal(4, 2), "b": normal(2)}, inputs=[info("x", (1, 4))])
    assert settle(gemm, {"x": 4, "w": 23, "y": 10, "b": 0}) == {"w": 22, "b": 11}


def test_conv_without_bias():
    assert settle(build([node("Conv", "x w", "y")], "y", {"w": W["w"]}), {"x": 4, "w": 23, "y": 10}) == {"w": 22}


def test_conv_reads_the_position_behind_the_fused_relu():
    proto = build([node("Conv", "x w b", "c"), node("Relu", "c", "y")], "y", W)
    assert settle(proto, {"x": 4, "w": 23, "y": 10, "b": 20}) == {"w": 22}


@pytest.mark.parametrize("proto", [ADD, SUB], ids=["Add", "Sub"])
@pytest.mark.parametrize(
    ("x", "z", "moved"),
    [
        (4, 4, {}),
        (4, 11, {}),
        (4, 12, {"z": 11}),
        (11, 4, {}),
        (12, 4, {"x": 11}),
        (-10, 30, {"z": -3}),
    ],
)
def test_shift_read(proto, x, z, moved):
    assert settle(proto, {"x": x, "z": z, "y": min(x, z)}) == moved


@pytest.mark.parametrize(
    ("y", "moved"), [(11, {}), (12, {"y": 11}), (40, {"y": 11}), (-21, {}), (-22, {"y": -21}), (-60, {"y": -21})]
)
def test_shift_write_of_add(y, moved):
    assert settle(ADD, {"x": 4, "z": 6, "y": y}) == moved


def test_sub_has_no_shift_write():
    assert settle(SUB, {"x": 4, "z": 6, "y": 60}) == {}


@pytest.mark.parametrize(
    ("y", "moved"), [(10, {}), (11, {"y": 10}), (50, {"y": 10}), (-22, {}), (-23, {"y": -22}), (-60, {"y": -22})]
)
def test_shift_write_of_mul(y, moved):
    assert settle(MUL, {"x": 4, "z": 6, "y": y}) == moved


@pytest.mark.parametrize(
    ("y", "moved"), [(11, {}), (12, {"y": 11}), (-4, {}), (-5, {"y": -4}), (-21, {"y": -4}), (-30, {"y": -4})]
)
def test_shift_swish(y, moved):
    assert settle(SWISH, {"x": 4, "w": 4, "b": 4, "c": 4, "h": 7, "y": y}) == moved


@pytest.mark.parametrize(
    ("x", "y", "moved"),
    [
        (0, 7, {}),
        (-1, 7, {"x": 0}),
        (15, 7, {}),
        (16, 7, {"x": 15}),
        (4, 6, {"y": 7}),
        (4, -9, {"y": 7}),
        (4, 18, {}),
        (4, 19, {"y": 18}),
        (0, 14, {}),
        (0, 15, {"y": 14}),
        (-5, 20, {"x": 0, "y": 14}),
        (40, 60, {"x": 15, "y": 29}),
    ],
)
def test_hard_sigmoid(x, y, moved):
    assert settle(HARD_SIGMOID, {"x": x, "y": y}) == moved


@pytest.mark.parametrize(
    ("x", "z", "y", "moved"),
    [
        (4, 4, 4, {}),
        (4, 5, 6, {"z": 4, "y": 4}),
        (6, 5, 4, {"x": 4, "z": 4}),
        (5, 4, 5, {"x": 4, "y": 4}),
    ],
)
def test_concat_aligns_to_the_least(x, z, y, moved):
    assert settle(CONCAT, {"x": x, "z": z, "y": y}) == moved


PADS = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}
CORNER = {"starts": np.array([0], np.int64), "ends": np.array([2], np.int64)}
ALIGNED = {
    "AveragePool": build([node("AveragePool", "x", "y", kernel_shape=[2, 2])], "y"),
    "GlobalAveragePool": build([node("GlobalAveragePool", "x", "y")], "y"),
    "Pad": build([node("Pad", "x pads", "y")], "y", PADS),
    "Slice": build([node("Slice", "x starts ends", "y")], "y", CORNER),
    "Pad and AveragePool": build(
        [node("Pad", "x pads", "p"), node("AveragePool", "p", "y", kernel_shape=[2, 2])], "y", PADS
    ),
    "AveragePool and Relu": build([node("AveragePool", "x", "a", kernel_shape=[2, 2]), node("Relu", "a", "y")], "y"),
    "MaxPool and Relu": build([node("MaxPool", "x", "a", kernel_shape=[2, 2]), node("Relu", "a", "y")], "y"),
}


@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.parametrize(("x", "y", "moved"), [(4, 4, {}), (5, 4, {"x": 4}), (4, 5, {"y": 4})])
def test_what_moves_data_aligns_to_the_lesser(name, x, y, moved):
    assert settle(ALIGNED[name], {"x": x, "y": y}) == moved


def test_constants_move_too():
    concat = build([node("Concat", "x k", "y", axis=1)], "y", {"k": normal(1, 2, 8, 8)})
    assert settle(concat, {"x": 4, "k": 9, "y": 5}) == {"k": 4, "y": 4}
    assert settle(concat, {"x": 4, "k": 1, "y": 5}) == {"x": 1, "y": 1}
    add = build([node("Add", "x k", "y")], "y", {"k": normal(3, 1, 1)})
    assert settle(add, {"x": 0, "k": 12, "y": 3}) == {"k": 7}


def test_all_that_share_move_together():
    proto = build(
        [node("Flatten", "x", "f"), node("Concat", "f z", "y", axis=1)],
        "y",
        inputs=[info("x", (1, 4)), info("z", (1, 4))],
    )
    model, plan = plan_at(proto, {"x": 9, "z": 2, "y": 5})
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == []
    assert [plan.position(name) for name in ("x", "f", "z", "y")] == [2, 2, 2, 2]
    assert plan.moves == (Move("x", 9, 2, "align", "concat_y"), Move("y", 5, 2, "align", "concat_y"))


def test_an_alignment_reaches_back_through_the_layers():
    # The concatenation lowers y1, which opens the cut of the first Conv beyond 16; so its weight has to follow.
    proto = build(
        [node("Conv", "x w b", "c1"), node("Conv", "x v", "c2"), node("Concat", "c1 c2", "y", axis=1)],
        "y",
        {**W, "v": normal(3, 3, 1, 1, seed=1)},
    )
    moved = settle(proto, {"x": 6, "w": 12, "b": 10, "c1": 8, "v": 2, "c2": -4, "y": 5})
    assert moved == {"c1": -4, "y": -4, "w": 6}


def test_nodes_left_float_have_no_rules():
    proto = build([node("Conv", "x w b", "c"), node("Relu", "x", "y")], "c y", W)
    model, plan = plan_at(proto, {"x": 40, "w": 40, "c": 0, "b": 0})
    left = replace(plan.layout.decisions["conv_c"], quantized=False, reason="for a test")
    plan = replace(plan, layout=replace(plan.layout, decisions={**plan.layout.decisions, "conv_c": left}))
    plan = SHIFTS.constrain(model, plan)
    assert SHIFTS.violations(model, plan) == []
    assert plan.moves == ()


def test_rules_that_contradict_each_other_are_reported():
    # The result of a HardSigmoid is at 7 or more, and the Concat wants it at 2, with the other input.
    proto = build(
        [node("HardSigmoid", "x", "h", alpha=1 / 6), node("Concat", "h z", "y", axis=1)],
        "y",
        inputs=[info("x", (1, 4)), info("z", (1, 4))],
    )
    model, plan = plan_at(proto, {"x": 3, "h": 7, "z": 2, "y": 7})
    plan = SHIFTS.constrain(model, plan)
    left = [str(each) for each in SHIFTS.violations(model, plan)]
    assert left == [str(each) for each in SHIFTS.violations(model, plan)]
    assert left == ["Concat 'concat_y' breaks the device's rule 'align': position 7 of 'h' should be 2."]
    assert broken(model, plan) == ["concat_y: [7, 2] -> 2"]
    assert len(plan.moves) <= 4 * MAX_ROUNDS


def test_positions_that_run_away_are_put_back():
    # x and its square are aligned, and the square is at twice the position of x at most: below zero that has no end.
    proto = build([node("Mul", "x x", "s"), node("Concat", "x s", "y", axis=1)], "y")
    model, plan = plan_at(proto, {"x": -1, "s": -1, "y": -1})
    plan = SHIFTS.constrain(model, plan)
    left = [str(each) for each in SHIFTS.violations(model, plan)]
    assert left == ["Mul 'mul_s' breaks the device's rule 'shift write': position -1 of 's' should be -2."]
    assert plan.positions == {"x": -1, "s": -1, "y": -1}
    assert plan.moves == ()
    assert settle(proto, {"x": 0, "s": 3, "y": 2}) == {"s": 0, "y": 0}


def test_violations_leave_the_plan_alone():
    model, plan = plan_at(CONV, {"x": 4, "w": 30, "y": 10, "b": 60})
    before = dict(plan.positions)
    assert [str(each) for each in SHIFTS.violations(model, plan)] == [
        "Conv 'conv_y' breaks the device's rule 'shift cut': position 30 of 'w' should be 22.",
        "Conv 'conv_y' breaks the device's rule 'shift bias': position 60 of 'b' should be 34.",
    ]
    assert plan.positions == before
    assert plan.moves == ()


SHAPE = (1, 2, 4, 4)
UNARY = {
    "Conv": lambda source, name, index: (
        node("Conv", f"{source} w{index} b{index}", name),
        {f"w{index}": normal(2, 2, 1, 1, seed=index), f"b{index}": normal(2, seed=index)},
    ),
    "Relu": lambda source, name, index: (node("Relu", source, name), {}),
    "LeakyRelu": lambda source, name, index: (node("LeakyRelu", source, name), {}),
    "HardSigmoid": lambda source, name, index: (node("HardSigmoid", source, name, alpha=1 / 6), {}),
    "MaxPool": lambda source, name, index: (node("MaxPool", source, name, kernel_shape=[1, 1]), {}),
    "AveragePool": lambda source, name, index: (node("AveragePool", source, name, kernel_shape=[1, 1]), {}),
    "Pad": lambda source, name, index: (
        node("Pad", f"{source} p{index}", name),
        {f"p{index}": np.zeros(8, np.int64)},
    ),
    "Slice": lambda source, name, index: (
        node("Slice", f"{source} s{index} e{index}", name),
        {f"s{index}": np.array([0], np.int64), f"e{index}": np.array([9], np.int64)},
    ),
    "Transpose": lambda source, name, index: (node("Transpose", source, name, perm=[0, 1, 3, 2]), {}),
    "Shifted": lambda source, name, index: (
        node("Add", f"{source} k{index}", name),
        {f"k{index}": normal(2, 1, 1, seed=index)},
    ),
}
BINARY = ("Add", "Sub", "Mul", "Concat")


@st.composite
def graphs(draw):
    """A random graph on values of one shape (a Concat is cut back to it), and random positions."""
    values, nodes, constants = ["x"], [], {}
    for index in range(draw(st.integers(1, 9))):
        name = f"v{index}"
        op = draw(st.sampled_from([*UNARY, *BINARY]))
        source = draw(st.sampled_from(values))
        if op in UNARY:
            one, more = UNARY[op](source, name, index)
            nodes.append(one)
            constants |= more
        else:
            other = draw(st.sampled_from(values))
            if op == "Concat":
                nodes.append(node("Concat", f"{source} {other}", f"c{index}", axis=1))
                constants |= {f"s{index}": np.array([0], np.int64), f"e{index}": np.array([2], np.int64)}
                constants[f"a{index}"] = np.array([1], np.int64)
                nodes.append(node("Slice", f"c{index} s{index} e{index} a{index}", name))
            else:
                nodes.append(node(op, f"{source} {other}", name))
        values.append(name)
    used = {name for one in nodes for name in one.input}
    ends = [name for name in values if name not in used]
    proto = build(nodes, " ".join(ends), constants, inputs=[info("x", SHAPE)])
    return proto, draw(st.integers(0, 2**32 - 1))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=graphs())
def test_random_graphs_settle_or_say_so(drawn):
    proto, seed = drawn
    model, plan = plan_at(proto)
    rng = np.random.default_rng(seed)
    for name, params in plan.params.items():
        plan = replace(plan, params={**plan.params, name: QuantParams.at(params.format, int(rng.integers(-8, 20)))})
    first = dict(plan.positions)
    plan = SHIFTS.constrain(model, plan)
    left = [str(each) for each in SHIFTS.violations(model, plan)]
    assert left == [str(each) for each in SHIFTS.violations(model, plan)]
    assert bool(left) == bool(broken(model, plan)), (left, broken(model, plan))
    assert set(plan.positions) == set(first)
    assert all(-127 <= position <= 127 for position in plan.positions.values())
    for name in plan.layout.sites:
        assert plan.position(name) == plan.positions[plan.layout.leader(name)]
    # The moves tell the whole story: replayed on the first positions they give the last.
    for move in plan.moves:
        assert first[move.value] == move.before != move.after
        first[move.value] = move.after
    assert first == plan.positions


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
    plan = CONCATS.constrain(model, plan)
    assert CONCATS.violations(model, plan) == []
    moves = plan.moves
    plan = CONCATS.constrain(model, plan)
    assert CONCATS.violations(model, plan) == [] and plan.moves == moves  # once is enough
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
    assert plan.moves == ()


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
    assert plan.moves == ()  # the scale of z is 1: all the room in the world
    plan = CONCATS.constrain(model, plan)
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
    plan = find_device("npu-float-scale").constraints.constrain(model, plan)
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
        (A8W8.replace(target="npu"), "There is no device 'npu'"),
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
