from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from detent.graph.taps import BLOCKED, BlockedValue, carry_blocks, fetch_in_blocks, fetchable_in_blocks
from tests.models import info, normal

PLAIN = info("x", ("n", 3, 12, 12))


def written(nodes, outputs, *, constants=None, shapes=None):
    """A model as onnxruntime might write it. `nodes`: operator, inputs and output; blocked where it begins with '#'."""
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node(
                op.strip("#"),
                inputs.split(),
                [output],
                name=f"node_{output}",
                domain=BLOCKED if op.startswith("#") else "",
                **({"channels": 32} if op == "#ReorderOutput" else {}),
            )
            for op, inputs, output in nodes
        ],
        "optimized",
        [PLAIN],
        [info(name, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
        value_info=[info(name, shape) for name, shape in (shapes or {}).items()],
    )
    return onnx.helper.make_model(graph)


def operators(model):
    return Counter(node.op_type for node in model.graph.node)


SCALE = {"s": np.float32(0.5), "z": np.int8(0)}
QUANTIZED = [
    ("#Conv", "x w", "c"),
    ("#ReorderOutput", "c", "c_out"),
    ("QuantizeLinear", "c_out s z", "q"),
    ("DequantizeLinear", "q s z", "d"),
    ("#ReorderInput", "d", "d_in"),
    ("#Conv", "d_in w", "e"),
    ("#ReorderOutput", "e", "y"),
]


def test_quantizers_between_convolutions_work_on_blocks():
    model = written(QUANTIZED, ["y"], constants=SCALE)
    carry_blocks(model)
    assert [node.op_type for node in model.graph.node] == [
        "Conv",
        "QuantizeLinear",
        "DequantizeLinear",
        "Conv",
        "ReorderOutput",
    ]
    for before, after in zip(model.graph.node, model.graph.node[1:], strict=False):
        assert after.input[0] == before.output[0]


def test_what_is_fetched_in_order_still_is():
    model = written(QUANTIZED, ["y", "c_out", "q", "d"], constants=SCALE)
    carry_blocks(model)
    # Codes cannot be put in order, so they are computed in order as well; the two floats are put in order.
    assert operators(model) == Counter(Conv=2, QuantizeLinear=2, DequantizeLinear=1, ReorderOutput=3)


@pytest.mark.parametrize(
    ("shapes", "carried"),
    [
        ({"a": (1, 32, 4, 4), "b": (1, 32, 4, 4)}, True),
        ({"a": ("n", 32, 4, 4), "b": ("n", 32, 4, 4)}, True),
        ({"a": (1, 32, 4, 4), "b": (1, 32, 1, 1)}, False),
        ({"a": ("n", 32, 4, 4), "b": ("m", 32, 4, 4)}, False),
        ({"a": (None, 32, 4, 4), "b": (None, 32, 4, 4)}, False),
        ({"a": (1, 32, 4, 4)}, False),
        ({}, False),
    ],
)
def test_a_sum_is_carried_where_nothing_is_broadcast(shapes, carried):
    nodes = [
        ("#Conv", "x w", "c"),
        ("#Conv", "x v", "d"),
        ("#ReorderOutput", "c", "a"),
        ("#ReorderOutput", "d", "b"),
        ("Add", "a b", "sum"),
        ("#ReorderInput", "sum", "in"),
        ("#Conv", "in w", "y"),
    ]
    model = written(nodes, ["y"], shapes=shapes)
    carry_blocks(model)
    assert ("ReorderInput" not in operators(model)) == carried
    assert ("ReorderOutput" not in operators(model)) == carried


@pytest.mark.parametrize("why", ["scale per channel", "another operator", "channels last", "in order on one side"])
def test_what_needs_the_order_keeps_it(why):
    constants, nodes = dict(SCALE), list(QUANTIZED)
    if why == "scale per channel":
        constants["s"] = np.full(32, 0.5, np.float32)
    elif why == "another operator":
        nodes[2:4] = [("Softmax", "c_out", "d")]
    elif why == "in order on one side":
        nodes[2:4] = [("Add", "c_out x", "d")]
    model = written(nodes, ["y"], constants=constants)
    if why == "channels last":
        for node in model.graph.node:
            if node.op_type.startswith("Reorder"):
                node.attribute.append(onnx.helper.make_attribute("channels_last", 1))
    before = operators(model)
    carry_blocks(model)
    assert operators(model) == before


def test_a_scalar_of_another_kind():
    nodes = [*QUANTIZED[:2], ("Clip", "c_out low high", "q"), ("Mul", "q half", "d"), *QUANTIZED[4:]]
    model = written(nodes, ["y"], constants={"low": np.float32(0), "high": np.float32(6), "half": np.float32([0.5])})
    carry_blocks(model)
    assert operators(model) == Counter(Conv=2, Clip=1, Mul=1, ReorderOutput=1)
    assert [node.input[1:] for node in model.graph.node[1:3]] == [["low", "high"], ["half"]]


def test_nested_graphs_keep_what_they_read():
    body = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["c_out"], ["r"])], "body", [], [info("r", None)])
    model = written(QUANTIZED, ["y"], constants=SCALE)
    model.graph.node.append(onnx.helper.make_node("If", ["flag"], ["z"], then_branch=body, else_branch=body))
    model.graph.output.append(info("z", None))
    carry_blocks(model)
    assert operators(model)["ReorderOutput"] == 2


def tapped(channels, padded_to):
    """A blocked Conv and a blocked Relu behind it, both put in order again."""
    nodes = [
        ("#Conv", "x w", "c"),
        ("Relu", "c", "r"),
        ("#ReorderOutput", "c", "c_out"),
        ("#ReorderOutput", "r", "r_out"),
        ("Flatten", "r_out", "y"),
    ]
    model = written(nodes, ["c_out", "r_out", "y"], constants={"w": normal(padded_to, 3, 3, 3)})
    for node in model.graph.node[2:4]:
        node.attribute[0].i = channels
    return model


@pytest.mark.parametrize(
    ("channels", "padded_to", "taken"), [(32, 32, True), (24, 24, True), (24, 32, False), (20, 24, False)]
)
def test_a_value_with_padding_keeps_its_reorder(channels, padded_to, taken):
    model = tapped(channels, padded_to)
    values = fetchable_in_blocks(model, ["c_out"])
    assert values == ({"c_out": BlockedValue("c", channels)} if taken else {})
    fetch_in_blocks(model, values)
    assert [value.name for value in model.graph.output] == ["c" if taken else "c_out", "r_out", "y"]
    assert len(model.graph.node) == 5 - taken


def test_behind_other_operators_only_whole_blocks_of_any_size_are_sure():
    assert "r_out" not in fetchable_in_blocks(tapped(24, 24), ["c_out", "r_out"])
    assert "r_out" in fetchable_in_blocks(tapped(32, 32), ["c_out", "r_out"])


def test_a_reorder_that_others_read_stays_and_need_not_be_fetched():
    model = tapped(32, 32)
    fetch_in_blocks(model, fetchable_in_blocks(model, ["c_out", "r_out"]))
    assert [value.name for value in model.graph.output] == ["c", "r", "y"]
    assert operators(model) == Counter(Conv=1, Relu=1, ReorderOutput=1, Flatten=1)


def test_two_reorders_of_one_value_do_not_become_two_outputs_of_one_name():
    model = tapped(32, 32)
    model.graph.node[3].input[0] = "c"
    assert fetchable_in_blocks(model, ["c_out", "r_out"]) == {"c_out": BlockedValue("c", 32)}
