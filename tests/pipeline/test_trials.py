"""What may help a bad result is measured before it is suggested."""

from __future__ import annotations

import pytest

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.numerics.formats import IntegerFormat
from detent.pipeline import trials
from detent.pipeline.job import change_recipe
from detent.results.verdict import worst_sqnr

COARSE = detent.find_recipe("A8W8").replace(weights=IntegerFormat("int4"), equalize=False)
PER_CHANNEL = "--set weights.granularity=per_channel"


@pytest.fixture
def unhurried(monkeypatch):
    monkeypatch.setattr(trials, "LEAST_SECONDS", 1e6)
    monkeypatch.setattr(trials, "MOST_SECONDS", 1e6)


def quantized(recipe=COARSE, **options):
    return detent.quantize(MODEL, None, CALIBRATION, recipe, preprocess=PREPROCESS, **options)


def test_what_is_measured_is_what_the_options_give(unhurried):
    report = quantized(try_advice=True)
    assert report.judgement.level in ("worse", "broken")
    found = {trial.options: trial for trial in report.trials}
    assert {"--activations int16", PER_CHANNEL} <= set(found)
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


def test_16_bits_for_what_costs_most_are_tried_before_16_bits_for_all():
    recipe = detent.find_recipe("A8W8")
    changes = dict(trials.changes_of(recipe))
    assert list(changes)[:2] == ["--widen 20", "--activations int16"]
    assert changes["--widen 20"] == change_recipe(recipe, {"set": (), "widen": 20.0})
    assert "--widen 20" not in dict(trials.changes_of(changes["--widen 20"]))


def test_two_gates_are_tried_where_a_sigmoid_was_exchanged_and_not_asked_for_already():
    recipe = detent.find_recipe("XINT8")
    changes = dict(trials.changes_of(recipe, hardened=True))
    assert list(changes) == ["--set also=silu_to_two_gates", "--refine Rounding"]
    again = trials.changes_of(changes["--set also=silu_to_two_gates"], hardened=True)
    assert [options for options, _ in again] == ["--refine Rounding"]


def test_one_that_would_not_end_in_time_is_not_begun(monkeypatch):
    begun = []
    monkeypatch.setattr(trials, "_measured", lambda tried, *_: begun.append(tried.options))
    monkeypatch.setattr(trials, "LEAST_SECONDS", 1e6)
    monkeypatch.setattr(trials, "MOST_SECONDS", 20.0)
    clock = iter(range(0, 10**6, 6))
    monkeypatch.setattr(trials, "perf_counter", clock.__next__)
    costs = {"--activations int16": 2.0, PER_CHANNEL: 1.0}
    monkeypatch.setattr(trials._Change, "seconds", lambda tried, *_: costs.get(tried.options, 15.0))
    quantized(try_advice=True)
    # The end is at 20; the others would end at 6 + 1, 12 + 2 and 18 + 15.
    assert begun == [PER_CHANNEL, "--activations int16"]
