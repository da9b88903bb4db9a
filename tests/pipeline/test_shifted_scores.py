"""The shift of a detector's scores inside a run: computed on what the file will compute, kept only if it helps."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.pipeline import refined
from detent.refine import score_heads
from tests.models import build, node, normal, run

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
    monkeypatch.setattr(score_heads, "common_shift", lambda pairs: 2.0)
    report = quantize(rounding=rounding)
    assert report.model.SerializeToString() == expected.model.SerializeToString()


def test_a_shift_that_helps_is_kept_and_told(monkeypatch):
    """Biases that bias correction set wrong by 2 are brought back."""
    wrong = refined.refine

    def refine(model, reference, plan, *rest, **options):
        plan, layers = wrong(model, reference, plan, *rest, **options)
        biases = np.asarray(plan.refined.get("d", normal(4, seed=3))) + np.float32(2)
        (pairs,) = options["logits"]._pairs.values()
        pairs[:] = [(found + np.float32(2), expected) for found, expected in pairs]
        return plan.with_refined({"d": biases}), layers

    monkeypatch.setattr(refined, "refine", refine)
    monkeypatch.setattr(refined, "_best", lambda found, candidates: (candidates[1], []))  # not the plan without it
    report = quantize(recipe="A8W8")
    (note,) = [layer.note for layer in report.refined if "scores shifted" in layer.note]
    assert float(note.removeprefix("scores shifted by ")) == pytest.approx(-2, abs=0.15)
    assert report.fidelity.outputs["s"].sqnr_db > 25


def test_logits_of_the_walk_are_those_of_the_file(monkeypatch):
    """What the heads answer on the way is what the quantized model and the float model compute."""
    taken = []
    monkeypatch.setattr(score_heads, "common_shift", lambda pairs: taken.append(pairs) or 0.0)
    monkeypatch.setattr(score_heads, "COLD", -np.inf)
    report = quantize(recipe="A8W8")
    (pairs,) = taken
    learned = [each for at, each in enumerate(SAMPLES) if at % 8 != 7][:16]
    assert len(pairs) == len(learned)
    for model, side in ((scores(), 1), (report.model, 0)):
        found = np.stack([run(model, feeds)["s"].reshape(-1) for feeds in learned])
        np.testing.assert_allclose([1 / (1 + np.exp(-pair[side])) for pair in pairs], found, atol=2e-3)
