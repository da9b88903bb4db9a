"""Layers that say little about their weights: each is left as it was, with the reason in the report, and the model
is quantized all the same.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import detent
from detent.methods import MinMax
from detent.recipe.recipe import PRESETS
from detent.refinements import AdaQuant, AdaRound, Gptq, Rounding
from tests.models import build, info, node, normal

WEIGHT_REFINEMENTS = [Rounding(), Gptq(), AdaRound(iterations=5), AdaQuant(iterations=5)]
each_refinement = pytest.mark.parametrize("refinement", WEIGHT_REFINEMENTS, ids=lambda one: type(one).__name__)


def gemm(inputs, rows=1, outputs=4):
    constants = {"w": normal(inputs, outputs), "b": normal(outputs)}
    return build([node("Gemm", "x w b", "y")], "y", constants, inputs=[info("x", [rows, inputs])])


def refined(proto, samples, refinement, **changes):
    # MinMax, and numbers that are no scores: where nothing clips, a refinement of these layers is not taken back.
    coarse = dataclasses.replace(PRESETS["A8W8"].weights, granularity="per_tensor")
    given = {"method": MinMax(), "weights": coarse, "equalize": False, **changes}
    recipe = PRESETS["A8W8"].replace(refinement=refinement, **given)
    report = detent.quantize(proto, None, samples, recipe, task="regress")
    outputs = report.fidelity.outputs.values()
    assert all(np.isfinite(one.sqnr_db) for one in outputs)
    return report.refined


def samples(count, *shape):
    return [{"x": normal(*shape, seed=seed)} for seed in range(count)]


@each_refinement
def test_too_few_rows_for_so_many_inputs(refinement):
    (layer,) = refined(gemm(512), samples(20, 1, 512), refinement)  # two of them measure the result
    assert layer.method == "bias correction"
    assert "18 rows are too few to choose weights with: for 512 inputs give 32, about 32 samples" in layer.note


@each_refinement
def test_as_many_rows_as_were_asked_for_are_enough(refinement):
    (layer,) = refined(gemm(512), samples(48, 1, 512), refinement)
    assert "too few" not in layer.note


def test_singular_second_moments():
    twins = [{"x": np.repeat(normal(8, 4, seed=seed), 2, axis=1)} for seed in range(20)]
    (layer,) = refined(gemm(8, rows=8), twins, Gptq(damping=0.0))
    assert "singular: raise the damping" in layer.note and layer.method == "bias correction"
    (layer,) = refined(gemm(8, rows=8), twins, Gptq())
    assert layer.method == "gptq" and layer.after < layer.before
    (layer,) = refined(gemm(8, rows=8), twins, Rounding(damping=0.0))
    assert layer.method.startswith("rounding")


@each_refinement
def test_inputs_that_are_always_zero(refinement):
    dead = samples(20, 8, 12)
    for one in dead:
        one["x"][:, 3:9] = 0.0
    (layer,) = refined(gemm(12, rows=8), dead, refinement)
    assert layer.after <= layer.before


@each_refinement
def test_an_input_that_never_changes(refinement):
    constant = [{"x": np.tile(np.linspace(-1, 1, 6, dtype=np.float32), (4, 1))} for _ in range(20)]
    (layer,) = refined(gemm(6, rows=4), constant, refinement)
    assert layer.after <= layer.before
    if isinstance(refinement, Rounding | Gptq):
        assert layer.method == "bias correction" and "the same in all samples" in layer.note


@each_refinement
def test_a_weight_that_two_nodes_read(refinement):
    constants = {"w": normal(6, 6), "a": normal(6), "b": normal(6)}
    nodes = [node("Gemm", "x w a", "h"), node("Gemm", "h w b", "y")]
    proto = build(nodes, "y", constants, inputs=[info("x", [8, 6])])
    layers = refined(proto, samples(12, 8, 6), refinement)  # each has a copy of its own
    assert len(layers) == 2 and "as it was" not in [one.method for one in layers]
    layers = refined(proto, samples(12, 8, 6), refinement, without=("separate_initializers",))
    assert [one.method for one in layers] == ["as it was"] * 2
    assert all("'w' is read by other nodes too" in one.note for one in layers)


@each_refinement
def test_outputs_that_are_not_finite(refinement):
    """The float model itself overflows before its Clip; where only weights are quantized that is not counted."""
    constants = {"w": normal(6, 4), "b": normal(4), "low": np.float32(-1), "high": np.float32(1)}
    constants["w"][:, 1] = 3e38
    nodes = [node("Gemm", "x w b", "h"), node("Clip", "h low high", "y")]
    proto = build(nodes, "y", constants, inputs=[info("x", [8, 6])])
    positive = [{"x": 10.0 + np.abs(normal(8, 6, seed=seed))} for seed in range(12)]
    (layer,) = refined(proto, positive, refinement, activations=None, biases=None)
    assert "not finite" in layer.note
