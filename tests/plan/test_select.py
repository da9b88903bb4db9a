from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from detent.errors import UsageError
from detent.graph.load import load
from detent.plan.select import Selection, nodes_of
from detent.prepare import default_passes, prepare, successors
from detent.recipe import Override
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


# --- names of the file, after preparation


def prepared(proto, **options):
    """The reasons to leave nodes float, by the names in the prepared graph, and these names."""
    model = load(proto)
    names = [str(node.name) for node in model.graph]
    passes = default_passes()
    prepare(model, passes)
    became = successors(names, model.graph, passes)
    return Selection(**options).reasons_to_leave(model.graph, became), {str(node.name) for node in model.graph}


BATCHNORM = {"scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32)}
BATCHNORM |= {"mean": np.ones(4, np.float32), "var": np.full(4, 2, np.float32)}


def names_that_change():
    """conv -> bn -> split in two -> (mul by 2 -> conv after | identity) -> add; a constant that is computed."""
    return build(
        [
            node("Conv", "x w1", "c", "conv"),
            node("BatchNormalization", "c scale shift mean var", "n", "bn"),
            node("Split", "n", "left right", "split", axis=1),
            node("Conv", "left w2", "d", "after"),
            node("Mul", "d two", "m", "mul"),
            node("Identity", "right", "i", "same"),
            node("Mul", "k two", "k2", "computed"),
            node("Mul", "i k2", "j", "mul_live"),
            node("Add", "m j", "s", "add"),
            node("GlobalAveragePool", "s", "y", "pool"),
        ],
        "y",
        {
            **BATCHNORM,
            "w1": normal(4, 3, 1, 1),
            "w2": normal(2, 2, 1, 1, seed=3),
            "two": np.float32(2),
            "k": normal(1, 2, 1, 1, seed=4),
        },
        [info("x", (1, 3, 32, 32))],
    )


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("split", {"split/slice0", "split/slice1"}),
        ("spl?t", {"split/slice0", "split/slice1"}),
        ("bn", {"conv"}),
        ("b*", {"conv"}),
        ("mul", {"after"}),
        ("mul*", {"mul_live"}),
        ("same", set()),
        ("computed", set()),
        ("pool", {"pool", "pool/tiles"}),
        ("conv", {"conv"}),
    ],
)
def test_a_name_of_the_file_means_what_became_of_it(pattern, left):
    reasons, names = prepared(names_that_change(), exclude=(pattern,))
    assert set(reasons) == left
    assert left <= names


def test_other_options_follow_names_too():
    reasons, names = prepared(names_that_change(), include=("bn", "split"))
    assert names - set(reasons) == {"conv", "split/slice0", "split/slice1"}
    reasons, names = prepared(names_that_change(), start=("mul",))
    assert {"conv", "split/slice0"} <= set(reasons)
    assert "after" not in reasons
    override = Override(nodes=("bn",), leave_float=True)
    model = load(names_that_change())
    before = [str(each.name) for each in model.graph]
    passes = default_passes()
    prepare(model, passes)
    assert nodes_of(override, model.graph, successors(before, model.graph, passes)) == {"conv"}


@pytest.mark.parametrize("option", ["include", "start", "end"])
def test_nothing_can_be_chosen_of_a_constant(option):
    with pytest.raises(UsageError, match="computed"):
        prepared(names_that_change(), **{option: ("computed",)})


def test_what_was_never_there_is_an_error_with_the_nearest_name():
    with pytest.raises(UsageError, match="splitt.*split"):
        prepared(names_that_change(), exclude=("splitt",))


def test_nodes_of_an_inlined_function_stand_for_its_call():
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Relu", "a", "r"), node("Add", "r r", "b")], [helper.make_opsetid("", 17)]
    )
    proto = build([node("Conv", "x w", "c", "conv")], "c", {"w": normal(4, 3, 1, 1)})
    call = helper.make_node("Twice", ["c"], ["y"], name="twice", domain="local")
    proto.graph.node.append(call)
    proto.graph.output[0].name = "y"
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    reasons, names = prepared(proto, exclude=("twice",))
    assert set(reasons) == names - {"conv"}
    assert len(reasons) == 2


def test_the_nodes_of_a_fused_subgraph_mean_the_node_that_they_became():
    proto = build(
        [
            node("ReduceMean", "x", "mean", "mean", axes=[-1]),
            node("Sub", "x mean", "d", "centred"),
            node("Pow", "d two", "q", "square"),
            node("ReduceMean", "q", "v", "variance", axes=[-1]),
            node("Add", "v eps", "e", "guard"),
            node("Sqrt", "e", "r", "root"),
            node("Div", "d r", "y", "divide"),
        ],
        "y",
        {"two": np.float32(2), "eps": np.float32(1e-5)},
        [info("x", (1, 6, 16))],
    )
    reasons, names = prepared(proto, exclude=("square",))
    assert names == set(reasons) == {"divide"}
