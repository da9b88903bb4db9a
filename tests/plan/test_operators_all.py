"""Recipes that quantize every operator: what is no data (bounds, scales, exponents, coordinates) stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import detent
from detent.recipe.recipe import PRESETS
from tests.models import build, node, normal, run


def scalar(value):
    return np.array(value, np.float32)


def numbers(*values):
    return np.array(values, np.float32)


def whole(*values):
    return np.array(values, np.int64)


ODD = {
    # nodes, constants, and the sites
    "exponent": ([node("Pow", "x e", "y")], {"e": scalar(2)}, "x y"),
    "bounds": ([node("Clip", "x a b", "y")], {"a": scalar(-0.3), "b": scalar(1)}, "x y"),
    "scales": (
        [node("Resize", "x roi s", "y", mode="linear")],
        {"roi": numbers(0, 0, 0, 0, 1, 1, 1, 1), "s": numbers(1, 1, 2, 1.5)},
        "x y",
    ),
    "indices": ([node("TopK", "x k", "v i"), node("Sigmoid", "v", "y")], {"k": whole(3)}, "x v y"),
    "sizes": (
        [node("Split", "x s", "a b", axis=2), node("Concat", "b a", "y", axis=2)],
        {"s": whole(3, 5)},
        "x a b y",
    ),
    "conditions": (
        [node("Less", "x z", "l"), node("Where", "l x w", "y")],
        {"z": scalar(0.1), "w": numbers(0.5)},
        "x w y",
    ),
    "axes": ([node("ReduceMean", "x", "y", axes=[2, 3])], {}, "x y"),
    "axes as an input": ([node("ReduceSum", "x a", "y")], {"a": whole(1)}, "x y"),
    "probabilities": ([node("Dropout", "x r", "y")], {"r": scalar(0.3)}, "x y"),
    "coordinates": ([node("GridSample", "x g", "y")], {"g": normal(1, 4, 4, 2)}, "x y"),
    "boxes": ([node("RoiAlign", "x r b", "y")], {"r": numbers(0, 0, 4, 4).reshape(1, 4), "b": whole(0)}, "x y"),
    "what is padded with": (
        [node("Pad", "x p v", "y")],
        {"p": whole(0, 0, 1, 1, 0, 0, 1, 1), "v": scalar(0.3)},
        "x y",
    ),
    "shapes": (
        [node("Shape", "x", "s"), node("ConstantOfShape", "s", "c"), node("Concat", "x c", "y", axis=1)],
        {},
        "x c y",
    ),
    "the two values of a code": (
        [node("ArgMax", "x", "a", axis=1, keepdims=0), node("OneHot", "a d v", "y")],
        {"d": whole(4), "v": numbers(0, 1)},
        "x",
    ),
    "an output that nobody reads": (
        [node("Squeeze", "x a", "q"), node("LSTM", "q w r", "o h", hidden_size=4), node("Relu", "h", "y")],
        {"a": whole(0), "w": normal(1, 16, 8), "r": normal(1, 16, 4)},
        "x q w r h y",
    ),
    "any other": ([node("Exp", "x", "e"), node("Sqrt", "e", "y")], {}, "x e y"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("recipe", ["VINT8", "U8S8_AAWS"])
def test_what_is_no_data_stays_as_it_is(kind, recipe):
    nodes, constants, sites = ODD[kind]
    proto = build(nodes, "y", constants)
    chosen = PRESETS[recipe].replace(all_operators=True, refinement=None, without=("split_to_slice",))
    samples = np.stack([normal(3, 8, 8, seed=seed) for seed in range(3)])
    report = detent.quantize(proto, None, samples, chosen)
    assert {tensor.name for tensor in report.tensors} == set(sites.split())
    onnx.checker.check_model(report.model, full_check=True)
    assert np.isfinite(run(report.model, {"x": samples[:1]})["y"]).all()


def test_more_operators_are_added_to_those_of_the_table():
    proto = build([node("Exp", "x", "e"), node("Log", "e", "s"), node("Relu", "s", "y")], "y")
    recipe = PRESETS["A8W8"].replace(more_operators=("Exp",), refinement=None)
    report = detent.quantize(proto, None, normal(3, 3, 8, 8), recipe)
    assert {one.node for one in report.nodes if one.quantized} == {"exp_e", "relu_y"}
    only = detent.quantize(proto, None, normal(3, 3, 8, 8), recipe.replace(operators=("Log",), more_operators=()))
    assert {one.node for one in only.nodes if one.quantized} == {"log_s"}
