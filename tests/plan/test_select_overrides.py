from __future__ import annotations

import pytest

from detent.errors import UsageError
from detent.numerics.formats import IntegerFormat
from detent.plan.select import check_operator_types, left_float, nodes_of
from detent.recipe import Override
from detent.recipe.recipe import PRESETS
from tests.models import as_ir, residual

GRAPH = as_ir(residual()).graph
INT8 = IntegerFormat("int8")


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ({"nodes": ("conv_c1",)}, {"conv_c1"}),
        ({"nodes": ("conv_*", "add_s")}, {"conv_c1", "conv_c2", "add_s"}),
        ({"nodes": ("relu_?",)}, {"relu_y"}),
        ({"op_types": ("Relu", "LSTM")}, {"relu_r1", "relu_y"}),
        ({"nodes": ("add_s",), "op_types": ("Conv",)}, {"add_s", "conv_c1", "conv_c2"}),
        ({"nodes": ("add_s",), "op_types": ("LSTM",)}, {"add_s"}),
        ({"between": (("conv_c2",), ("add_s",))}, {"conv_c2", "add_s"}),
        ({"between": (("add_s",), ())}, {"add_s", "relu_y"}),
        ({"between": ((), ("relu_r1",))}, {"conv_c1", "relu_r1"}),
        ({"tensors": ("c2",)}, set()),
    ],
)
def test_parts(part, names):
    assert nodes_of(Override(**part, activations=INT8), GRAPH) == names


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"nodes": ("conv_c1", "conv_9")}, ("'conv_9'", "matches no node", "'conv_c1'")),
        ({"op_types": ("LSTM",)}, ("LSTM", "no such operator")),
        ({"between": (("conv_9",), ())}, ("override of conv_9 to the outputs", "conv_9")),
        ({"between": (("relu_y",), ("conv_c1",))}, ("override of relu_y to conv_c1", "No node lies between")),
    ],
)
def test_parts_that_are_not_there(part, words):
    with pytest.raises(UsageError) as caught:
        nodes_of(Override(**part, activations=INT8), GRAPH)
    for word in words:
        assert word in str(caught.value)


def test_what_is_left_float():
    recipe = PRESETS["A8W8"].replace(
        overrides=(Override(nodes=("conv_c1",), activations=INT8), Override(op_types=("Add",), leave_float=True))
    )
    assert left_float(recipe, GRAPH) == {"add_s": "left float by the override of Add"}


def test_a_long_override_is_told_by_its_number():
    names = tuple(str(node.name) for node in GRAPH) * 10  # what names every node is too long to be a reason
    overrides = (Override(nodes=("conv_c1",), activations=INT8), Override(nodes=names, leave_float=True))
    found = left_float(PRESETS["A8W8"].replace(overrides=overrides), GRAPH)
    assert set(found.values()) == {f"left float by override 2 ({len(set(names))} nodes)"}


def test_operator_types_are_those_of_onnx():
    recipe = PRESETS["A8W8"]
    check_operator_types(recipe.replace(operators=("Conv", "Gemm"), more_operators=("Exp",)))
    with pytest.raises(UsageError, match="operators: .*'conv'.*'Conv'"):
        check_operator_types(recipe.replace(operators=("conv",)))
    with pytest.raises(UsageError, match="more_operators: .*'Expo'"):
        check_operator_types(recipe.replace(more_operators=("Expo",)))
