"""The document of a check for a device, and the section that it has in the report of a quantization."""

from __future__ import annotations

from pathlib import Path

from detent.report.document import (
    Document,
    KeyFigure,
    Level,
    Note,
    NoteList,
    Paragraph,
    Section,
    Verdict,
    figure,
    named,
    table,
    worded,
)
from detent.report.figures import command, listed
from detent.results.checked import MODEL, DeviceCheck, FindingGroup, grouped, operators_left, summary

SHOWN = 5
"""Findings that a short answer lists."""

_VERDICTS: dict[str, tuple[str, Level]] = {
    "accepted": ("takes it", "good"),
    "partly": ("takes part of it", "warn"),
    "rejected": ("not as it is", "bad"),
}
_FINDING_LEVELS: dict[str, Level] = {"error": "bad", "warning": "warn", "note": "plain"}
_SHOWN_NODES = 4


def check_document(check: DeviceCheck) -> Document:
    """Build the document of a check for a device."""
    left = ", ".join(f"{op_type} {count}" for op_type, count in operators_left(check).items())
    on_cpu = [Paragraph(f"On the CPU: {left}.")] if left and check.target != "cpu" else []
    notes = NoteList([_finding_note(group) for group in grouped(check.findings)], shown=SHOWN)
    found = Section("Findings", blocks=[notes, *on_cpu], on="terminal")
    text, level = _VERDICTS[check.verdict]
    verdict = Verdict(level, f"{check.target} {text}", summary(check))
    sections = [found, device_section(check)]
    closing = [summary(check), _next(check)]
    figures = [device_figure(check)]
    return Document("check", Path(check.source).name, [check.source], (), verdict, figures, sections, closing)


def _next(check: DeviceCheck) -> str:
    """Return the command to type next."""
    if not check.accepted:
        return "Next: the fixes above, those of errors first."
    if check.quantized:
        return f"Next: {command('evaluate', 'FLOAT_MODEL', check.source, '--data', 'LABELLED')}"
    recipe = ["--recipe", check.recipe] if check.recipe else []
    return f"Next: {command('quantize', check.source, 'OUTPUT', '--calib', 'DATA', *recipe)}"


def _finding_note(group: FindingGroup) -> Note:
    finding = group.finding
    details = [finding.why, f"fix: {finding.fix}" if finding.fix else ""]
    level = _FINDING_LEVELS[finding.level]
    return Note(finding.level, level, finding.what, subject_of(group), [detail for detail in details if detail])


def device_figure(check: DeviceCheck) -> KeyFigure:
    """Return the verdict as a figure."""
    text, level = _VERDICTS[check.verdict]
    regions = f"{check.subgraphs} subgraph{'' if check.subgraphs == 1 else 's'}"
    meaning = f"{check.device_nodes} of {check.device_nodes + check.cpu_nodes} nodes on the device, in {regions}"
    if check.verdict == "rejected":
        meaning += ", once what concerns all of it is mended: see What to know"
    return KeyFigure(check.target, text.capitalize(), f"{meaning}.", level)


def device_section(check: DeviceCheck) -> Section:
    """Build the section of what a device makes of a model: findings, and where each node runs."""
    found = [_finding_note(group) for group in grouped(check.findings)]
    columns = [
        named("Node", "node"),
        worded("Operator", "op_type", minor=True),
        worded(
            "Runs in",
            lambda place: "CPU" if place.subgraph is None else f"subgraph {place.subgraph}",
            "The region that the device computes as one, or the CPU.",
        ),
        figure("Multiplications", "macs", ",", "Of one sample, in layers.", minor=True),
    ]
    return Section(
        f"Device {check.target}",
        "Whether the device that the recipe is for takes the file, node by node. Data travels at the borders of "
        "subgraphs: one is best.",
        [
            Paragraph(summary(check), "bad" if check.verdict == "rejected" else "plain", on="page"),
            NoteList(found, on="page") if found else Paragraph("There is nothing in the way.", on="page", quiet=True),
            table("nodes", columns, check.nodes),
        ],
        count=_VERDICTS[check.verdict][0],
        on="verbose",
    )


def subject_of(group: FindingGroup) -> str:
    """Name the nodes that a finding is about, or the model."""
    if group.finding.node == MODEL:
        return "the model"
    if len(group.operators) == 1:
        names = listed([f"'{node}'" for node in group.nodes], _SHOWN_NODES)
        return f"{group.finding.op_type} {names}"
    counts = sorted(group.operators.items(), key=lambda item: -item[1])
    return f"{len(group.nodes)} nodes ({', '.join(f'{op_type} {count}' for op_type, count in counts)})"


def serious(check: DeviceCheck) -> list[tuple[bool, str]]:
    """Return what is in the way as sentences, and whether the device takes nothing of the model for it: these first."""
    found = []
    for group in grouped([finding for finding in check.findings if finding.level != "note"]):
        finding = group.finding
        about_all = finding.node == MODEL or not check.device_nodes
        is_error = check.verdict == "rejected" and finding.level == "error" and about_all
        found.append((is_error, f"{subject_of(group)}: {finding.what}; {finding.why}. Fix: {finding.fix}."))
    return found


def rejections(check: DeviceCheck) -> list[str]:
    """Say why the device takes nothing of the model as it is."""
    return [f"{check.target} does not take {text}" for is_error, text in serious(check) if is_error]
