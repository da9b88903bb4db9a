"""Activations that get 16 bits, by what 8 would cost at the outputs."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.errors import UsageError
from detent.recipe.recipe import find_preset
from tests.models import build, info, node, normal
from tests.test_transformers import quality
from tests.transformer_models import Style, bert, bert_data

OUTLYING = bert(Style(stream=300.0), layers=1)
DATA = bert_data(12)


@pytest.fixture(scope="module")
def reports():
    narrow = find_preset("A8W8").replace(widen=None)
    return [detent.quantize(OUTLYING, calibration=DATA, recipe=recipe) for recipe in ("A8W8", narrow)]


def test_what_is_rounded_most_harmfully_gets_16_bits(reports):
    wide, narrow = reports
    assert narrow.widening is None
    assert 0 < len(wide.widening.tensors) < wide.widening.candidates / 3
    assert wide.widening.after <= 0.01 < wide.widening.before
    stream = [tensor for tensor in wide.widening.tensors if tensor.role.startswith("Add")]
    assert max(tensor.channel_ratio for tensor in stream) > 50
    data = bert_data(8, seed=5)
    assert quality(OUTLYING, wide.model, data) > quality(OUTLYING, narrow.model, data) + 6


def test_the_report_lists_the_tensors_that_are_wide(reports):
    wide, narrow = ({each.name for each in report.tensors if each.dtype == "int16"} for report in reports)
    assert wide == reports[0].widening.names
    assert not narrow
    assert reports[0].to_dict()["widening"]["tensors"][0]["name"] in wide


def test_the_device_takes_them_and_says_what_they_cost(reports):
    wide, narrow = ([each for each in report.device.findings if "16 bits" in each.what] for report in reports)
    assert [each.level for each in wide] == ["note"]
    assert not narrow
    assert not any("int16" in each.what for each in reports[0].device.errors)


def test_a_network_without_normalization_has_8_bits_throughout():
    proto = build(
        [node("Conv", "x w", "y", kernel_shape=[3, 3])],
        "y",
        {"w": normal(3, 2, 3, 3)},
        inputs=[info("x", (1, 2, 8, 8))],
    )
    data = [{"x": normal(1, 2, 8, 8)} for _ in range(4)]
    assert detent.quantize(proto, calibration=data, recipe="A8W8").widening is None
    asked = detent.quantize(proto, calibration=data, recipe="A8W8", widen=60.0)
    assert asked.recipe.widen_everywhere
    assert asked.widening.names == {"x", "y"}


def test_attention_among_convolutions_gets_16_bits_where_shares_differ_much():
    """One row attends to one place, the others to all 256 alike: a share of 1/256 is half a code, and rounds to 0."""
    sizes = np.full((1, 256, 1), 1e-3, np.float32)
    sizes[0, 0] = 40.0
    nodes = [
        *(node("Conv", "x w", "c", kernel_shape=[1, 1]), node("Reshape", "c flat", "v")),
        *(node("Mul", "v sizes", "q"), node("Transpose", "v", "k", perm=[0, 2, 1]), node("MatMul", "q k", "scores")),
        *(node("Softmax", "scores", "shares", axis=-1), node("MatMul", "shares v", "y")),
    ]
    weights = {"w": abs(normal(4, 3, 1, 1)), "flat": np.array([1, 256, 4]), "sizes": sizes}
    proto = build(nodes, "y", weights, inputs=[info("x", (1, 3, 16, 16))])
    data = [{"x": 1 + abs(normal(1, 3, 16, 16))} for _ in range(8)]
    narrow = find_preset("A8W8").replace(widen=None)
    wide, plain = (detent.quantize(proto, calibration=data, recipe=recipe) for recipe in ("A8W8", narrow))
    assert "shares" in wide.widening.names and "c" not in wide.widening.names
    assert quality(proto, wide.model, data) > quality(proto, plain.model, data) + 6


def test_a_bound_that_8_bits_keep_widens_nothing():
    report = detent.quantize(OUTLYING, calibration=DATA, recipe="A8W8", widen=0.1)
    assert report.widening.tensors == ()


def test_a_shifting_device_has_no_16_bits():
    with pytest.raises(UsageError, match="widen"):
        detent.quantize(OUTLYING, calibration=DATA, recipe="XINT8", widen=20.0)


@pytest.mark.parametrize("widen", [0.0, -3.0, 200.0, float("nan")])
def test_a_bound_that_is_none(widen):
    with pytest.raises(UsageError, match="widen"):
        find_preset("A8W8").replace(widen=widen)


def test_the_entries_of_a_table_have_a_scale_each(reports):
    tables = [each for each in reports[0].model.graph.node if each.op_type == "Gather"]
    reader = {each.output[0]: each for each in reports[0].model.graph.node}[tables[0].input[0]]
    arrays = {each.name: each for each in reports[0].model.graph.initializer}
    assert reader.op_type == "DequantizeLinear"
    assert np.prod(arrays[reader.input[1]].dims) == 32


def test_an_input_with_outlying_channels_gets_16_bits_too():
    nodes = [node("LayerNormalization", "x g", "n", axis=-1), node("MatMul", "n w", "y")]
    others = (np.arange(16) != 3).astype(np.float32)  # what the outlying channel hides is all that counts
    constants = {"g": others, "w": normal(16, 16)}
    proto = build(nodes, "y", constants, inputs=[info("x", (1, 8, 16))])
    data = [{"x": normal(1, 8, 16, seed=seed) * (500 - 499 * others)} for seed in range(8)]
    widened = detent.quantize(proto, calibration=data, recipe="A8W8").widening
    assert "x" in widened.names
