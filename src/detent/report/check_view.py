"""The check of a model for a device as text: the verdict, then every finding once with the nodes it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from detent.report.names import printable
from detent.results.checked import MODEL, DeviceCheck, FindingGroup, grouped, operators_left, summary

_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}
_SHOWN = 4


def print_check(check: DeviceCheck, console: Console) -> None:
    """What a user should know, most important first. Names are printed as they are, never as markup."""
    console.print(Text(printable(check.source), "bold"), soft_wrap=True)
    console.print(Text(summary(check), "green" if check.accepted else "bold"), soft_wrap=True)
    left = operators_left(check)
    if left and check.target != "cpu":
        listed = ", ".join(f"{printable(op_type)} {count}" for op_type, count in left.items())
        console.print(Text(f"On the CPU: {listed}."), soft_wrap=True)
    for group in grouped(check.findings):
        finding = group.finding
        line = Text(finding.level, _STYLES[finding.level])
        line.append(f"  {subject_of(group)}: {printable(finding.what)}", "default")
        console.print(line, soft_wrap=True)
        console.print(Text(f"    {printable(finding.why)}"), soft_wrap=True)
        if finding.fix:
            console.print(Text(f"    fix: {printable(finding.fix)}"), soft_wrap=True)


def subject_of(group: FindingGroup) -> str:
    """The nodes that a finding is about, or the model."""
    if group.finding.node == MODEL:
        return "the model"
    if len(group.operators) == 1:
        return f"{printable(group.finding.op_type)} {names_of(group.nodes)}"
    counts = sorted(group.operators.items(), key=lambda item: -item[1])
    return f"{len(group.nodes)} nodes ({', '.join(f'{printable(op_type)} {count}' for op_type, count in counts)})"


def names_of(nodes: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(f"'{printable(name)}'" for name in nodes[:_SHOWN])
    return shown if len(nodes) <= _SHOWN else f"{shown} and {len(nodes) - _SHOWN} more"


@dataclass(frozen=True)
class DeviceNote:
    """A finding as a sentence. It is an error where the device takes nothing of the model for it."""

    is_error: bool
    said: str


def device_notes(check: DeviceCheck) -> list[DeviceNote]:
    """What is in the way, for the report of a quantization: errors first."""
    serious = [finding for finding in check.findings if finding.level != "note"]
    return [_device_note(group, check) for group in grouped(serious)]


def _device_note(group: FindingGroup, check: DeviceCheck) -> DeviceNote:
    finding = group.finding
    about_all = finding.node == MODEL or not check.device_nodes
    said = f"{subject_of(group)}: {printable(f'{finding.what}; {finding.why}. Fix: {finding.fix}.')}"
    return DeviceNote(check.verdict == "rejected" and finding.level == "error" and about_all, said)
