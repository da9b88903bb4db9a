"""Read the placement report of the execution provider (EP), and compare it with the prediction.

The report has no names of nodes: it is keyed by output tensor, and gives no reasons. `deviceStat` counts nodes by
device, `nodeStat` places them; VITIS_EP_CPU (claimed by the EP, run on the host) is CPU there.

The prediction counts like the report: every node of the file except Constants, and a DequantizeLinear once for each of
its readers. A network that runs on the device as a whole still leaves one QuantizeLinear per input and one
DequantizeLinear per output to the CPU: a Q or DQ between a node on the device and one on the CPU runs on the CPU, and
so does the pair behind a node on the CPU.

| node                | on the device if                                                     |
| ------------------- | -------------------------------------------------------------------- |
| QuantizeLinear      | the node whose result it rounds is                                   |
| DequantizeLinear    | its reader is; never if that is the model's output                   |
| a merged node       | the node before it is: a factor of the device, an Identity           |
| any other           | the prediction says so                                               |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from detent.errors import DataError
from detent.graph.load import read
from detent.graph.values import is_constant
from detent.qdq.families import is_native_dequantize, is_native_quantize
from detent.results import Result
from detent.results.checked import DeviceCheck
from detent.settings import parse_json, read_text


@dataclass(frozen=True)
class CountedNode:
    """A node as in a report, which names it by its output."""

    output: str
    op_type: str
    on_device: bool


def counted_nodes(model: ir.Model, on_device: Collection[str], known: Collection[str]) -> list[CountedNode]:
    """Return every node that a report counts. `known` names the nodes of the prediction, `on_device` some of them."""
    placed: dict[ir.Node, bool] = {}
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    for node in nodes:
        if node.name in known:
            placed[node] = node.name in on_device
        elif not is_native_dequantize(node):
            placed[node] = _follows(node, placed, bool(on_device))
    found: list[CountedNode] = []
    for node in nodes:
        value = node.outputs[0]
        if is_native_dequantize(node):
            readers = [placed.get(use.node, False) for use in value.uses()] + [False] * value.is_graph_output()
        else:
            readers = [placed[node]]
        found += [CountedNode(str(value.name), node.op_type, reader) for reader in readers or [False]]
    return found


def _follows(node: ir.Node, placed: Mapping[ir.Node, bool], anything: bool) -> bool:
    """Return whether a node that is not part of the prediction runs on the device, as the node before it does."""
    source = next((value.producer() for value in node.inputs if value is not None and value.producer()), None)
    if source is not None:
        return placed.get(source, False)
    # A weight that is rounded in the file itself belongs to the layer that reads it.
    first = node.inputs[0] if node.inputs else None
    return anything and is_native_quantize(node) and first is not None and is_constant(first)


KNOWN_SHARE = 0.9  # of the report's tensors that a model must have to be the one that was compiled


@dataclass(frozen=True)
class EpReport:
    """A report: nodes by device, and the device of each tensor's producer (a DequantizeLinear has one per reader)."""

    source: str
    counts: Mapping[str, int]
    places: Mapping[str, Sequence[str]]

    @property
    def on_device(self) -> int:
        """Nodes on the NPU."""
        return self.counts.get("NPU", 0)

    @property
    def total(self) -> int:
        """All nodes."""
        return self.counts.get("all", sum(count for name, count in self.counts.items() if name != "all"))


@dataclass(frozen=True)
class PlacementDifference:
    """A tensor whose producer runs elsewhere than predicted."""

    output: str
    op_type: str
    predicted: str
    reported: str


