"""An If whose condition is computed: both branches, and a Where of their results."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import detent
from detent.errors import UsageError
from detent.prepare import BothBranches
from tests.models import normal
from tests.prepare.equivalence import check, f32, info, make, node


def branch(nodes, outputs, constants=None, shape=None):
    """The graph of a branch, which may read what is outside."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    return helper.make_graph(nodes, "branch", [], [info(name, shape) for name in outputs.split()], tensors)


CONDITION = (node("ReduceMean", "x", "mean", keepdims=0), node("Greater", "mean zero", "c"))
ZERO = {"zero": np.float32(0)}
FEEDS = [{"x": np.abs(f32(2, 3))}, {"x": -np.abs(f32(2, 3))}]


@pytest.mark.parametrize("feeds", FEEDS)
def test_both_branches_are_computed_and_one_result_of_each_pair_is_taken(feeds):
    """Both use the same names, and each has an initializer of its own."""
    one = branch([node("Mul", "x k", "a", name="same"), node("Neg", "x", "b")], "a b", {"k": f32(3, seed=3)})
    two = branch([node("Add", "x k", "a", name="same"), node("Exp", "x", "b")], "a b", {"k": f32(3, seed=4)})
    nodes = [*CONDITION, node("If", "c", "y z", name="choice", then_branch=one, else_branch=two)]
    done = check(BothBranches(), make(nodes, {"x": [2, 3]}, {"y": [2, 3], "z": [2, 3]}, ZERO), feeds, exact=True)
    assert [each for each in done.ops[2:] if each != "Identity"] == ["Mul", "Neg", "Add", "Exp", "Where", "Where"]
    assert "choice" in [name for name, _ in done.step.moved]


@pytest.mark.parametrize("feeds", FEEDS)
def test_an_if_inside_a_branch_and_a_result_from_outside(feeds):
    inner = node(
        "If",
        "c",
        "t",
        then_branch=branch([node("Abs", "x", "u")], "u"),
        else_branch=branch([node("Exp", "x", "u")], "u"),
    )
    passed = branch([node("Identity", "x", "t")], "t")
    nodes = [*CONDITION, node("If", "c", "y", then_branch=branch([inner], "t"), else_branch=passed)]
    done = check(BothBranches(), make(nodes, {"x": [2, 3]}, {"y": [2, 3]}, ZERO), feeds, exact=True)
    assert "If" not in done.ops


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        (("Neg", "x"), ("ReduceMax", "x"), "has shape"),
        (("NonZero", "x"), ("NonZero", "x"), "has a shape that is known only"),
    ],
)
def test_results_of_different_shapes_keep_the_if(one, two, why):
    bodies = {key: branch([node(*each, "t")], "t") for key, each in (("then_branch", one), ("else_branch", two))}
    nodes = [*CONDITION, node("If", "c", "y", **bodies)]
    proto = make(nodes, [info("x", [2, 3])], [helper.make_value_info("y", onnx.TypeProto())], ZERO)
    model = ir.from_proto(proto)
    with pytest.raises(UsageError, match=f"'t' {why}"):
        BothBranches()(model)
    assert [each.op_type for each in model.graph][2:] == ["If"]


def test_a_condition_of_more_axes_than_a_result_keeps_the_if():
    """Where would give them to the result."""
    bodies = {
        key: branch([node("ReduceMax", "x", "t", keepdims=0, axes=[1])], "t") for key in ("then_branch", "else_branch")
    }
    nodes = [node("ReduceMean", "x", "mean"), node("Greater", "mean zero", "c"), node("If", "c", "y", **bodies)]
    with pytest.raises(UsageError, match="'t' has fewer axes than the condition"):
        BothBranches()(ir.from_proto(make(nodes, {"x": [2, 3]}, {"y": [2]}, ZERO)))


def test_one_of_two_stays():
    negated, largest, passed = (
        branch([node(op, "x", "t", keepdims=keep) if keep is not None else node(op, "x", "t")], "t")
        for op, keep in (("Neg", None), ("ReduceMax", 0), ("Abs", None))
    )
    nodes = [
        *CONDITION,
        node("If", "c", "y", name="one", then_branch=negated, else_branch=passed),
        node("If", "c", "z", name="two", then_branch=negated, else_branch=largest),
    ]
    proto = make(nodes, [info("x", [2, 3])], [info("y", [2, 3]), helper.make_value_info("z", onnx.TypeProto())], ZERO)
    model, step = ir.from_proto(proto), BothBranches()
    step(model)
    assert [each.name for each in model.graph if each.op_type == "If"] == ["two"]
    assert [each.node for each in step.declined] == ["two"]


def test_its_layers_are_quantized_on_request(tmp_path):
    convs = {
        key: branch([node("Conv", f"x {key}_w", "t", name=f"{key}/conv", pads=[1, 1, 1, 1])], "t")
        for key in ("then_branch", "else_branch")
    }
    nodes = [*CONDITION, node("If", "c", "i", **convs), node("Relu", "i", "y")]
    weights = {f"{key}_w": f32(4, 3, 3, 3, seed=seed) for seed, key in enumerate(convs)}
    proto = make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, {**weights, **ZERO})
    samples = [each[None] for each in normal(16, 3, 8, 8)]
    plain = detent.find_recipe("A8W8")
    left = detent.quantize(proto, None, samples, plain)
    assert any("also=both_branches" in warning for warning in left.warnings)
    report = detent.quantize(proto, None, samples, plain.replace(also=("both_branches",)))
    assert {"then_branch/conv", "else_branch/conv"} <= {each.node for each in report.nodes if each.quantized}
    assert report.fidelity.outputs["y"].sqnr_db > 25
