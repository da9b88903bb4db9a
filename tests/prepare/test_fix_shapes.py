from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from detent.errors import UsageError
from detent.prepare import FixBatch, FixInputs, FixShapes, FoldConstants, prepare
from detent.prepare.constants import RemoveIdentity
from tests.prepare.equivalence import check, f32, info, make, node, run

NODES = [node("Conv", "x w", "a"), node("Relu", "a", "y")]


def model():
    stale = [info("a", ["N", 4, 99, "?"])]
    return make(NODES, {"x": ["N", 3, "H", "W"]}, {"y": ["N", 4, "H2", "W2"]}, {"w": f32(4, 3, 3, 3)}, value_info=stale)


def dims(value):
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_shapes_are_set_and_everything_is_inferred_again():
    done = check(FixShapes({"x": [2, 3, 8, 6]}), model(), {"x": f32(2, 3, 8, 6)}, exact=True)
    assert dims(done.proto.graph.input[0]) == [2, 3, 8, 6]
    assert dims(done.proto.graph.output[0]) == [2, 4, 6, 4]
    assert [dims(value) for value in done.proto.graph.value_info if value.name == "a"] == [[2, 4, 6, 4]]
    assert "[N, 3, H, W] fixed to [2, 3, 8, 6]" in done.step.changes[0].what


def test_the_same_shape_is_no_change():
    proto = make([node("Relu", "x", "y")], {"x": [2, 3]}, {"y": None})
    assert not check(FixShapes({"x": [2, 3]}), proto, exact=True).step.changes


def test_output_that_cannot_be_inferred_keeps_its_shape():
    nodes = [node("Mystery", "x", "y", domain="ours")]
    proto = make(nodes, {"x": ["N", 2]}, {"y": ["M", 7]}, opsets=[helper.make_opsetid("ours", 1)])
    values = ir.from_proto(proto)
    prepare(values, [FixShapes({"x": [3, 2]})])
    assert str(values.graph.outputs[0].shape) == "[M,7]"


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"X": [1, 3, 8, 8]}, ["'X'", "no such input", "'x'"]),
        ({"pixels": [1, 3, 8, 8]}, ["'pixels'", "Its inputs are 'x'"]),
        ({"x": [1, 4, 8, 8]}, ["'x'", "[1, 4, 8, 8]", "[N, 3, H, W]"]),
        ({"x": [3, 8, 8]}, ["'x'", "[3, 8, 8]", "[N, 3, H, W]", "4 dimensions, not 3"]),
        ({"x": [0, 3, 8, 8]}, ["'x'", "at least 1"]),
    ],
)
def test_impossible_shapes(shapes, words):
    values = ir.from_proto(model())
    with pytest.raises(UsageError) as error:
        prepare(values, [FixShapes(shapes)])
    assert all(word in str(error.value) for word in words)
    assert str(values.graph.inputs[0].shape) == "[N,3,H,W]"


def test_sizes_that_are_too_small_for_a_window_are_refused():
    # Frames first, as sound has it: one frame alone is no batch, and a window of three does not fit into it.
    nodes = [node("Unsqueeze", "x axes", "image"), node("Conv", "image w", "y")]
    constants = {"axes": np.array([0, 1]), "w": f32(4, 1, 3, 3)}
    values = ir.from_proto(make(nodes, {"x": [None, 12]}, {"y": None}, constants))
    with pytest.raises(UsageError, match=r"'x' of shape \[1, 12\].*Conv.*--fix-shape"):
        prepare(values, [FixBatch()])


def test_nearest_name_is_offered():
    proto = make([node("Relu", "images", "y")], {"images": ["N"]}, {"y": None})
    with pytest.raises(UsageError, match="Did you mean 'images'"):
        prepare(ir.from_proto(proto), [FixShapes({"image": [1]})])


def test_an_open_batch_becomes_one_and_other_sizes_stay_open():
    done = check(FixBatch(), model(), {"x": f32(1, 3, 8, 6)}, exact=True)
    assert str(ir.from_proto(done.proto).graph.inputs[0].shape) == "[1,3,H,W]"
    assert done.step.changes[0].node == "x"


def test_states_that_name_the_batch_follow_it():
    proto = make([node("Add", "x h", "y")], {"x": ["B", 4], "h": [2, "B", 4]}, {"y": None})
    values = ir.from_proto(proto)
    prepare(values, [FixBatch()])
    assert [str(value.shape) for value in values.graph.inputs] == ["[1,4]", "[2,1,4]"]


@pytest.mark.parametrize("first", ["sequence_length", "num_frames", 5])
def test_what_is_no_open_batch_stays(first):
    values = ir.from_proto(make([node("Relu", "x", "y")], {"x": [first, "N", 4]}, {"y": None}))
    assert not prepare(values, [FixBatch()])


def test_a_dimension_that_is_not_given_stays_open():
    done = check(FixShapes({"x": [None, 3, 8, 6]}), model(), {"x": f32(2, 3, 8, 6)}, exact=True)
    assert dims(done.proto.graph.input[0]) == [0, 3, 8, 6]
    assert "fixed to [N, 3, 8, 6]" in done.step.changes[0].what


def chosen_by(flag: str = "mode") -> onnx.ModelProto:
    """A model whose int64 input chooses what is computed: 1 doubles."""
    doubled = helper.make_graph([node("Add", "x x", "t")], "then", [], [info("t", None)])
    other = helper.make_graph([node("Neg", "x", "t")], "else", [], [info("t", None)])
    nodes = [
        node("Equal", f"{flag} one", "is_one"),
        helper.make_node("If", ["is_one"], ["y"], name="choice", then_branch=doubled, else_branch=other),
    ]
    inputs = [info("x", [1, 3]), info(flag, [], TensorProto.INT64)]
    return make(nodes, inputs, {"y": [1, 3]}, {"one": np.array(1)})


@pytest.mark.parametrize(("mode", "operator"), [(1, "Add"), (2, "Neg")])
def test_a_fixed_input_is_a_constant_and_settles_what_depends_on_it(mode, operator):
    proto = chosen_by()
    model = ir.from_proto(proto)
    prepare(model, [FixInputs({"mode": [mode]}), FoldConstants(), RemoveIdentity()])
    assert [str(value.name) for value in model.graph.inputs] == ["x"]
    assert [each.op_type for each in model.graph] == [operator]
    x = f32(1, 3)
    (got,) = run(ir.to_proto(model), {"x": x}).values()
    (want,) = run(proto, {"x": x, "mode": np.array(mode)}).values()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [({"mod": [1]}, "mode"), ({"mode": [1.5]}, "INT64"), ({"mode": [1, 2]}, "2 numbers"), ({"y": [0]}, "'y'|y:")],
)
def test_an_input_that_cannot_be_fixed_so_is_refused(numbers, named):
    with pytest.raises(UsageError, match=named):
        prepare(ir.from_proto(chosen_by()), [FixInputs(numbers)])


def test_one_number_fills_an_input_and_several_fill_it_in_order():
    nodes = [node("Add", "x b", "y")]
    for numbers, wanted in (([2.0], [2.0, 2.0]), ([3.0, 4.0], [3.0, 4.0])):
        model = ir.from_proto(make(nodes, {"x": [2], "b": [2]}, {"y": None}))
        prepare(model, [FixInputs({"b": numbers})])
        constant = model.graph.initializers["b"].const_value
        assert constant is not None and constant.numpy().tolist() == wanted and constant.dtype == ir.DataType.FLOAT