@dataclass(frozen=True)
class EpComparison(Result):
    """A report and the prediction for the same model."""

    check: DeviceCheck
    report: EpReport
    differences: Sequence[PlacementDifference]

    def __str__(self) -> str:
        npu, total = self.check.report_nodes or (0, 0)
        lines = [f"{self.report.source}: {self.report.on_device} of {self.report.total} nodes on the NPU."]
        lines.append(f"Predicted for {self.check.target}: {npu} of {total}.")
        if not self.differences:
            return "\n".join([*lines, "Every tensor is where it was expected."])
        kinds = Counter((each.op_type, each.predicted, each.reported) for each in self.differences)
        for (op_type, predicted, reported), count in kinds.most_common():
            first = next(each.output for each in self.differences if each.op_type == op_type)
            lines.append(f"{count} {op_type} predicted on {predicted}, reported on {reported}, such as '{first}'.")
        if npu and self.report.on_device == 0:
            lines.append(
                "Nothing was taken. Set-up looks the same: a provider, driver and overlay of different versions, a "
                "missing xclbin (phx, hpt), or an old cache. Rule these out; then please report it with this file and "
                "the model."
            )
        else:
            learned = "the prediction will learn from it"
            lines.append(f"Please report it, with this file and `detent inspect MODEL --json`: {learned}.")
        return "\n".join(lines)


def read_report(path: Path) -> EpReport:
    """Read a report. Raise DataError if the file is something else, or incomplete."""
    try:
        found = parse_json(read_text(path))
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON, or only part of a file: {error}. Copy it again from the cache."
        ) from error
    try:
        counts = {str(each["name"]): int(each["nodeNum"]) for each in found["deviceStat"]}
        places: dict[str, list[str]] = {}
        for node in found["nodeStat"]:
            outputs = node["output"] if isinstance(node["output"], list) else [node["output"]]
            for output in map(str, outputs):
                places.setdefault(output, []).append("NPU" if node["device"] == "NPU" else "CPU")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} has not the structure of a placement report ({type(error).__name__}: {error}): expected "
            "deviceStat with name and nodeNum, and nodeStat with output and device."
        ) from error
    return EpReport(str(path), counts, places)


def compare_report(model: Path, check: DeviceCheck, path: Path) -> EpComparison:
    """Compare a report with the prediction. Raise DataError if it is of another model."""
    report = read_report(path)
    on_device = (
        set() if check.verdict == "rejected" else {each.node for each in check.nodes if each.subgraph is not None}
    )
    nodes = counted_nodes(read(model), on_device, {each.node for each in check.nodes})
    known = {node.output for node in nodes}
    shared = known & report.places.keys()
    if report.places and len(shared) < KNOWN_SHARE * len(report.places):
        missing = next(iter(report.places.keys() - known))
        raise DataError(
            f"{path} is of another model: {model} computes no tensor '{missing}', nor most others that it names. Give "
            "the file that was compiled."
        )
    return EpComparison(check, report, list(_differences(nodes, report)))


def _differences(nodes: Sequence[CountedNode], report: EpReport) -> Sequence[PlacementDifference]:
    predicted: dict[str, list[CountedNode]] = {}
    for node in nodes:
        predicted.setdefault(node.output, []).append(node)
    found: list[PlacementDifference] = []
    for output, several in predicted.items():
        if output in report.places:
            expected = Counter("NPU" if node.on_device else "CPU" for node in several)
            reported = Counter(report.places[output])
            if expected["NPU"] != reported["NPU"]:
                pair = ("NPU", "CPU") if expected["NPU"] > reported["NPU"] else ("CPU", "NPU")
                found.append(PlacementDifference(output, several[0].op_type, *pair))
    return found


def report_table(folder: Path) -> str:
    """Return a line for each report in a folder: nodes on the NPU, and the operators on the CPU."""
    files = sorted(folder.rglob("*.json"))
    lines = []
    for file in files:
        try:
            report = read_report(file)
        except DataError:  # other files of a cache
            continue
        lines.append(f"{file.relative_to(folder)}: {report.on_device} of {report.total} nodes on the NPU")
    if not lines:
        raise DataError(f"{folder} has no placement report: none of its {len(files)} .json files is one.")
    return "\n".join(lines)
