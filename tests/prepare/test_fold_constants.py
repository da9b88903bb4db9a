from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.prepare import FoldConstants, prepare
from detent.prepare import constants as fold_constants
from tests.prepare.equivalence import check, f32, flag_input, if_reading, info, make, node

INT = TensorProto.INT64


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("value", numpy_helper.from_array(f32(3), "other_name")),
        ("value_float", 2.0),
        ("value_floats", [1.0, 2.0, 3.0]),
    ],
)
def test_constant_nodes_become_initializers(attribute, value):
    nodes = [helper.make_node("Constant", [], ["k"], **{attribute: value}), node("Mul", "x k", "y")]
    done = check(FoldConstants(), make(nodes, {"x": [3]}, {"y": None}), exact=True)
    assert done.ops == ["Mul"]
    assert list(done.constants) == ["k"]


@pytest.mark.parametrize("value", [3, [1, 3]])
def test_integer_constants(value):
    key = "value_int" if isinstance(value, int) else "value_ints"
    nodes = [helper.make_node("Constant", [], ["k"], **{key: value}), node("Add", "x k", "y")]
    done = check(FoldConstants(), make(nodes, [info("x", [2], INT)], [info("y", [2], INT)]), exact=True)
    assert done.ops == ["Add"]


def test_a_batch_normalization_that_trains_goes_on_training():
    """Though nobody reads the statistics that it computes."""
    constants = {"s": f32(4), "b": f32(4), "m": f32(4), "v": np.ones(4, np.float32)}
    nodes = [node("BatchNormalization", "x s b m v", "n mean variance", training_mode=1), node("Relu", "n", "y")]
    done = check(FoldConstants(), make(nodes, {"x": [2, 4, 3]}, {"y": None}, constants), exact=True)
    assert done.ops == ["BatchNormalization", "Relu"]


@pytest.mark.parametrize("mode", [1, "eval"])
def test_an_operator_of_another_domain_with_a_training_mode_keeps_its_domain(mode):
    nodes = [helper.make_node("Norm", ["x"], ["y"], domain="of.users", training_mode=mode)]
    model = ir.from_proto(make(nodes, {"x": [3]}, {"y": [3]}, opsets=[helper.make_opsetid("of.users", 1)]))
    FoldConstants()(model)
    assert [(each.domain, each.op_type) for each in model.graph] == [("of.users", "Norm")]


def test_a_tree_of_constants_is_one_initializer():
    nodes = [
        node("Transpose", "w", "t"),
        node("Mul", "t k", "u"),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Add", "u f", "v"),
        node("MatMul", "x v", "y"),
    ]
    constants = {"w": f32(50, 40), "k": f32(1), "i": np.arange(50)}
    done = check(FoldConstants(), make(nodes, {"x": [3, 40]}, {"y": None}, constants), exact=True)
    assert done.ops == ["MatMul"]
    assert list(done.constants) == ["v"]
    np.testing.assert_allclose(done.constants["v"], constants["w"].T * constants["k"] + constants["i"], rtol=1e-6)


def test_one_session_for_all(monkeypatch):
    calls = []
    original = fold_constants.run_constants
    monkeypatch.setattr(fold_constants, "run_constants", lambda *args: calls.append(args) or original(*args))
    nodes = [
        item
        for i in range(6)
        for item in (node("Neg", f"w{i}", f"n{i}"), node("Add", f"{'x' if not i else f'a{i - 1}'} n{i}", f"a{i}"))
    ]
    done = check(
        FoldConstants(), make(nodes, {"x": [3]}, {"a5": None}, {f"w{i}": f32(3, seed=i) for i in range(6)}), exact=True
    )
    assert done.ops == ["Add"] * 6
    assert len(calls) == 1


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_shape_of_a_static_value(opset):
    part = {"start": 1, "end": -1}
    nodes = [node("Shape", "x", "s", **part), node("Size", "x", "n"), node("Add", "s n", "t"), node("Add", "t k", "y")]
    proto = make(nodes, [info("x", [2, 3, 4]), info("k", [1], INT)], [info("y", ["R"], INT)], {}, opset)
    done = check(FoldConstants(), proto, exact=True)
    assert done.ops == ["Add"]
    assert done.constants["t"].tolist() == ([27] if part else [26, 27, 28])


def test_shape_of_a_free_dimension_stays():
    proto = make(
        [node("Shape", "x", "s"), node("Add", "s k", "y")],
        {"x": ["N", 3]},
        [info("y", [2], INT)],
        {"k": np.array([1, 1])},
    )
    assert check(FoldConstants(), proto, exact=True).ops == ["Shape", "Add"]


