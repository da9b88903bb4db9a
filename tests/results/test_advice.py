from __future__ import annotations

import math
import shlex

from detent.methods import NonOverflow
from detent.plan.layout import Decision
from detent.prepare.base import Change
from detent.recipe.file import find_recipe
from detent.refinements import Rounding
from detent.results.quantized import Calibration, Report, Trial
from detent.results.tensors import Closeness, Fidelity, TaskAgreement, TensorReport
from detent.results.verdict import exclusions

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
    assert "guessed" in said
    assert "Few calibration samples (8)" in said
    assert "--" not in said, "no setting is suggested that was not measured to help"


def test_the_error_grows_most_at_these_nodes():
    tensors = [tensor("a", 30.0), tensor("b", 12.0), tensor("c", 11.0)]
    assert exclusions(report(nodes=NODES, fidelity=fidelity(9), tensors=tensors)) == (["b"], "--exclude b")


def test_what_was_done_already_is_not_suggested():
    tensors = [tensor("a", 30.0), tensor("b", 12.0, clipped=0.02)]
    done = XINT8.replace(method=NonOverflow(), refinement=Rounding())
    for recipe, verb in ((XINT8, "tune model.onnx OUTPUT"), (done, "sensitivity model.onnx")):
        made = report(recipe, NODES, fidelity=fidelity(9), tensors=tensors)
        said = " ".join((*made.suggestions, *str(made).splitlines()))
        assert "--refine" not in said and "--method" not in said  # neither was measured
        assert str(made).endswith(f"Next: detent {verb} --calib DATA --recipe XINT8")


def test_the_name_of_a_node_is_quoted_for_the_shell():
    odd = "b'; touch x; '"
    tensors = [tensor("a", 30.0), tensor(odd, 12.0)]
    nodes = [Decision(name, "Conv", True, "quantized") for name in ("a", odd)]
    _, options = exclusions(report(nodes=nodes, fidelity=fidelity(9), tensors=tensors))
    assert shlex.split(options) == ["--exclude", odd]


def test_the_verdict_is_told_once():
    few = report(nodes=NODES, fidelity=fidelity(16, classes(0.02, 0.0, 0.06)), tensors=[tensor("a", 9.0)])
    assert few.suggestions == []
    assert str(few).count("expected loss 0.02") == 1
    assert "detent evaluate model.onnx OUTPUT" in str(few).splitlines()[-1]


def test_a_large_loss_is_in_the_last_line():
    made = report(fidelity=fidelity(30, classes(0.4, 0.2, 0.6)))
    assert str(made).splitlines()[-1] == (
        "Worse than float: expected loss 0.4. Next: detent tune model.onnx OUTPUT --calib DATA --recipe XINT8"
    )


def test_the_next_command_reads_images_as_this_one_did():
    given = Calibration("8 images", 64, False, None, "", (), ["--preprocess", "p.json", "--mean", "1,2,3"])
    made = report(fidelity=fidelity(16, classes(0.02, 0.0, 0.06)), calibration=given)
    assert str(made).endswith("--data LABELLED --preprocess p.json --mean 1,2,3")


def test_doubts_about_the_data_come_first():
    doubtful = Calibration("8 images", 8, False, None, "", ["All 8 samples are the same."])
    made = report(fidelity=fidelity(30), calibration=doubtful, in_sample=True)
    assert made.warnings[0] == "All 8 samples are the same."
    assert made.judgement.level == "unknown"
    assert str(made).count("All 8 samples are the same.") == 1


def test_warnings():
    decisions = [*NODES, Decision("choice", "If", False, "control flow: the graphs inside stay float")]
    random = Calibration("random", 8, True, None, "")
    constant = TensorReport("still", "activation", "a", "uint8", 0, 1.0, 128, None, 0.0, 0.0, 0.0)
    changes = [Change("m", "converted", "HalfToFloat")]
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
        "'odd' is NaN",
        "'boxes' depends",
        "random data",
        "held out",
        "'choice'",
        "'still' had the same value",
    ):
        assert word in said


def test_what_was_measured_is_suggested_if_it_helped_and_else_not_named():
    trials = (Trial("--set a=b", 6.1, 19.8), Trial("--refine Rounding", 6.1, 6.3))
    said = report(fidelity=fidelity(6.1, classes(0.3, 0.26, 0.4)), trials=trials).suggestions
    assert said[0] == "--set a=b: measured here, 6.1 dB -> 19.8 dB."
    assert not any("Rounding" in text for text in said)
