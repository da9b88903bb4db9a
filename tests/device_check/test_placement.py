from __future__ import annotations

import pytest

import detent
from detent.device_check import placement
from detent.recipe import Override
from detent.recipe.file import find_recipe
from tests.device_check.test_check import DATA, two_convs
from tests.models import node, normal, planned

NETWORK = two_convs(node("Relu", "a", "r"), node("Add", "r k", "b"), k=normal(1, seed=3))


@pytest.mark.parametrize("left", ["add_b", "conv_y"])
def test_it_is_what_the_quantized_model_gets(left):
    base = find_recipe("XINT8").replace(refinement=None, equalize=False)
    mixed = base.replace(overrides=(Override(nodes=(left,), leave_float=True),))
    model, _ = planned(NETWORK)
    found = placement(model, base, mixed, "model.onnx")
    for recipe, foreseen in ((base, found.before), (mixed, found.after)):
        seen = detent.check(detent.quantize(NETWORK, calibration=DATA, recipe=recipe).model)
        assert (foreseen.device_nodes, foreseen.cpu_nodes, foreseen.subgraphs) == (
            seen.device_nodes,
            seen.cpu_nodes,
            seen.subgraphs,
        )
    assert found.is_worse
    assert not placement(model, base, base, "model.onnx").is_worse


def test_it_is_said_in_a_sentence():
    base = find_recipe("XINT8")
    mixed = base.replace(overrides=(Override(nodes=("add_b",), leave_float=True),))
    found = placement(planned(NETWORK)[0], base, mixed, "model.onnx")
    assert str(found) == "3 of 4 nodes run on npu-xint8 then, in 2 subgraphs (as it is: 4, in 1 subgraph)"


def test_a_recipe_that_quantizes_nothing_has_no_place():
    base = find_recipe("XINT8")
    nothing = base.replace(overrides=(Override(nodes=("*",), leave_float=True),))
    assert placement(planned(NETWORK)[0], base, nothing, "model.onnx") is None


def test_without_a_device_there_is_nothing_to_foresee():
    recipe = find_recipe("S8S8_AAWS").replace(target="cpu")
    assert placement(planned(NETWORK)[0], recipe, recipe, "model.onnx") is None
