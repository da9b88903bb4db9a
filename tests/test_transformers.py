"""Whole transformers, quantized: what is quantized, what is left and why, and how well."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.plan.select import MASK_REASON, SCORE_REASON
from tests.models import build, info, node, normal, run_all
from tests.transformer_models import LOWEST, Style, bert, bert_data, vit, vit_data

STYLES = {
    "bert": (bert, Style()),
    "bert, subgraphs": (bert, Style(opset=20, layer_norm="subgraph", gelu="tanh")),
    "bert, operators": (bert, Style(opset=21, gelu="operator", mask=LOWEST)),
    "bert, causal": (bert, Style(mask=-np.inf, causal=True)),
    "vit": (vit, Style(mask=0.0, layer_norm="subgraph")),
    "vit, operators": (vit, Style(mask=0.0, opset=20, gelu="operator")),
}


def decibels(want, got):
    return 10 * np.log10((want**2).sum() / ((want - got) ** 2).sum())


def quality(proto, quantized, feeds):
    want, got = (run_all(model, feeds) for model in (proto, quantized))
    return decibels(*(np.concatenate([next(iter(each.values())).ravel() for each in side]) for side in (want, got)))


ENOUGH = {"A8W8": 20.0, "A16W8": 30.0, "XINT8": 15.0}


# Every recipe with the two plain models, and one with each other way to write them.
@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *((name, recipe) for name in ("bert", "vit") for recipe in ENOUGH),
        ("bert, subgraphs", "A16W8"),
        ("bert, operators", "XINT8"),
        ("bert, causal", "A8W8"),
        ("vit, operators", "A8W8"),
    ],
)
def test_a_transformer(name, recipe):
    make, style = STYLES[name]
    proto = make(style, layers=1)
    data = bert_data if make is bert else vit_data
    report = detent.quantize(proto, calibration=data(32), recipe=recipe)
    assert quality(proto, report.model, data(16, seed=5)) > ENOUGH[recipe]
    left = {each.op_type for each in report.nodes if not each.quantized}
    assert left <= {"Unsqueeze", "Cast", "Sub", "Mul", "Where", "Add"}, "only the mask is left"
    reasons = {each.reason for each in report.nodes if not each.quantized}
    assert reasons >= {MASK_REASON, SCORE_REASON} if make is bert else not reasons
    codes = {tensor.name for tensor in report.model.graph.initializer}
    assert any(each.endswith("_quantized") for each in codes)


@pytest.mark.parametrize("opset", [17, 20])
def test_subgraphs_become_operators(opset):
    report = detent.quantize(
        bert(Style(opset=opset, layer_norm="subgraph"), layers=1), calibration=bert_data(4), recipe="A8W8"
    )
    counts = [each.op_type for each in report.nodes]
    assert counts.count("LayerNormalization") == 3
    assert counts.count("Gelu") == (opset >= 20)
    declined = " ".join(each.what for each in report.declined if each.by == "FuseGelu")
    assert ("Gelu exists from opset 20" in declined) == (opset < 20)


def test_the_scale_of_a_normalization_survives_an_outlier():
    constants = {"g": np.array([1.0, 0.7, 300.0, 1.3], np.float32), "h": normal(4) / 10}
    proto = build([node("LayerNormalization", "x g h", "y", axis=-1)], "y", constants, inputs=[info("x", (2, 3, 4))])
    feeds = [{"x": normal(2, 3, 4, seed=index)} for index in range(40)]
    quantized = detent.quantize(proto, calibration=feeds, recipe="A16W8").model
    want, got = (np.concatenate([each["y"] for each in run_all(model, feeds)]) for model in (proto, quantized))
    ordinary = [0, 1, 3]  # with a scale on the grid of the outlier they would be multiplied by 0 or 2.4
    assert decibels(want[..., ordinary], got[..., ordinary]) > 35


def operands(*shapes):
    names = "xz"[: len(shapes)]
    return (
        [info(name, shape) for name, shape in zip(names, shapes, strict=True)],
        [
            {name: normal(*shape, seed=10 * index + ord(name)) for name, shape in zip(names, shapes, strict=True)}
            for index in range(60)
        ],
    )


@pytest.mark.parametrize(
    ("nodes", "constants", "shapes"),
    [
        ([node("MatMul", "x z", "y")], {}, [(2, 3, 4), (2, 4, 5)]),
        ([node("MatMul", "w x", "y")], {"w": normal(6, 3)}, [(2, 3, 4)]),
        ([node("MatMul", "x w", "y")], {"w": normal(2, 4, 5)}, [(2, 3, 4)]),
        ([node("MatMul", "x w", "y")], {"w": normal(4)}, [(2, 3, 4)]),
        ([node("MatMul", "x w", "t"), node("Add", "t b", "y")], {"w": normal(4, 5), "b": normal(5)}, [(2, 3, 4)]),
        ([node("MatMul", "x w", "t"), node("MatMul", "t w", "y")], {"w": normal(4, 4)}, [(2, 3, 4)]),
        ([node("Gemm", "x z", "y", transA=1, transB=1, alpha=0.5)], {}, [(4, 3), (5, 4)]),
        ([node("Gemm", "x z b", "y")], {"b": normal(5)}, [(3, 4), (4, 5)]),
        ([node("Gemm", "w x b", "y")], {"w": normal(2, 3), "b": normal(4)}, [(3, 4)]),
        ([node("Gemm", "x w z", "y")], {"w": normal(4, 5)}, [(3, 4), (3, 5)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("recipe", "enough"), [("A8W8", 30), ("A16W8", 38), ("XINT8", 25)])
def test_products(nodes, constants, shapes, recipe, enough):
    inputs, feeds = operands(*shapes)
    proto = build(nodes, "y", constants, inputs=inputs)
    report = detent.quantize(proto, calibration=feeds, recipe=recipe)
    assert all(each.quantized for each in report.nodes)
    assert quality(proto, report.model, feeds[:44]) > ENOUGH[recipe]


def scale_of_attention(feeds, recipe):
    proto = build([node("Softmax", "x", "s"), node("MatMul", "s w", "y")], "y", {"w": normal(8, 8)})
    report = detent.quantize(proto, calibration=[{"x": each} for each in feeds], recipe=recipe)
    held = {tensor.name: tensor for tensor in report.model.graph.initializer}
    return np.frombuffer(held["s_scale"].raw_data, np.float32)


@pytest.mark.parametrize(("recipe", "scale"), [("A8W8", 1 / 127), ("A16W8", 1 / 32767), ("XINT8", 1 / 128)])
def test_the_scale_of_attention_to_one_token(recipe, scale):
    feeds = [8 * normal(1, 3, 8, 8, seed=index) for index in range(4)]
    assert scale_of_attention(feeds, recipe) == np.float32(scale)


@pytest.mark.parametrize(("recipe", "scale"), [("A8W8", 1.25 / 8 / 127), ("XINT8", 1 / 1024)])
def test_the_scale_of_attention_that_is_spread(recipe, scale):
    feeds = [np.full((1, 3, 8, 8), index, np.float32) for index in range(4)]  # 1/8 for each token
    np.testing.assert_allclose(scale_of_attention(feeds, recipe), scale, rtol=1e-6)


def test_scores_at_the_output_reach_1_whatever_was_seen():
    proto = build([node("Softmax", "x", "y")], "y", {}, inputs=[info("x", (1, 8))])
    report = detent.quantize(proto, calibration=[{"x": np.full((1, 8), 2.0, np.float32)}] * 4, recipe="A8W8")
    held = {tensor.name: tensor for tensor in report.model.graph.initializer}
    assert np.frombuffer(held["y_scale"].raw_data, np.float32) == np.float32(1 / 127)
