from __future__ import annotations

import pytest

import detent
from detent.results.advice import agreement, judge
from detent.results.tensors import Closeness, Fidelity
from tests.conftest import tiny_model


def fidelity(*sqnr, same=None, samples=16, silent=None):
    outputs = {f"y{at}": Closeness(each, 0.0, 0.0) for at, each in enumerate(sqnr)}
    return Fidelity(outputs, {}, samples, same, silent=silent or {})


@pytest.mark.parametrize(
    ("figures", "level"),
    [
        (fidelity(20.0), "close"),
        (fidelity(19.9), "large"),
        (fidelity(30.0, 19.9), "large"),
        (fidelity(10.0, same=16), "close"),
        (fidelity(9.9, same=16), "large"),
        (fidelity(30.0, same=15), "close"),  # 1 of 16
        (fidelity(30.0, same=14), "unclear"),
        (fidelity(30.0, same=5), "unclear"),
        (fidelity(30.0, same=4), "large"),  # 12 of 16: at least 50.5 % of all
        (fidelity(30.0, same=360, samples=400), "close"),
        (fidelity(30.0, same=359, samples=400), "unclear"),
        (fidelity(30.0, same=175, samples=400), "large"),
        (fidelity(9.9, same=12), "large"),
    ],
)
def test_verdicts(figures, level):
    assert judge(figures).level == level


def test_an_output_that_is_next_to_nothing_in_float_tells_nothing():
    faint = fidelity(0.0, silent={"y0": 3e-6})
    assert judge(faint).level == "unclear"
    assert "at most 3e-06 in float: these samples hardly exercise the model" in judge(faint).reason
    assert judge(fidelity(0.0, silent={"y0": 0.5})).level == "large"
    assert judge(fidelity(0.0, 5.0, silent={"y0": 3e-6})).reason == "output SQNR 5.0 dB"  # of the other


def test_a_count_has_its_interval():
    assert agreement(fidelity(30.0, same=11)) == "11 of 16 (95 % interval 44 .. 86 %)"


def test_the_json_has_the_verdict_of_the_terminal_and_the_page(samples):
    report = detent.quantize(tiny_model(), None, samples)
    found = report.to_dict()["fidelity"]
    assert found["verdict"] == judge(report.fidelity).level == "close"
    assert found["why"] == ""
    assert (found["same_top1_interval"] is None) == (report.fidelity.same_top1 is None)
