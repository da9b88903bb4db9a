"""What a check of a model for a device finds, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from detent.results import Result

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = get_args(Level)
Verdict = Literal["accepted", "partly", "rejected"]

MODEL = ""  # the node of a finding that is about the model as a whole


# What is found about a node that is float because it is post-processing, and meant for the CPU.
DECODES = "it decodes detections"


@dataclass(frozen=True)
class Finding:
    """One thing that a user should know about a node, or with an empty `node` about the model.

    An error: the device does not take the node (or the model). A warning: it may, at a price. A note: nothing to do.
    """

    level: Level
    node: str
    op_type: str
    what: str
    why: str
    fix: str
    whole: bool = False
    """Whether it keeps the whole model off the device, though it is about one node; a warning: whether it may."""
    crashes: bool = False
    """Whether it was seen to end the process that makes a session."""


@dataclass(frozen=True)
class CostEstimate:
    """What an inference is estimated to take on the device, in milliseconds, with the relative error of the estimate.

    `cpu` is the time that onnxruntime took on this machine; None if it was not measured.
    """

    milliseconds: float
    error: float
    source: str
    cpu: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """Between which times it is."""
        return self.milliseconds * (1 - self.error), self.milliseconds * (1 + self.error)

    def __str__(self) -> str:
        low, high = self.ends
        estimate = f"Estimate: {self.milliseconds:.1f} ms ({low:.1f} .. {high:.1f}) on the device"
        if self.cpu is None:
            return f"{estimate}; {self.source}."
        advice = ": the network is small, the CPU is likely to win" if self.cpu < low else ""
        return f"{estimate}, {self.cpu:.1f} ms measured on this CPU{advice}."


@dataclass(frozen=True)
class NodePlace:
    """Where one node runs: in the device's subgraph of that number, or with None on the CPU."""

    node: str
    op_type: str
    subgraph: int | None
    macs: int | None


@dataclass(frozen=True)
class Elsewhere:
    """What remains on the `generations` of the device that leave these operators to the CPU."""

    generations: tuple[str, ...]
    operators: tuple[str, ...]
    device_nodes: int
    subgraphs: int

    def __str__(self) -> str:
        where = f"on {', '.join(self.generations)}, which leave {' and '.join(self.operators)} to the CPU"
        return f"{where}, {self.device_nodes} in {pieces(self.subgraphs)}"


@dataclass(frozen=True)
class DeviceCheck(Result):
    """Whether a device takes a model, node by node.

    Quantizing nodes are not listed: they belong to the tensors. `quantized` says whether the model has any; if not,
    this is what will become of it once it is quantized for the device with `recipe` (empty: it need not be).
    Multiplications (`macs`) are those of one sample in Conv, ConvTranspose, Gemm and MatMul; None if shapes are not
    known.
    """

    target: str
    source: str
    quantized: bool
    recipe: str
    verdict: Verdict
    subgraphs: int
    device_nodes: int
    cpu_nodes: int
    device_macs: int | None
    cpu_macs: int | None
    findings: Sequence[Finding]
    nodes: Sequence[NodePlace]
    report_nodes: tuple[int, int] | None = None
    """Nodes on the device and all nodes, as the execution provider's own report counts them; None of a float model."""
    cost: CostEstimate | None = None
    elsewhere: Elsewhere | None = None
    """What generations get that take less; None if all take the same, or one is named."""

    @property
    def accepted(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """What the device does not take."""
        return [finding for finding in self.findings if finding.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """What it may take, at a price."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def __str__(self) -> str:
        return summary(self)


@dataclass(frozen=True)
class FindingGroup:
    """The same finding at several nodes, or about the model; `operators` counts the types of the nodes."""

    finding: Finding
    nodes: tuple[str, ...]
    operators: dict[str, int]


def grouped(findings: Sequence[Finding]) -> list[FindingGroup]:
    """Put equal findings together, errors first, those about the model first, then those with the most nodes."""
    alike: dict[tuple[str, str, str, str, bool], list[Finding]] = {}
    for finding in findings:
        key = (finding.level, finding.what, finding.why, finding.fix, finding.node == MODEL)
        alike.setdefault(key, []).append(finding)
    groups = [
        FindingGroup(
            each[0], tuple(finding.node for finding in each), dict(Counter(finding.op_type for finding in each))
        )
        for each in alike.values()
    ]
    return sorted(
        groups, key=lambda group: (LEVELS.index(group.finding.level), bool(group.nodes[0]), -len(group.nodes))
    )


def summary(check: DeviceCheck) -> str:
    """Say how much of the model runs on the device."""
    if check.target == "cpu":
        return "onnxruntime takes it." if check.accepted else "onnxruntime does not take it."
    share = device_share(check)
    if check.device_macs is not None and check.cpu_macs is not None and check.device_macs + check.cpu_macs:
        share += f", with {_percent(check.device_macs, check.cpu_macs)} of the multiplications"
    if check.verdict == "rejected":
        rest = f" Once the model-wide errors are fixed: {share}." if check.device_nodes else ""
        return f"{check.target} does not accept this model.{rest}"
    decodes = any(finding.what == DECODES for finding in check.findings)
    whole = "all but the post-processing" if decodes else "all of it"
    if check.report_nodes is not None:
        share += f" (the EP's report: {check.report_nodes[0]} of {check.report_nodes[1]})"
    if check.elsewhere is not None:
        share += f"; {check.elsewhere}"
    doubt = next((finding for finding in check.warnings if finding.whole), None)
    if doubt is not None:
        once = f", once it is quantized with recipe {check.recipe}" if check.recipe else ""
        return f"{check.target} may leave all of it to the CPU{once}, since {doubt.what}; else {share}."
    takes = "takes" if not check.recipe else f"will take, quantized with recipe {check.recipe},"
    return f"{check.target} {takes} {whole if check.verdict == 'accepted' else 'part of it'}: {share}."


def device_share(check: DeviceCheck) -> str:
    nodes = check.device_nodes + check.cpu_nodes
    return f"{check.device_nodes} of {nodes} nodes on the device, in {pieces(check.subgraphs)}"


def _percent(part: int, rest: int) -> str:
    """Write a share that says 100 % only if it is all."""
    share = 100 * part / (part + rest)
    return f"{share:.1f} %" if not rest or round(share, 1) < 100 else "over 99.9 %"


def operators_left(check: DeviceCheck) -> dict[str, int]:
    """Count the nodes of each operator that run on the CPU."""
    return dict(Counter(place.op_type for place in check.nodes if place.subgraph is None).most_common())


@dataclass(frozen=True)
class Placement:
    """The device's part of a model with one recipe and with another."""

    before: DeviceCheck
    after: DeviceCheck

    @property
    def is_worse(self) -> bool:
        """Whether the device gets fewer nodes, or gets them in more pieces."""
        return self.after.device_nodes < self.before.device_nodes or self.after.subgraphs > self.before.subgraphs > 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.after.target,
            **{
                when: {"device_nodes": each.device_nodes, "cpu_nodes": each.cpu_nodes, "subgraphs": each.subgraphs}
                for when, each in (("before", self.before), ("after", self.after))
            },
        }

    def __str__(self) -> str:
        was, now = self.before, self.after
        share = f"{now.device_nodes} of {now.device_nodes + now.cpu_nodes} nodes run on {now.target} then, in"
        return f"{share} {pieces(now.subgraphs)} (as it is: {was.device_nodes}, in {pieces(was.subgraphs)})"


def pieces(count: int) -> str:
    return f"{count} subgraph{'' if count == 1 else 's'}"