def test_shapes_found_in_one_round_serve_the_next():
    nodes = [
        node("Shape", "x", "s0"),
        node("Mul", "s0 one", "s1"),
        node("Expand", "x s1", "a"),
        node("Shape", "a", "s2"),
        node("Max", "s2 s2", "s3"),
        node("Expand", "a s3", "y"),
    ]
    proto = make(nodes, {"x": [2, 3]}, {"y": [None, None]}, {"one": np.array([1, 1])})
    assert check(FoldConstants(), proto, exact=True).ops == ["Expand", "Expand"]


def test_cast_to_the_same_type():
    nodes = [
        node("Cast", "x", "a", to=TensorProto.FLOAT),
        node("Relu", "a", "b"),
        node("Cast", "b", "y", to=TensorProto.DOUBLE),
    ]
    proto = make(nodes, {"x": [3]}, [info("y", [3], TensorProto.DOUBLE)])
    assert check(FoldConstants(), proto, exact=True).ops == ["Relu", "Cast"]
    done = check(
        FoldConstants(), make([node("Cast", "x", "y", to=TensorProto.FLOAT)], {"x": [3]}, {"y": None}), exact=True
    )
    assert done.ops == ["Cast"]
    assert "both names are fixed" in done.why


def test_quantized_weights_stay_quantized():
    constants = {"q": np.array([1, -2, 3], np.int8), "s": np.array(0.5, np.float32), "z": np.array(0, np.int8)}
    nodes = [node("DequantizeLinear", "q s z", "w"), node("Neg", "w", "n"), node("Add", "x n", "y")]
    assert check(FoldConstants(), make(nodes, {"x": [3]}, {"y": None}, constants), exact=True).ops == [
        "DequantizeLinear",
        "Neg",
        "Add",
    ]


def test_random_numbers_are_drawn_every_time():
    nodes = [node("RandomNormalLike", "w", "r"), node("Add", "x r", "y")]
    model = ir.from_proto(make(nodes, {"x": [3]}, {"y": None}, {"w": f32(3)}))
    prepare(model, [FoldConstants()])
    assert [item.op_type for item in model.graph] == ["RandomNormalLike", "Add"]


@pytest.mark.parametrize("shape_known", [False, True])
def test_results_that_outgrow_their_inputs_stay_computed(monkeypatch, shape_known):
    monkeypatch.setattr(fold_constants, "SIZE_LIMIT", 1000)
    nodes = [
        node("Neg", "n", "m"),
        node("Neg", "m", "k"),
        node("ConstantOfShape", "k", "big"),
        node("Add", "x big", "y"),
    ]
    known = [info("big", [20, 20])] if shape_known else []
    done = check(
        FoldConstants(),
        make(nodes, {"x": [1]}, {"y": [None, None]}, {"n": np.array([20, 20])}, value_info=known),
        exact=True,
    )
    assert "ConstantOfShape" in done.ops
    assert "MiB" in done.why
    nodes = [node("Transpose", "w", "t"), node("MatMul", "x t", "y")]
    done = check(FoldConstants(), make(nodes, {"x": [2, 20]}, {"y": None}, {"w": f32(20, 20)}), exact=True)
    assert done.ops == ["MatMul"], "as large as its input is fine"


def test_a_result_known_to_be_huge_is_not_even_computed():
    nodes = [node("ConstantOfShape", "n", "big"), node("Shape", "big", "s"), node("Add", "x s", "y")]
    inputs, outputs = [info("x", [3], INT)], [info("y", [3], INT)]
    known = [info("big", [1 << 14, 1 << 14, 1 << 10])]
    proto = make(nodes, inputs, outputs, {"n": np.array([1 << 14, 1 << 14, 1 << 10])}, value_info=known)
    model, step = ir.from_proto(proto), FoldConstants()
    prepare(model, [step])
    assert [item.op_type for item in model.graph] == ["Add"], "its shape is known, so nothing needs its content"
    assert "would take 1048576 MiB" in step.declined[0].what


def test_constant_graph_outputs_keep_their_node():
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(f32(3))),
        node("Neg", "w", "y"),
        node("Relu", "x", "z"),
    ]
    done = check(FoldConstants(), make(nodes, {"x": [3]}, {"k": [3], "y": None, "z": None}, {"w": f32(3)}), exact=True)
    assert done.ops == ["Constant", "Neg", "Relu"]
    assert done.why.count("graph output") == 2


