"""The verdict follows from the task's measure, from parts, and from doubts about the data."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import detent
from detent.results.tensors import Closeness, Fidelity, PartCloseness, TaskAgreement, TensorReport
from detent.results.verdict import dead_parts, judge
from tests.conftest import tiny_model


def fidelity(*sqnr, same=None, samples=16, silent=None, parts=None, agreement=None):
    outputs = {f"y{at}": Closeness(each, 0.0, 0.0) for at, each in enumerate(sqnr)}
    return Fidelity(outputs, {}, samples, same, silent=silent or {}, parts=parts or {}, agreement=agreement)


def answers(task, loss, interval, samples=32, **figures):
    return TaskAgreement(task, "by test", samples, loss, interval, figures, f"lost {loss}")


def part(label, sqnr, peak=1.0, constant=False):
    return PartCloseness(label, 1, 0, 4, Closeness(sqnr, 0.0, 0.0), peak, constant, f"node_{label}")


@pytest.mark.parametrize(
    ("figures", "level"),
    [
        (fidelity(20.0), "close"),
        (fidelity(19.9), "worse"),
        (fidelity(30.0, 19.9), "worse"),
        (fidelity(2.9), "broken"),
        (fidelity(-math.inf), "broken"),
        (fidelity(30.0, parts={"y0": [part("a", 30.0), part("b", 19.0)]}), "unclear"),
        (fidelity(30.0, parts={"y0": [part("a", 30.0), part("b", 9.0)]}), "worse"),
        (fidelity(30.0, parts={"y0": [part("a", 30.0), part("b", 2.0)]}), "broken"),
        (fidelity(30.0, parts={"y0": [part("a", 30.0), part("b", 30.0, constant=True)]}), "broken"),
        (fidelity(30.0, parts={"y0": [part("a", 30.0), part("b", 0.0, peak=0.0)]}), "close"),
    ],
)
def test_verdicts_by_noise(figures, level):
    assert judge(figures).level == level


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (answers("classify", 0.0, (0.0, 0.029)), "close"),
        (answers("classify", 0.009, (0.0, 0.04)), "close"),
        (answers("classify", 0.0, (0.0, 0.029), same_top1_high=0.8), "close"),
        (
            answers("classify", 0.0, (0.0, 0.029), same_top1_high=0.7),
            "unclear",
        ),  # float is unsure, so changes cost little
        (answers("classify", 0.009, (0.0, 0.04), same_top1_high=0.7), "unclear"),
        (answers("classify", 0.009, (0.0, 0.04), samples=31), "unclear"),
        (answers("classify", 0.03, (0.01, 0.06)), "unclear"),
        (answers("classify", 0.03, (0.016, 0.06)), "worse"),
        (answers("classify", 0.5, (0.3, 0.6)), "broken"),
        (answers("classify", 0.5, (0.5, 0.5), samples=2), "unclear"),
        (answers("detect", 0.01, (0.0, 0.02), confident=1.0), "close"),
        (answers("detect", 0.01, (0.0, 0.02), confident=0.0), "unclear"),
        (answers("detect", 0.5, (0.4, 0.6), confident=0.0), "unclear"),
        (answers("detect", None, None), "unclear"),
        (answers("segment", 0.05, (0.04, 0.06)), "worse"),
        (answers("embed", 0.01, None, cosine=0.99), "close"),
        (answers("embed", 0.01, None, cosine=0.8), "unclear"),
        (answers("embed", 0.1, None, cosine=0.99), "unclear"),
        (answers("embed", 0.3, None, cosine=0.99), "worse"),
        (answers("embed", None, None, cosine=0.999), "close"),
        (answers("image", None, None, psnr_db=40.0), "close"),
        (answers("image", None, None, psnr_db=30.0), "unclear"),
        (answers("image", None, None, psnr_db=20.0), "worse"),
        (answers("image", None, None, psnr_db=5.0), "broken"),
    ],
)
def test_verdicts_by_task(found, level):
    assert judge(fidelity(30.0, samples=found.samples, agreement=found)).level == level


@pytest.mark.parametrize(("peak", "sqnr", "level"), [(0.9, 0.0, "broken"), (0.01, 0.0, "unclear"), (0.9, 0.4, "worse")])
def test_a_score_that_is_zero_for_every_sample_is_no_answer(peak, sqnr, level):
    """It is right about all samples that are not of the class, which may be most; noise may still have the order."""
    rare = answers("classify", 0.1, (0.05, 0.15))
    assert judge(fidelity(sqnr, silent={"y0": peak}, agreement=rare)).level == level


def test_doubtful_data_tells_nothing_good():
    close, worse = fidelity(30.0), fidelity(15.0)
    assert judge(close, ["All samples are the same."]).level == "unknown"
    assert judge(close, ["All samples are the same."]).reason == "All samples are the same"
    assert judge(worse, ["All samples are the same."]).level == "worse"


def test_an_output_that_is_next_to_nothing_in_float_tells_nothing():
    faint = fidelity(0.0, silent={"y0": 3e-6})
    assert judge(faint).level == "unclear"
    assert "at most 3e-06 in float: these samples hardly exercise the model" in judge(faint).reason
    assert judge(fidelity(0.0, silent={"y0": 0.004})).level == "unclear"  # a score of which 8 bits make 0
    assert judge(fidelity(0.0, silent={"y0": 0.5})).level == "broken"
    assert judge(fidelity(0.0, 5.0, silent={"y0": 3e-6})).level == "worse"  # by the other
    assert dead_parts(faint) == []


@pytest.mark.parametrize("task", ["regress", "embed", "image"])
def test_small_numbers_that_die_are_broken(task):
    figures = answers(task, None, None, cosine=0.0, psnr_db=5.0)
    assert judge(fidelity(0.0, silent={"y0": 0.004}, agreement=figures)).level == "broken"


def test_maps_of_detections_are_not_broken_by_their_background():
    """What is read as boxes is judged by boxes, but a map that is mostly noise is not close."""
    kept = fidelity(2.0, 30.0, agreement=answers("detect", 0.0, (0.0, 0.0), confident=1.0))
    assert judge(kept).level == "unclear" and "'y0'" in judge(kept).reason and not dead_parts(kept)
    lost = fidelity(2.0, 30.0, agreement=answers("detect", 0.2, (0.15, 0.25), confident=1.0))
    assert judge(lost).level == "worse"
    unsure = fidelity(2.0, 30.0, agreement=answers("detect", 0.0, (0.0, 0.0), confident=0.0))
    assert judge(unsure).level == "broken"


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_a_dead_output_is_never_close_whatever_the_answers_say(task):
    agree = answers(task, 0.0, (0.0, 0.0), confident=1.0)
    dead = fidelity(0.0, 30.0, silent={"y0": 0.9}, agreement=agree)
    assert judge(dead).level == "broken" and "'y0'" in judge(dead).reason and len(dead_parts(dead)) == 1
    # A score map that is 0 throughout, and in which float itself is sure of nothing, was not exercised.
    unseen = fidelity(0.0, 30.0, silent={"y0": 0.02}, agreement=agree)
    assert judge(unseen).level == "unclear" and "'y0'" in judge(unseen).reason and not dead_parts(unseen)


def test_a_dead_part_is_named_with_its_cause():
    joined = fidelity(30.0, parts={"y0": [part("boxes", 30.0, 640.0), part("scores", 0.0, 0.9, constant=True)]})
    (text,) = dead_parts(joined)
    for named in ("'scores' of output 'y0'", "node_scores", "'boxes' (up to 640"):
        assert named in text
    assert "'scores' of output 'y0'" in judge(joined).reason
    alone = fidelity(30.0, parts={"y0": [part("a", 1.0), part("b", 30.0)]})
    assert "detent compare" in dead_parts(alone)[0]


def test_scores_that_are_joined_in_float_share_no_scale():
    boxes, scores = part("boxes", 30.0, 640.0), part("scores", 1.0, 0.9)
    joined = fidelity(30.0, parts={"y0": [boxes, scores]})
    noise, grid = Closeness(1.0, 0.0, 0.0), ("uint8", 0, 1.0, 128, None, -1.0, 1.0, 0.0, None)
    inner, output = (TensorReport(n, "activation", node, *grid, noise) for n, node in (("x", "conv"), ("y0", "join")))
    assert "'conv'" in dead_parts(joined, [inner])[0] and "--exclude conv" in dead_parts(joined, [inner])[0]
    assert "under one scale" in (text := dead_parts(joined, [inner, output])[0]) and "--exclude join" in text


def test_scores_of_a_detector_that_is_sure_of_nothing_tell_nothing():
    unsure = answers("detect", 0.5, (0.4, 0.6), confident=0.0)
    noisy = fidelity(30.0, parts={"y0": [part("boxes", 30.0, 640.0), part("scores", 1.0, 0.1)]}, agreement=unsure)
    assert judge(noisy).level == "unclear" and dead_parts(noisy) == []
    still = fidelity(30.0, parts={"y0": [part("scores", 1.0, 0.1, constant=True)]}, agreement=unsure)
    assert judge(still).level == "broken"


def test_the_json_has_the_verdict_of_the_terminal_and_the_page(samples):
    report = detent.quantize(tiny_model(), None, samples)
    found = report.to_dict()["fidelity"]
    assert found["verdict"] == report.judgement.level
    assert found["why"] == report.judgement.reason
    assert (found["same_top1_interval"] is None) == (report.fidelity.same_top1 is None)
    assert found["agreement"]["task"] == "segment"


@pytest.mark.parametrize(
    ("sqnr", "loss", "level"),
    [(25.0, 0.0, "close"), (15.0, 0.0, "unclear"), (2.0, 0.0, "broken"), (25.0, 0.1, "worse"), (2.0, 0.1, "broken")],
)
def test_a_number_beside_classes_is_judged_too(sqnr, loss, level):
    """Classes count by their order, so their noise of 10 dB is nothing; the age beside them counts by its noise."""
    agreement = answers("classify", loss, (0.9 * loss, 1.1 * loss))
    outputs = {"kind": Closeness(10.0, 0.0, 0.0), "age": Closeness(sqnr, 0.0, 0.0)}
    found = judge(Fidelity(outputs, {}, 32, 32, agreement=agreement, beside=["age"], numbers=["age"]))
    assert found.level == level
    assert "'age'" in found.reason or sqnr >= 20.0


@pytest.mark.parametrize(("sqnr", "level"), [(12.0, "close"), (8.0, "unclear"), (-30.0, "broken")])
def test_features_beside_classes_must_still_say_something(sqnr, level):
    outputs = {"kind": Closeness(5.0, 0.0, 0.0), "features": Closeness(sqnr, 0.0, 0.0)}
    agreement = answers("classify", 0.0, (0.0, 0.01))
    assert judge(Fidelity(outputs, {}, 32, 32, agreement=agreement, beside=["features"])).level == level


@pytest.mark.parametrize(
    ("figures", "level"),
    [
        ({}, "close"),
        ({"error_of_spread": 0.2}, "close"),
        ({"error_of_spread": 0.5}, "unclear"),
        ({"error_of_spread": 0.8}, "worse"),
        ({"error_of_spread": 1.2}, "broken"),
        ({"still": 1.0}, "unclear"),
    ],
)
def test_numbers_must_differ_as_those_of_float_do(figures, level):
    assert judge(fidelity(40.0, agreement=answers("regress", None, None, **figures))).level == level


def test_tags_that_float_does_not_see_tell_nothing():
    unsure = answers("tag", 0.5, (0.4, 0.6), confident=0.0)
    assert judge(fidelity(1.0, agreement=unsure)).level == "unclear"
    assert judge(fidelity(1.0, agreement=answers("tag", 0.0, (0.0, 0.01), confident=1.0))).level == "close"


def test_infinities_inside_are_judged_by_the_outputs():
    """A mask of minus infinity may fall elsewhere: Closeness has no other figure for that than minus infinity."""
    wild = replace(fidelity(40.0), tensors={"mask": Closeness(-math.inf, 0.0, 0.0)})
    assert judge(wild).level == "close"
    assert judge(fidelity(-math.inf)).level == "broken"


def test_answers_of_another_length_are_not_close():
    """The noise is that of the answers that kept their shape: with few of them it says little."""
    for reshaped, level in ((0, "close"), (3, "unclear"), (12, "worse")):
        judged = judge(replace(fidelity(40.0), resized=["y0"] if reshaped else [], reshaped=reshaped))
        assert judged.level == level and (not reshaped or f"{reshaped} of 16" in judged.reason)
