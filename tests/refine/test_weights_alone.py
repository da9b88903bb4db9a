"""Refining models of which only the weights are quantized: layers follow each other with no codes in between."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.recipe.recipe import PRESETS
from detent.refinements import AdaQuant, AdaRound, BiasCorrection, Rounding
from tests.models import build, conv_relu_conv, info, node, normal

WEIGHTS_ONLY = PRESETS["A8W8"].replace(activations=None, biases=None)
REFINEMENTS = [BiasCorrection(), Rounding(), AdaRound(samples=4, iterations=5), AdaQuant(samples=4, iterations=5)]


@pytest.mark.parametrize("refinement", REFINEMENTS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("operators", [(), ("Conv",)])
def test_convolutions(refinement, operators):
    samples = np.stack([normal(3, 8, 8, seed=seed) for seed in range(6)])
    recipe = WEIGHTS_ONLY.replace(refinement=refinement, operators=operators)
    report = detent.quantize(conv_relu_conv(), None, samples, recipe)
    assert report.fidelity.outputs["y"].sqnr_db > 35
    assert {layer.name for layer in report.refined} == {"conv_c1", "conv_y"}


@pytest.mark.parametrize("refinement", REFINEMENTS, ids=lambda each: type(each).__name__)
def test_groups_of_weights(refinement):
    nodes = [node("Gemm", "x w a", "h"), node("Tanh", "h", "t"), node("Gemm", "t v b", "y")]
    constants = {"w": normal(16, 32), "a": normal(32), "v": normal(32, 8), "b": normal(8)}
    proto = build(nodes, "y", constants, inputs=[info("x", (4, 16))])
    recipe = PRESETS["MATMUL_NBITS"].replace(refinement=refinement)
    report = detent.quantize(proto, None, [{"x": normal(4, 16, seed=seed)} for seed in range(6)], recipe)
    assert report.fidelity.outputs["y"].sqnr_db > 10
