from __future__ import annotations

import math

from detent.plan.layout import Decision
from detent.prepare.base import Change
from detent.recipe.file import find_recipe
from detent.results.quantized import Calibration, Report
from detent.results.tensors import Closeness, Fidelity, TaskAgreement, TensorReport

XINT8 = find_recipe("XINT8")
GOOD = Calibration("128 images", 128, False, None, "")
NODES = [Decision(name, "Conv", True, "quantized") for name in ("a", "b", "c")]


def report(recipe=XINT8, nodes=(), **facts):
    """Build a report of a calibrated run with these facts."""
    facts = {"changes": (), "declined": (), "calibration": GOOD, "bytes_before": 1, "seconds": {}, **facts}
    return Report("model.onnx", None, recipe, nodes, **facts)


def tensor(name, sqnr, clipped=0.0):
    return TensorReport(
        name, "activation", name, "uint8", 0, 1.0, 128, None, -1.0, 1.0, clipped, None, Closeness(sqnr, 0.0, 0.0)
    )


def fidelity(sqnr, agreement=None):
    return Fidelity({"y": Closeness(sqnr, 0.0, 0.0)}, {}, 16, None, agreement=agreement)


def classes(loss, low, high):
    return TaskAgreement("classify", "", 16, loss, (low, high), {}, f"expected loss {loss}")


def test_nothing_to_say_about_a_good_result():
    assert report(fidelity=fidelity(30)).suggestions == []
    assert report(fidelity=fidelity(15, classes(0.001, 0.0, 0.02))).suggestions == []
    assert report(nodes=NODES, fidelity=fidelity(30)).warnings == []


def test_a_large_loss_names_its_cause():
    tensors = [tensor("a", 30.0), tensor("b", 12.0, clipped=0.02), tensor("c", 11.0)]
    guessed = Calibration("", 8, False, None, "Guessed: mean")
    said = " ".join(report(nodes=NODES, fidelity=fidelity(9), calibration=guessed, tensors=tensors).suggestions)
    assert "9.0 dB" in said
    assert "guessed" in said
    assert "Few calibration samples (8)" in said
    assert "--exclude 'b'" in said
    assert "--exclude 'c'" not in said
    assert "NonOverflow" in said


def test_a_few_classes_that_change_are_told_and_not_judged():
    few = fidelity(16, classes(0.02, 0.0, 0.06))
    (said,) = report(nodes=NODES, fidelity=few, tensors=[tensor("a", 9.0)]).suggestions
    assert said.startswith("expected loss 0.02. More samples")


def test_most_classes_that_change_are_a_large_loss():
    said = report(fidelity=fidelity(30, classes(0.4, 0.2, 0.6))).suggestions[0]
    assert said.startswith("The loss is large: expected loss 0.4")


def test_doubts_about_the_data_come_first():
    doubtful = Calibration("8 images", 8, False, None, "", ["All 8 samples are the same."])
    made = report(fidelity=fidelity(30), calibration=doubtful, in_sample=True)
    assert made.warnings[0] == "All 8 samples are the same."
    assert made.judgement.level == "unknown"
    assert made.suggestions == ["All 8 samples are the same."]


def test_warnings():
    decisions = [*NODES, Decision("choice", "If", False, "control flow: the graphs inside stay float")]
    random = Calibration("random", 8, True, None, "")
    constant = TensorReport("still", "activation", "a", "uint8", 0, 1.0, 128, None, 0.0, 0.0, 0.0)
    changes = [Change("m", "converted", "HalfToFloat"), Change("s", "hard", "SigmoidToHardSigmoid")]
    declined = [Change("model", "shape inference failed: because", "InferShapes")]
    measured = Fidelity({}, {"odd": Closeness(-math.inf, 0.0, 0.0)}, 1, None, ["boxes"])
    done = report(
        nodes=decisions,
        changes=changes,
        declined=declined,
        calibration=random,
        tensors=[constant],
        fidelity=measured,
        in_sample=True,
    )
    said = " ".join(done.warnings)
    for word in (
        "because",
        "float16",
        "'s'",
        "'odd' is NaN",
        "'boxes' depends",
        "random data",
        "held out",
        "'choice'",
        "'still' had the same value",
    ):
        assert word in said
