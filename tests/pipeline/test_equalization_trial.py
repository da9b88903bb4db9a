"""Equalization with few samples: kept only if the answers on other samples are closer with it."""

from __future__ import annotations

import numpy as np
import pytest

import detent
from detent.pipeline import judged, observed
from tests.models import conv_relu_conv, normal

FEW = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(16)]


def quantize(samples=FEW, **options):
    return detent.quantize(conv_relu_conv(), None, samples, refine="none", task="regress", **options)


def written(report):
    return report.model.SerializeToString()


@pytest.fixture
def errors(monkeypatch):
    """What the judge says, first of the equalized model; the number of plans that it has looked at."""
    said, seen = [1.0, 2.0], []

    def error(self, model, plan):
        seen.append(plan)
        return said[len(seen) - 1]

    monkeypatch.setattr(judged.JudgedOutputs, "error", error)
    return said, seen


def test_what_helps_is_kept(monkeypatch, errors):
    report = quantize()
    assert len(errors[1]) == 2 and report.equalization.channels and not report.remarks
    monkeypatch.setattr(observed, "TRUSTED", 0)
    assert written(report) == written(quantize())


def test_what_harms_is_taken_back_and_told(errors):
    errors[0][:] = [2.0, 1.0]
    report = quantize()
    assert written(report) == written(quantize(equalize=False))
    assert report.equalization.channels == 0
    assert any("Equalization was taken back" in remark for remark in report.remarks)


def test_statistics_are_saved_as_they_were_chosen(errors, tmp_path):
    errors[0][:] = [2.0, 1.0]
    first = quantize(save_stats=tmp_path / "s")
    assert written(first) == written(quantize(stats=tmp_path / "s"))


def test_many_samples_are_trusted(errors):
    quantize([{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(observed.TRUSTED)])
    assert not errors[1]


def test_channels_that_few_samples_did_not_show(monkeypatch):
    """One sample shows each channel small; the others, held out too, are ten times as large: stretching them clips."""
    small = [{"x": np.float32(0.1) * one["x"]} for one in FEW]
    samples = [one if at % 8 == 7 else other for at, (one, other) in enumerate(zip(FEW, small, strict=True))]
    chosen = quantize(samples).fidelity.outputs["y"].sqnr_db
    monkeypatch.setattr(observed, "TRUSTED", 0)
    on, off = (quantize(samples, equalize=each).fidelity.outputs["y"].sqnr_db for each in (True, False))
    assert chosen == max(on, off)
