from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.errors import ModelError
from detent.pipeline import prepared
from tests.models import build, node, normal


def test_nearly_tied_scores_before_a_top_k_are_told_and_what_differs_before_it_is_an_error(monkeypatch):
    proto = build(
        [
            node("Conv", "x w", "s"),
            node("Reshape", "s flat", "f"),
            node("TopK", "f k", "v i"),
            node("Cast", "i", "y", to=1),
        ],
        "y",
        {"w": normal(2, 3, 1, 1), "flat": np.array([1, -1]), "k": np.array([5])},
    )
    data = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(3)]
    answer = prepared.Original.__call__
    # As another optimization of the same model may order ties.
    other_order = lambda self, sample: {name: array[:, ::-1] for name, array in answer(self, sample).items()}
    monkeypatch.setattr(prepared.Original, "__call__", other_order)
    report = detent.quantize(proto, None, data, "A8W8")
    assert [remark for remark in report.remarks if "TopK" in remark and "'y'" in remark]
    monkeypatch.setattr(prepared, "_difference", lambda before, after: 1.0)
    with pytest.raises(ModelError, match="'y'"):
        detent.quantize(proto, None, data, "A8W8")
