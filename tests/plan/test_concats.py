"""Concats of values of very different size: on one grid the smaller ones are lost, so they stay float."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.recipe.recipe import PRESETS
from tests.models import build, info, node, normal, run

SIZE = (1, 4, 6, 6)


def joined(factors):
    """Return a network that joins two inputs, multiplies each channel by a factor, and goes on."""
    weights = {"f": np.array(factors, np.float32).reshape(1, 8, 1, 1), "w": normal(5, 8, 1, 1, seed=3)}
    nodes = [
        node("Concat", "a b", "joined", axis=1),
        node("Mul", "joined f", "scaled"),
        node("Relu", "scaled", "active"),
        node("Conv", "active w", "y"),
    ]
    return build(nodes, [info("y", (1, 5, 6, 6))], weights, [info("a", SIZE), info("b", SIZE)])


def samples(size, count=16):
    return [{"a": normal(*SIZE, seed=at), "b": size * normal(*SIZE, seed=99 + at)} for at in range(count)]


def left_float(report):
    return {each.op_type for each in report.nodes if not each.quantized}


@pytest.mark.parametrize("recipe", ["XINT8", "A8W8"])
def test_what_a_grid_would_lose_keeps_one_of_its_own(recipe):
    """Values of up to 4 beside others of up to 2000, which a factor makes alike: half of the answer comes from each."""
    model, size = joined([1.0] * 4 + [1 / 500] * 4), 500
    report = detent.quantize(model, None, samples(size), PRESETS[recipe])
    assert left_float(report) == {"Concat", "Mul"}
    (said,) = {each.reason for each in report.nodes if each.op_type == "Concat"}
    assert "joins values of up to" in said and "factor" in said
    (feeds,) = samples(size, 1)
    expected, found = run(model, feeds)["y"], run(report.model, feeds)["y"]
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("factors", "size"),
    [
        ([1.0] * 4 + [1 / 20] * 4, 20),  # the smaller ones get six codes
        ([1.0] * 8, 500),  # nothing makes them alike: they hardly count
    ],
)
def test_what_a_grid_keeps_or_may_lose_is_quantized(factors, size):
    report = detent.quantize(joined(factors), None, samples(size), PRESETS["A8W8"])
    assert not left_float(report)


def test_the_step_can_be_left_out():
    recipe = PRESETS["A8W8"].replace(without=("float_concats",))
    assert not left_float(detent.quantize(joined([1.0] * 4 + [1 / 500] * 4), None, samples(500), recipe))
