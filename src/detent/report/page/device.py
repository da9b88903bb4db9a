"""What a device makes of a model: the verdict, its findings, and the regions that it computes at one go."""

from __future__ import annotations

from detent.report.check_view import device_notes, subject_of
from detent.report.page.html import Markup, joined, name_of, tag
from detent.report.page.parts import Level, Section, Tile
from detent.report.page.table import Column, Row, number, table, words
from detent.results.checked import DeviceCheck, FindingGroup, grouped, summary

CPU = "CPU"

_VERDICTS: dict[str, tuple[str, Level]] = {
    "accepted": ("takes it", "good"),
    "partly": ("takes part of it", "warn"),
    "rejected": ("not as it is", "bad"),
}
_LEVELS = {"error": "bad", "warning": "warn", "note": "plain"}


def device_tile(check: DeviceCheck) -> Tile:
    """The verdict as a figure."""
    said, level = _VERDICTS[check.verdict]
    regions = f"{check.subgraphs} subgraph{'' if check.subgraphs == 1 else 's'}"
    meaning = f"{check.device_nodes} of {check.device_nodes + check.cpu_nodes} nodes on the device, in {regions}"
    if check.verdict == "rejected":
        meaning += ", once what concerns all of it is mended: see What to know"
    return Tile(check.target, said.capitalize(), f"{meaning}.", level)


def rejections(check: DeviceCheck) -> list[str]:
    """Why the device takes nothing of the model as it is; empty where it takes some."""
    return [f"{check.target} does not take {note.said}" for note in device_notes(check) if note.is_error]


def device_section(check: DeviceCheck) -> Section:
    """Findings, and where each node runs."""
    findings = [_finding(group) for group in grouped(check.findings)]
    listed = (
        tag("ul", *findings, class_="notes") if findings else tag("p", "There is nothing in the way.", class_="quiet")
    )
    columns = [
        Column("Node"),
        Column("Operator", minor=True),
        Column("Runs in", "The region of the device that computes it at one go, or the CPU."),
        Column("Multiplications", "Of one sample, in layers.", numeric=True, minor=True),
    ]
    rows = [
        Row(
            [
                words(name_of(place.node), place.node),
                words(place.op_type),
                words(CPU if place.subgraph is None else f"subgraph {place.subgraph}"),
                number(place.macs),
            ]
        )
        for place in check.nodes
    ]
    body = joined((tag("p", summary(check)), listed, table(columns, rows, "nodes")))
    meaning = (
        "Whether the device that the recipe is for takes the file, node by node. Data travels at the borders of "
        "subgraphs: one is best."
    )
    return Section(f"Device {check.target}", meaning, body, count=_VERDICTS[check.verdict][0])


def _finding(group: FindingGroup) -> Markup:
    finding = group.finding
    return tag(
        "li",
        tag("span", finding.level, class_=f"badge {_LEVELS[finding.level]}"),
        tag("strong", subject_of(group)),
        f": {finding.what}; {finding.why}." if finding.why else f": {finding.what}.",
        f" Fix: {finding.fix}." if finding.fix else None,
    )
