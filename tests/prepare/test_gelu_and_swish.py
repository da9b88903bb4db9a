from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

import detent
from detent.compat.translate import _as_quark
from detent.prepare import FoldAffine, prepare
from detent.prepare.replaced_operators import HardSwishToHardSigmoid, HardSwishToRelu6, SetHardSigmoidSlope
from detent.prepare.subgraphs import FuseGelu, FuseHardSwish
from detent.recipe.file import find_recipe
from tests.prepare.equivalence import check, f32, info, make, node, run

CONSTANTS = {
    "root": np.float32(math.sqrt(2)),
    "inverse": np.float32(math.sqrt(0.5)),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "two": np.array([2], np.float32),
    "three": np.float32(3),
    "c": np.float32(0.044715),
    "k": np.float32(math.sqrt(2 / math.pi)),
}
ERF = [node("Div", "x root", "d"), node("Erf", "d", "e"), node("Add", "e one", "g")]
CUBE = [node("Pow", "x three", "p"), node("Mul", "p c", "pc"), node("Add", "x pc", "a"), node("Mul", "a k", "b")]
TANH = [node("Tanh", "b", "e"), node("Add", "one e", "g")]
ENDS = {
    "x first": [node("Mul", "x g", "m"), node("Mul", "m half", "y")],
    "half first": [node("Mul", "half g", "m"), node("Mul", "x m", "y")],
    "half of x": [node("Mul", "x half", "m"), node("Mul", "m g", "y")],
    "divided": [node("Mul", "g x", "m"), node("Div", "m two", "y")],
}
STARTS = {
    "div": ERF,
    "mul": [node("Mul", "inverse x", "d"), *ERF[1:]],
}
TANH_STARTS = {
    "pow": CUBE,
    "products": [node("Mul", "x x", "s"), node("Mul", "s x", "p"), *CUBE[1:]],
    "factored": [
        node("Mul", "x k", "xk"),
        node("Mul", "x c", "xc"),
        node("Mul", "xc x", "xcx"),
        node("Add", "xcx one", "i"),
        node("Mul", "xk i", "b"),
    ],
}


def model(nodes, opset=20, outputs=("y",)):
    return make(nodes, {"x": [3, 50]}, dict.fromkeys(outputs), CONSTANTS, opset)


def wide():
    return {"x": np.linspace(-7, 7, 150, dtype=np.float32).reshape(3, 50)}


@pytest.mark.parametrize("opset", [20, 21])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STARTS)
def test_the_exact_form(start, end, opset):
    done = check(FuseGelu(), model([*STARTS[start], *ENDS[end]], opset), wide(), rtol=1e-6)
    assert done.ops == ["Gelu"]
    assert done.attributes("Gelu") == {"approximate": b"none"}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", TANH_STARTS)
def test_the_approximated_form(start, end):
    done = check(FuseGelu(), model([*TANH_STARTS[start], *TANH, *ENDS[end]]), wide(), rtol=1e-6)
    assert done.ops == ["Gelu"]
    assert done.attributes("Gelu") == {"approximate": b"tanh"}


def test_between_other_nodes():
    nodes = [node("Add", "v one", "x"), *ERF, *ENDS["x first"], node("Add", "y one", "z")]
    done = check(FuseGelu(), make(nodes, {"v": [4, 5]}, {"z": None}, CONSTANTS, 20, value_info=[info("x", [4, 5])]))
    assert done.ops == ["Add", "Gelu", "Add"]


@pytest.mark.parametrize("opset", [17, 19])
def test_an_older_opset_has_no_gelu(opset):
    done = check(FuseGelu(), model([*ERF, *ENDS["x first"]], opset), exact=True)
    assert "Gelu" not in done.ops
    assert f"opset 20 on, and the model has {opset}" in done.why


def test_a_value_inside_that_is_used_elsewhere():
    done = check(FuseGelu(), model([*ERF, *ENDS["x first"]], outputs=("y", "g")), exact=True)
    assert "Gelu" not in done.ops
    assert "'g', a value inside" in done.why


@pytest.mark.parametrize("changed", [{"half": 0.51}, {"root": 1.5}, {"one": 0.9}])
def test_what_is_almost_gelu_is_left_alone(changed):
    constants = CONSTANTS | {name: np.float32(value) for name, value in changed.items()}
    proto = make([*ERF, *ENDS["x first"]], {"x": [3, 5]}, {"y": None}, constants, 20)
    done = check(FuseGelu(), proto, exact=True)
    assert "Gelu" not in done.ops
    assert not done.why


def test_a_gate_on_another_value_is_left_alone():
    nodes = [*ERF, node("Mul", "z g", "m"), node("Mul", "m half", "y")]
    proto = make(nodes, {"x": [3, 5], "z": [3, 5]}, {"y": None}, CONSTANTS, 20)
    assert "Gelu" not in check(FuseGelu(), proto, exact=True).ops


