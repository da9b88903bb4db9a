"""The shift of a detector's scores inside a run: computed on what the file will compute, kept only if it helps."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.pipeline import refined
from tests.models import build, node, normal

SAMPLES = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(24)]


def scores():
    """Two layers, and scores by a Sigmoid that stays float."""
    weights = {"w": normal(6, 3, 1, 1), "b": normal(6, seed=1), "v": normal(4, 6, 1, 1, seed=2), "d": normal(4, seed=3)}
    nodes = [
        node("Conv", "x w b", "p"),
        node("Relu", "p", "q"),
        node("Conv", "q v d", "l"),
        node("Sigmoid", "l", "s", name="scores"),
    ]
    return build(nodes, "s", weights)


def quantize(**options):
    return detent.quantize(scores(), None, SAMPLES, exclude=["scores"], equalize=False, **options)


@pytest.mark.parametrize("rounding", ["half-even", "dpu"])
def test_a_shift_that_harms_is_not_kept(monkeypatch, rounding):
    expected = quantize(rounding=rounding)
    monkeypatch.setattr(refined, "common_shift", lambda pairs: 2.0)
    report = quantize(rounding=rounding)
    assert report.model.SerializeToString() == expected.model.SerializeToString()


def test_a_shift_that_helps_is_kept_and_told(monkeypatch):
    """Biases that bias correction set wrong by 2 are brought back."""
    wrong = refined.refine

    def refine(model, reference, plan, *rest, **options):
        plan, layers = wrong(model, reference, plan, *rest, **options)
        biases = np.asarray(plan.refined.get("d", normal(4, seed=3))) + np.float32(2)
        return plan.with_refined({"d": biases}), layers

    monkeypatch.setattr(refined, "refine", refine)
    monkeypatch.setattr(refined, "_best", lambda judged, candidates: (candidates[-1], []))  # not the plan without it
    report = quantize(recipe="A8W8")
    (note,) = [layer.note for layer in report.refined if "scores shifted" in layer.note]
    assert float(note.removeprefix("scores shifted by ")) == pytest.approx(-2, abs=0.15)
    assert report.fidelity.outputs["s"].sqnr_db > 25
