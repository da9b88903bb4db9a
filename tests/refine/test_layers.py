from __future__ import annotations

import numpy as np
import pytest

from detent.refine.layers import activation_of, find_layers
from tests.models import build, laid_out, node, normal

CONSTANTS = {"w": normal(4, 3, 3, 3), "b": normal(4), "zero": np.float32(0), "six": np.float32(6)}


def activation_behind(*nodes, outputs="y"):
    proto = build([node("Conv", "x w b", "c"), *nodes], outputs, CONSTANTS)
    model, layout = laid_out(proto)
    (layer,) = find_layers(model, layout)[0].values()
    found = activation_of(layer, layout)
    return found.low, found.high, found.slope


def test_what_is_fused_behind_a_layer():
    assert activation_behind(node("Relu", "c", "y")) == (0, np.inf, 0)
    assert activation_behind(node("Clip", "c zero six", "y")) == (0, 6, 0)
    assert activation_behind(node("LeakyRelu", "c", "y", alpha=0.25)) == pytest.approx((0, np.inf, 0.25))


def test_what_is_not_fused_counts_as_nothing():
    nothing = (-np.inf, np.inf, 0)
    assert activation_behind(node("Sigmoid", "c", "y")) == nothing
    assert activation_behind(node("Relu", "c", "r"), node("Add", "c r", "y")) == nothing
    assert activation_behind(node("Relu", "c", "y"), outputs="c y") == nothing