SWISH_CONSTANTS = {
    **{name: np.float32(value) for name, value in {"three": 3, "zero": 0, "six": 6, "one": 1, "half": 0.5}.items()},
    "sixth": np.float32(1 / 6),
}
CLIPPED = [node("Add", "x three", "a"), node("Clip", "a zero six", "c")]
SWISHES = {
    "x first": [*CLIPPED, node("Mul", "x c", "m"), node("Div", "m six", "y")],
    "divided first": [*CLIPPED, node("Div", "c six", "m"), node("Mul", "m x", "y")],
    "times a sixth": [*CLIPPED, node("Mul", "c sixth", "m"), node("Mul", "m x", "y")],
    "clipped at one": [
        *(node("Mul", "x sixth", "s"), node("Add", "s half", "a"), node("Clip", "a zero one", "c")),
        node("Mul", "c x", "y"),
    ],
}


@pytest.mark.parametrize("form", SWISHES)
def test_hard_swish(form):
    done = check(FuseHardSwish(), make(SWISHES[form], {"x": [3, 50]}, {"y": None}, SWISH_CONSTANTS), wide(), rtol=1e-6)
    assert done.ops == ["HardSwish"]


def test_a_clip_that_is_no_hard_swish():
    nodes = [*CLIPPED, node("Mul", "x c", "y")]
    done = check(FuseHardSwish(), make(nodes, {"x": [3, 50]}, {"y": None}, SWISH_CONSTANTS), wide(), exact=True)
    assert "HardSwish" not in done.ops
    open_ended = [node("Add", "x three", "a"), node("Clip", "a zero", "y")]
    check(FuseHardSwish(), make(open_ended, {"x": [3, 50]}, {"y": None}, SWISH_CONSTANTS), wide(), exact=True)


def test_hard_swish_taken_apart():
    proto = make([node("HardSwish", "x", "y", name="act")], {"x": [3, 50]}, {"y": None})
    step = HardSwishToHardSigmoid()
    done = check(step, proto, wide(), rtol=1e-6)
    assert done.ops == ["HardSigmoid", "Mul"]
    assert done.named("Mul").name == "act"
    ((old, new),) = step.moved
    assert old == "act"
    assert set(new.nodes) == {item.name for item in done.proto.graph.node}


def conv_and_swish(*more):
    weights = {
        "w": np.linspace(-2, 2, 4 * 3 * 9).reshape(4, 3, 3, 3).astype(np.float32),
        "b": np.arange(4.0, dtype="f"),
    }
    nodes = [node("Conv", "x w b", "c", name="conv"), node("HardSwish", "c", "y", name="act"), *more]
    return make(nodes, {"x": [1, 3, 8, 8]}, {"y": None, **({"z": None} if more else {})}, weights)


def test_a_hard_swish_that_lets_factors_through():
    step = HardSwishToRelu6()
    images = {"x": 3 * np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    done = check(step, conv_and_swish(), images, rtol=1e-5)
    assert done.ops == ["Conv", "Conv", "Clip", "Mul"]
    assert done.named("Mul").name == "act"
    assert {old for old, _ in step.moved} == {"act"}


def test_a_hard_swish_whose_input_is_read_by_others_stays():
    images = {"x": np.ones((1, 3, 8, 8), np.float32)}
    done = check(HardSwishToRelu6(), conv_and_swish(node("Relu", "c", "z")), images, exact=True)
    assert "HardSwish" in done.ops
    alone = make([node("HardSwish", "x", "y", name="act")], {"x": [3, 50]}, {"y": None})
    assert check(HardSwishToRelu6(), alone, wide(), exact=True).ops == ["HardSwish"]


@pytest.mark.parametrize(
    ("slope", "offset", "ops"),
    [
        (0.2, 0.5, ["Mul", "HardSigmoid"]),
        (1 / 6, 0.4, ["Add", "HardSigmoid"]),
        (0.3, 0.4, ["Mul", "Add", "HardSigmoid"]),
        (1 / 6, 0.5, ["HardSigmoid"]),
        (-0.2, 0.5, ["HardSigmoid"]),
    ],
)
def test_one_slope_for_every_hard_sigmoid(slope, offset, ops):
    proto = make([node("HardSigmoid", "x", "y", alpha=slope, beta=offset)], {"x": [3, 50]}, {"y": None})
    done = check(SetHardSigmoidSlope(), proto, wide(), rtol=1e-5)
    assert done.ops == ops
    assert bool(done.why) == (slope < 0)


def test_the_slope_goes_into_the_layer_before():
    nodes = [node("Conv", "x w", "c", name="conv"), node("HardSigmoid", "c", "y", alpha=0.2, beta=0.5)]
    proto = make(nodes, {"x": [1, 3, 4, 4]}, {"y": None}, {"w": f32(2, 3, 1, 1)}, value_info=[info("c", [1, 2, 4, 4])])
    model = ir.from_proto(proto)
    prepare(model, [SetHardSigmoidSlope(), FoldAffine()])
    assert [item.op_type for item in model.graph] == ["Conv", "HardSigmoid"]
    feeds = {"x": f32(1, 3, 4, 4, seed=1)}
    np.testing.assert_allclose(run(ir.to_proto(model), feeds)["y"], run(proto, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_neither_quarks_way_nor_a_tuned_recipe_replaces_a_hard_swish_unasked(tmp_path):
    step = HardSwishToRelu6.step()
    assert step in _as_quark(find_recipe("XINT8"), {}).without
    images = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
    tuned = detent.tune(conv_and_swish(), tmp_path / "t.onnx", images, "XINT8", max_drop=1e6, hold_out=4)
    assert tuned.recipe.without == (step,), "quantize might take it by itself"
