from __future__ import annotations

import dataclasses

import detent
from detent.report.documents import text_of
from detent.report.listings import device_notes, subject_of
from detent.results.checked import Finding, grouped
from tests.models import build, node, normal


def finding(name: str, op_type: str = "Conv", what: str = "it is wrong", level: str = "error") -> Finding:
    return Finding(level, name, op_type, what, "because", "`do`")


def shown(check) -> str:
    return text_of(check, 80)


def test_equal_findings_are_one_line():
    found = grouped([finding("", "", "all", "warning"), *(finding(f"n{index}") for index in range(6)), finding("", "")])
    assert [subject_of(each) for each in found] == ["the model", "Conv 'n0', 'n1', 'n2', 'n3' and 2 more", "the model"]


def test_operators_are_counted():
    found = grouped([finding("a"), finding("b", "Relu"), finding("c", "Relu")])
    assert [subject_of(each) for each in found] == ["3 nodes (Relu 2, Conv 1)"]


def test_names_are_no_markup_and_no_terminal_codes():
    nodes = [node("Selu", "x", "a", name="[red]loud[/red]\x1b[31m\nnext"), node("Conv", "a w", "y")]
    check = detent.check(build(nodes, "y", {"w": normal(4, 3, 1, 1)}))
    text = shown(check)
    assert "'[red]loud[/red]\\x1b[31m\\nnext'" in text
    assert "\x1b" not in text
    assert "[red]loud[/red]\\x1b[31m\\nnext" in shown(check)


def notes(check, *findings, **changes) -> list[str]:
    return device_notes(dataclasses.replace(check, findings=findings, **changes), "m.onnx")


def test_nodes_on_the_cpu_are_one_line_with_the_command_for_details():
    check = detent.check(build([node("Selu", "x", "a"), node("Conv", "a w", "y")], "y", {"w": normal(4, 3, 1, 1)}))
    moves, missing = "it only moves data", "the device does not have this operator"
    kinds = ("Gather", "Erf", "Gather", "Tan", "Tanh", "Selu")
    findings = [finding(f"a{at}", op_type, missing) for at, op_type in enumerate(kinds)]
    findings += [finding("b", "Reshape", moves), *(finding(f"c{at}", "Conv", f"it is {at}") for at in range(3))]
    (line,) = notes(check, *findings, verdict="partly", device_nodes=90, cpu_nodes=10, subgraphs=3)
    assert line == (
        "npu-xint8 leaves 10 of 100 nodes to the CPU, and gets the others in 3 subgraphs: 6 that it does not have "
        "(Gather, Erf, Tan and 2 more), 1 that only move data (Reshape), 1 because it is 0 (Conv), 2 for other "
        "reasons. Details: detent check m.onnx --device npu-xint8"
    )


def test_what_keeps_all_of_it_off_the_device_comes_first():
    check = detent.check(build([node("Selu", "x", "a"), node("Conv", "a w", "y")], "y", {"w": normal(4, 3, 1, 1)}))
    about_all = finding("", "", "its batch is open")
    first, second = notes(check, finding("a"), about_all, verdict="rejected", device_nodes=1, cpu_nodes=1)
    assert first.startswith("npu-xint8 runs nothing of it: its batch is open; because. Fix: `do`.")
    assert second.startswith("That mended, it leaves 1 of 2 nodes to the CPU")
    (only,) = notes(check, finding("a"), verdict="rejected", device_nodes=0)
    assert only.startswith("npu-xint8 runs nothing of it: it is wrong")
    assert notes(check, finding("a", level="note"), verdict="accepted") == []
    (minded,) = notes(check, finding("a", level="warning"), finding("b", level="warning"), verdict="accepted")
    assert minded.startswith("2 Conv: it is wrong; because. Details: ")


def test_a_fix_is_shown():
    check = detent.check(build([node("Selu", "x", "a"), node("Conv", "a w", "y")], "y", {"w": normal(4, 3, 1, 1)}))
    assert "fix: let it run on the CPU (`detent quantize --exclude NODE`)" in shown(check)
    assert "On the CPU: Selu 1." in shown(check)
