from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import helper

from detent.errors import ModelError
from detent.prepare import InlineFunctions, prepare
from tests.prepare.equivalence import check, make, node

OURS = helper.make_opsetid("ours", 1)


def function(name, nodes, opset=17, attributes=()):
    return helper.make_function(
        "ours", name, ["p"], ["q"], nodes, [helper.make_opsetid("", opset), OURS], attributes=list(attributes)
    )


def call(op, x, y, **attributes):
    return node(op, x, y, domain="ours", **attributes)


def test_nested_functions_and_several_calls():
    double = function("Double", [node("Add", "p p", "q")])
    quad = function("Quad", [call("Double", "p", "t"), call("Double", "t", "q")])
    proto = make(
        [call("Quad", "x", "a", name="one"), call("Double", "a", "t"), node("Relu", "t", "y")],
        {"x": [3]},
        {"y": [3]},
        functions=[double, quad],
        opsets=[OURS],
    )
    done = check(InlineFunctions(), proto, exact=True)
    assert done.ops == ["Add", "Add", "Add", "Relu"]
    assert not done.proto.functions
    assert {note.node for note in done.step.changes} == {"ours::Double", "ours::Quad"}


def test_attributes_are_put_in():
    body = node("LeakyRelu", "p", "q")
    reference = body.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
    proto = make(
        [call("Leaky", "x", "y", slope=0.25)],
        {"x": [3]},
        {"y": [3]},
        functions=[function("Leaky", [body], attributes=["slope"])],
        opsets=[OURS],
    )
    done = check(InlineFunctions(), proto, exact=True)
    assert done.attributes("LeakyRelu") == {"alpha": 0.25}


def test_nothing_to_do():
    proto = make([node("Relu", "x", "y")], {"x": [3]}, {"y": None})
    done = check(InlineFunctions(), proto, exact=True)
    assert not done.step.changes
    assert done.proto.graph.node[0].name == "", "names are left alone"


def test_declines_a_function_of_another_opset():
    proto = make(
        [call("Old", "x", "y")],
        {"x": [3]},
        {"y": [3]},
        functions=[function("Old", [node("Relu", "p", "q")], opset=13)],
        opsets=[OURS],
    )
    model, step = ir.from_proto(proto), InlineFunctions()
    prepare(model, [step])
    assert [item.op_type for item in model.graph] == ["Old"]
    assert "version 13" in step.declined[0].what


def test_a_circle_is_an_error():
    loop = function("Loop", [call("Loop", "p", "q")])
    proto = make([node("Relu", "x", "y")], {"x": [3]}, {"y": None})
    proto.functions.append(loop)
    with pytest.raises(ModelError, match="cannot be inlined"):
        prepare(ir.from_proto(proto), [InlineFunctions()])
