from __future__ import annotations

from detent.measure.fidelity import Closeness, Fidelity
from detent.plan.layout import Decision
from detent.report.advice import suggestions_for, warnings_for
from detent.report.report import Calibration, TensorReport

GOOD = Calibration("128 images", 128, False, None, "")
NODES = [Decision(name, "Conv", True, "quantized") for name in ("a", "b", "c")]


def tensor(name, sqnr, clipped=0.0):
    return TensorReport(name, "activation", name, 0, 1.0, -1.0, 1.0, clipped, None, Closeness(sqnr, 0.0, 0.0))


def fidelity(sqnr, same=None, samples=16):
    return Fidelity({"y": Closeness(sqnr, 0.0, 0.0)}, {}, samples, same)


def test_nothing_to_say_about_a_good_result():
    assert suggestions_for(fidelity(30), GOOD, [], []) == []
    assert suggestions_for(fidelity(15, same=16), GOOD, [], []) == []
    assert warnings_for(GOOD, NODES, [], False, []) == []


def test_a_large_loss_names_its_cause():
    tensors = [tensor("a", 30.0), tensor("b", 12.0, clipped=0.02), tensor("c", 11.0)]
    said = " ".join(suggestions_for(fidelity(9), Calibration("", 8, False, None, "Guessed: mean"), tensors, NODES))
    assert "9.0 dB" in said
    assert "guessed" in said
    assert "Only 8 calibration samples" in said
    assert "--exclude 'b'" in said
    assert "--exclude 'c'" not in said
    assert "NonOverflow" in said


def test_classes_that_change_are_a_large_loss():
    assert "4 of 16" in suggestions_for(fidelity(30, same=12), GOOD, [], [])[0]


def test_warnings():
    decisions = [*NODES, Decision("choice", "If", False, "control flow: the graphs inside stay float")]
    random = Calibration("random", 8, True, None, "")
    said = " ".join(warnings_for(random, decisions, [], True, ["Conv 'a' breaks"]))
    for word in ("Conv 'a' breaks", "random data", "held out", "'choice'"):
        assert word in said
