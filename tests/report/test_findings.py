from __future__ import annotations

import dataclasses

import detent
from detent.report.documents import text_of
from detent.report.listings import serious, subject_of
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


def test_what_keeps_all_of_it_off_the_device_is_an_error_and_a_node_a_warning():
    check = detent.check(build([node("Selu", "x", "a"), node("Conv", "a w", "y")], "y", {"w": normal(4, 3, 1, 1)}))
    partly = dataclasses.replace(check, findings=[finding("a")], verdict="partly", device_nodes=1)
    assert [is_error for is_error, _ in serious(partly)] == [False]
    whole = dataclasses.replace(partly, findings=[finding("a"), finding("", "", "all")], verdict="rejected")
    assert [is_error for is_error, _ in serious(whole)] == [True, False]
    nothing = dataclasses.replace(partly, verdict="rejected", device_nodes=0)
    assert [is_error for is_error, _ in serious(nothing)] == [True]


def test_a_fix_is_shown():
    check = detent.check(build([node("Selu", "x", "a"), node("Conv", "a w", "y")], "y", {"w": normal(4, 3, 1, 1)}))
    assert "fix: let it run on the CPU (`detent quantize --exclude NODE`)" in shown(check)
    assert "On the CPU: Selu 1." in shown(check)
