from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from detent.errors import UsageError
from detent.plan.select import Selection
from tests.models import as_ir, build, info, node, normal


@pytest.fixture(scope="module")
def graph():
    """Two branches that meet: stem -> (left/a -> left/b | right/a) -> join -> head."""
    constants = {name: normal(3, 3, 1, 1, seed=index) for index, name in enumerate(("w1", "w2", "w3", "w4", "w5"))}
    proto = build(
        [
            node("Conv", "x w1", "s", "stem"),
            node("Conv", "s w2", "la", "left/a"),
            node("Relu", "la", "lb", "left/b"),
            node("Conv", "s w3", "ra", "right/a"),
            node("Add", "lb ra", "j", "join"),
            node("Conv", "j w4", "y", "head"),
            node("Conv", "x w5", "z", "side"),
        ],
        "y z",
        constants,
    )
    return as_ir(proto).graph


NAMES = {"stem", "left/a", "left/b", "right/a", "join", "head", "side"}


def kept(graph, **options):
    return NAMES - set(Selection(**options).reasons_to_leave(graph))


def test_nothing_asked_keeps_everything(graph):
    assert Selection().reasons_to_leave(graph) == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ("stem",)}, {"stem"}),
        ({"include": ("left/*", "head")}, {"left/a", "left/b", "head"}),
        ({"include": ("*",)}, NAMES),
        ({"include": ("?ide",)}, {"side"}),
        ({"exclude": ("stem",)}, NAMES - {"stem"}),
        ({"exclude": ("*/a",)}, NAMES - {"left/a", "right/a"}),
        ({"include": ("left/*",), "exclude": ("*/b",)}, {"left/a"}),
        ({"op_types": ("Conv",)}, NAMES - {"left/b", "join"}),
        ({"op_types": ("Add", "Relu")}, {"left/b", "join"}),
        ({"op_types": ("Conv",), "exclude": ("head",)}, {"stem", "left/a", "right/a", "side"}),
        ({"start": ("left/a",)}, {"left/a", "left/b", "join", "head"}),
        ({"end": ("left/b",)}, {"stem", "left/a", "left/b"}),
        ({"start": ("left/a",), "end": ("join",)}, {"left/a", "left/b", "join"}),
        ({"start": ("stem",), "end": ("head",)}, NAMES - {"side"}),
        ({"start": ("join",), "end": ("join",)}, {"join"}),
        ({"start": ("left/a", "right/a"), "end": ("join",)}, {"left/a", "left/b", "right/a", "join"}),
        ({"start": ("*/a",), "end": ("join",)}, {"left/a", "left/b", "right/a", "join"}),
        ({"start": ("stem",), "exclude": ("join",)}, {"stem", "left/a", "left/b", "right/a", "head"}),
    ],
)
def test_what_is_kept(graph, options, expected):
    assert kept(graph, **options) == expected


@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        ({"include": ("stem",)}, "head", "not matched by --include"),
        ({"exclude": ("le*", "head")}, "left/a", "excluded by 'le*'"),
        ({"exclude": ("le*", "head")}, "head", "excluded by 'head'"),
        ({"op_types": ("Conv",)}, "join", "operator type not in --op-types"),
        ({"start": ("join",)}, "stem", "outside the range of --from and --to"),
        ({"op_types": ("Conv",), "exclude": ("join",)}, "join", "excluded by 'join'"),
    ],
)
def test_reasons(graph, options, name, reason):
    assert Selection(**options).reasons_to_leave(graph)[name] == reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": ("steam",)}, "--include 'steam' matches no node. Did you mean 'stem'?"),
        ({"exclude": ("left/c",)}, "--exclude 'left/c' matches no node. Did you mean 'left/b' or 'left/a'"),
        ({"exclude": ("stem", "nope*")}, "--exclude 'nope*' matches no node."),
        ({"start": ("heads",)}, "--from 'heads' matches no node. Did you mean 'head'?"),
        ({"end": ("Join",)}, "--to 'Join' matches no node. Did you mean 'join'?"),
        ({"op_types": ("conv",)}, "--op-types conv: the model has no such operator. Did you mean 'Conv'?"),
        ({"op_types": ("Conv", "Gemm")}, "--op-types Gemm: the model has no such operator."),
        ({"start": ("head",), "end": ("stem",)}, "No node lies between --from head and --to stem."),
        ({"start": ("side",), "end": ("head",)}, "No node lies between --from side and --to head."),
        ({"include": ("",)}, "--include '' matches no node."),
    ],
)
def test_errors_name_the_option_and_the_nearest_names(graph, options, message):
    with pytest.raises(UsageError) as caught:
        Selection(**options).reasons_to_leave(graph)
    assert str(caught.value).startswith(message)


def test_brackets_are_letters():
    nodes = [node("Relu", "x", "a", "layers[0]/relu"), node("Relu", "a", "y", "layers[1]/relu")]
    brackets = as_ir(build(nodes, "y")).graph
    assert set(Selection(exclude=("layers[0]/relu",)).reasons_to_leave(brackets)) == {"layers[0]/relu"}
    assert set(Selection(exclude=("layers[0]/*",)).reasons_to_leave(brackets)) == {"layers[0]/relu"}
    assert set(Selection(exclude=("layers[?]/*",)).reasons_to_leave(brackets)) == {"layers[0]/relu", "layers[1]/relu"}
    with pytest.raises(UsageError):
        Selection(exclude=("layers[01]*",)).reasons_to_leave(brackets)


def test_nodes_inside_bodies_are_not_offered():
    body = helper.make_graph([node("Relu", "x", "t", "inner")], "b", [], [info("t", [1, 3, 8, 8])])
    other = helper.make_graph([node("Neg", "x", "e", "other")], "b", [], [info("e", [1, 3, 8, 8])])
    proto = build(
        [node("If", "flag", "y", "branch", then_branch=body, else_branch=other)],
        "y",
        inputs=[info("x", [1, 3, 8, 8]), info("flag", [], TensorProto.BOOL)],
    )
    with pytest.raises(UsageError):
        Selection(exclude=("inner",)).reasons_to_leave(as_ir(proto).graph)
