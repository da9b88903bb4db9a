from __future__ import annotations

import pytest

from detent.execute.quantized_walk import QuantizedWalk
from detent.refine.layers import find_layers
from detent.refine.problems import _without_rows
from tests.models import XINT8, planned, residual


@pytest.mark.parametrize(("rounding", "ties"), [("half-even", "half_even"), ("dpu", "half_up")])
def test_a_problem_knows_how_the_results_of_its_layer_are_rounded(rounding, ties):
    model, plan = planned(residual(), recipe=XINT8.replace(rounding=rounding))
    layers, _ = find_layers(model, plan.layout)
    walk = QuantizedWalk(model, plan, ["the sample"], 1)
    assert [_without_rows(layer, walk).output_ties for layer in layers.values()] == [ties, ties]
