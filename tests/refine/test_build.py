from __future__ import annotations

import numpy as np
import pytest

from detent.execute.quantized_walk import QuantizedWalk
from detent.observe.samples import Sample
from detent.refine import problems
from detent.refine.layers import find_layers
from detent.refine.problems import LayerTarget, SampledOutput, _without_rows
from tests.models import XINT8, planned, residual


@pytest.mark.parametrize(("rounding", "ties"), [("half-even", "half_even"), ("dpu", "half_up")])
def test_a_problem_knows_how_the_results_of_its_layer_are_rounded(rounding, ties):
    model, plan = planned(residual(), recipe=XINT8.replace(rounding=rounding))
    layers, _ = find_layers(model, plan.layout)
    walk = QuantizedWalk(model, plan, ["the sample"], 1)
    assert [_without_rows(layer, walk).output_ties for layer in layers.values()] == [ties, ties]


def test_answers_at_some_positions_are_those_of_the_whole_layer(monkeypatch):
    model, plan = planned(residual(), recipe=XINT8)
    layers, _ = find_layers(model, plan.layout)
    walk = QuantizedWalk(model, plan, ["one", "other"], 1)
    seen = 0

    def compare(node):
        nonlocal seen
        layer = layers.get(node)
        if layer is None:
            return
        shape = walk.over_outputs(node, lambda _, output: output.shape)[0]
        positions = np.array([0, 3, 5])
        target = LayerTarget([SampledOutput(shape, positions, np.empty(0, np.float32))] * 2)
        monkeypatch.setattr(problems, "SPARSE", 1.0)
        few = problems.quantized_answers(layer, walk, target)
        monkeypatch.setattr(problems, "SPARSE", 0.0)
        whole = problems.quantized_answers(layer, walk, target)
        np.testing.assert_allclose(few, whole, rtol=1e-5, atol=1e-5)
        seen += np.std(whole) > 0

    rng = np.random.default_rng(3)
    for index in range(2):
        shapes = {
            str(value.name): [each if isinstance(each, int) else 1 for each in value.shape]
            for value in model.graph.inputs
        }
        feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        walk.start(index, Sample(index, "it", feeds))
    walk.run(compare)
    assert seen == len(layers) > 0
