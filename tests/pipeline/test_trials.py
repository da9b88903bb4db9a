"""What may help a bad result is measured before it is suggested."""

from __future__ import annotations

import pytest

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.numerics.formats import IntegerFormat
from detent.pipeline import trials
from detent.results.verdict import worst_sqnr

COARSE = detent.find_recipe("A8W8").replace(weights=IntegerFormat("int4"), equalize=False)
PER_CHANNEL = "--set weights.granularity=per_channel"


@pytest.fixture
def unhurried(monkeypatch):
    monkeypatch.setattr(trials, "LEAST_SECONDS", 1e6)


def quantized(recipe=COARSE, **options):
    return detent.quantize(MODEL, None, CALIBRATION, recipe, preprocess=PREPROCESS, **options)


def test_what_is_measured_is_what_the_options_give(unhurried):
    report = quantized(try_advice=True)
    assert report.judgement.level in ("worse", "broken")
    found = {trial.options: trial for trial in report.trials}
    assert list(found)[:2] == ["--activations int16", PER_CHANNEL]
    again = quantized(set=["weights.granularity=per_channel"])
    assert found[PER_CHANNEL].before == worst_sqnr(report.fidelity)
    assert found[PER_CHANNEL].after == worst_sqnr(again.fidelity) > found[PER_CHANNEL].before + 5
    assert report.suggestions[0].startswith(PER_CHANNEL) and "measured here" in report.suggestions[0]
    assert report.model.SerializeToString() == quantized().model.SerializeToString(), "trials change nothing"


def test_a_good_result_is_left_alone(unhurried):
    assert quantized("XINT8", try_advice=True).trials == ()


def test_trials_end_with_their_time(monkeypatch):
    monkeypatch.setattr(trials, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(trials, "perf_counter", iter(range(0, 10**9, 10**6)).__next__)
    assert quantized(try_advice=True).trials == ()


def test_a_power_of_two_device_is_offered_nothing_that_it_cannot_take():
    assert [options for options, _ in trials.changes_of(detent.find_recipe("XINT8"))] == ["--refine Rounding"]