def test_only_one_of_several_outputs_is_read():
    nodes = [node("Split", "w s", "a b", axis=0), node("Add", "x b", "y")]
    done = check(
        FoldConstants(), make(nodes, {"x": [2]}, {"y": None}, {"w": f32(4), "s": np.array([2, 2])}), exact=True
    )
    assert done.ops == ["Add"]
    assert list(done.constants) == ["b"]


def test_dead_ends_are_removed_and_captured_constants_survive():
    nodes = [node("Neg", "w", "n"), node("Exp", "x", "dead"), if_reading("n")]
    proto = make(nodes, [info("x", [3]), flag_input()], {"picked": None}, {"w": f32(1, 1, 1, 3), "unused": f32(3)})
    done = check(FoldConstants(), proto, exact=True)
    assert done.ops == ["If"]
    assert list(done.constants) == ["n"]


def branch(nodes, output, constants=None):
    """The graph of a branch, which may read what is outside."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    return helper.make_graph(nodes, "branch", [], [info(output, None)], tensors)


def test_an_if_without_one_of_its_branches_is_left_to_the_checker():
    passed = branch([node("Identity", "x", "inner")], "inner")
    proto = make([node("If", "c", "y", then_branch=passed)], {"x": [2]}, {"y": [2]}, {"c": np.array(True)})
    model = ir.from_proto(proto)
    FoldConstants()(model)
    assert [each.op_type for each in model.graph] == ["If"]


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_takes_the_place_of_an_if_whose_condition_is_constant(condition):
    """Both branches of both Ifs use the same names, each has an initializer, and one hands an outer value through."""
    doubled = branch([node("Mul", "x k", "inner", name="same")], "inner", {"k": f32(1, seed=3)})
    passed = branch([node("Identity", "x", "inner", name="same")], "inner")
    again = branch([node("Add", "first k", "inner", name="same")], "inner", {"k": f32(1, seed=4)})
    other = branch([node("Sub", "first unused", "inner", name="same")], "inner")
    nodes = [
        node("If", "c", "first", name="one", then_branch=doubled, else_branch=passed),
        node("If", "c", "y", name="two", then_branch=again, else_branch=other),
    ]
    done = check(
        FoldConstants(), make(nodes, {"x": [3]}, {"y": [3]}, {"c": np.array(condition), "unused": f32(1)}), exact=True
    )
    assert ("unused" in done.constants) is not condition
    wanted = ["Mul", "Identity", "Add", "Identity"] if condition else ["Identity", "Identity", "Sub", "Identity"]
    assert done.ops == wanted
    assert [name for name, new in done.step.moved if new.nodes] == ["one", "two"]


def test_a_condition_that_is_computed_from_a_static_shape_is_constant_and_so_is_one_inside_a_branch():
    inside = node(
        "If",
        "c",
        "z",
        then_branch=branch([node("Neg", "x", "t")], "t"),
        else_branch=branch([node("Exp", "x", "t")], "t"),
    )
    taken = branch([node("Size", "x", "n"), node("Equal", "n three", "c"), inside], "z")
    other = branch([node("Abs", "x", "z")], "z")
    nodes = [
        node("Shape", "x", "s"),
        node("Equal", "s three", "e"),
        node("If", "e", "y", then_branch=taken, else_branch=other),
    ]
    done = check(FoldConstants(), make(nodes, {"x": [3]}, {"y": [3]}, {"three": np.array([3])}), exact=True)
    assert [each for each in done.ops if each != "Identity"] == ["Neg"]


def test_what_the_runtime_refuses_is_noted():
    nodes = [node("Gather", "w i", "g"), node("Add", "x g", "y")]
    model = ir.from_proto(make(nodes, {"x": [1]}, {"y": ["N"]}, {"w": f32(3), "i": np.array([7])}))
    step = FoldConstants()
    prepare(model, [step])
    assert "could not be evaluated" in step.declined[0].what
    assert len(model.graph) == 2


def test_shapes_that_are_computed_one_from_the_other_through_many_layers():
    # Shape inference does not follow Mod: each Reshape's shape is known only when the Mod before it was evaluated.
    count = 12
    nodes = [
        each
        for i in range(count)
        for each in (
            node("Shape", f"r{i}", f"s{i}"),
            node("Mod", f"s{i} large", f"m{i}"),
            node("Reshape", f"r{i} m{i}", f"r{i + 1}"),
        )
    ]
    done = check(
        FoldConstants(),
        make(nodes, {"r0": [2, 3]}, {f"r{count}": [2, 3]}, {"large": np.array(100, np.int64)}),
        exact=True,
    )
    assert done.ops == ["Reshape"] * count


def loop_body(nodes, inputs, outputs, constants=None):
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    kinds = {"i": TensorProto.INT64, "j": TensorProto.INT64, "on": TensorProto.BOOL, "on_out": TensorProto.BOOL}
    infos = [
        [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None if name not in kinds else [])
         for name in names.split()]
        for names in (inputs, outputs)
    ]  # fmt: skip
    return helper.make_graph(nodes, "body", *infos, tensors)


STEP = [
    node("Cast", "i", "number", to=TensorProto.FLOAT),
    node("MatMul", "state w", "product", name="same"),
    node("Add", "product number", "next", name="add"),
    node("Mul", "next k", "shown"),
]


@pytest.mark.parametrize("condition", ["on", "identity", "constant", "absent"])
def test_a_loop_of_a_known_number_of_steps_is_written_out(condition):
    """It carries a state, counts its steps, captures an outer weight, and gives out what each step shows."""
    nodes = [*STEP]
    if condition == "identity":
        nodes.append(node("Identity", "on", "on_out"))
    elif condition == "constant":
        nodes.append(node("Constant", "", "on_out", value=numpy_helper.from_array(np.array(True))))
    last = "on_out" if condition in ("identity", "constant") else "on"
    body = loop_body(nodes, "i on state", f"{last} next shown", {"k": f32(1, seed=5)})
    first = "_" if condition == "absent" else "go"
    constants = {"count": np.array(3), "w": f32(4, 4, seed=1)} | ({} if first == "_" else {"go": np.array(True)})
    proto = make(
        [node("Loop", f"count {first} x", "y rows", name="loop", body=body)], {"x": [2, 4]}, {"y": None, "rows": None},
        constants,
    )  # fmt: skip
    done = check(FoldConstants(), proto, rtol=1e-6)
    assert "Loop" not in done.ops
    assert done.ops.count("MatMul") == 3
    assert done.ops.count("Concat") == 1
    assert "Loop of 3 steps" in " ".join(change.what for change in done.step.changes)
    assert [name for name, new in done.step.moved if new.nodes][-1] == "loop"


def test_a_loop_in_a_loop_with_an_if_on_the_step_is_written_out():
    branches = {
        "then_branch": branch([node("Neg", "inner", "t")], "t"),
        "else_branch": branch([node("Exp", "inner", "t")], "t"),
    }
    inside = loop_body([node("Add", "a state", "b")], "j on a", "on b")
    nodes = [
        node("Loop", "two _ state", "inner", body=inside),
        node("Equal", "i one", "e"),
        node("If", "e", "next", **branches),
    ]
    body = loop_body(nodes, "i on state", "on next")
    constants = {"two": np.array(2), "one": np.array(1)}
    done = check(
        FoldConstants(), make([node("Loop", "two _ x", "y", body=body)], {"x": [3]}, {"y": None}, constants), rtol=1e-6
    )
    assert [each for each in done.ops if each != "Identity"] == ["Add", "Add", "Exp", "Add", "Add", "Neg"]


def test_a_loop_that_would_multiply_large_weights_stays():
    body = loop_body([node("MatMul", "state w", "next")], "i on state", "on next")
    constants = {"count": np.array(5), "w": np.zeros((1024, 1024), np.float32)}
    model = ir.from_proto(make([node("Loop", "count _ x", "y", body=body)], {"x": [1, 1024]}, {"y": None}, constants))
    step = FoldConstants()
    step(model)
    assert [each.op_type for each in model.graph] == ["Loop"]
    assert "20 MiB of weights" in step.declined[0].what


@pytest.mark.parametrize(
    ("count", "nodes", "last", "reason"),
    [
        (600, [node("Neg", "state", "next")], "on", "its 600 steps are 600 nodes"),
        (0, [node("Neg", "state", "next")], "on", "0 steps"),
        (3, [node("Neg", "state", "next"), node("Less", "i one", "on_out")], "on_out", "only when the model does"),
        (None, [node("Neg", "state", "next")], "on", "only when the model does"),
    ],
)
def test_other_loops_stay(count, nodes, last, reason):
    body = loop_body(nodes, "i on state", f"{last} next")
    inputs = [info("x", [3])]
    if count is None:
        inputs.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    constants = {"one": np.array(1)} | ({} if count is None else {"count": np.array(count)})
    model = ir.from_proto(make([node("Loop", "count _ x", "y", body=body)], inputs, {"y": None}, constants))
    step = FoldConstants()
    step(model)
    assert [each.op_type for each in model.graph] == ["Loop"]
    assert reason in " ".join(each.what for each in step.declined)
