"""The sensitivity of a model's layers, as data and as a table: the worst first, with a bar for each."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.device_check.check import Placement
from detent.recipe import Recipe
from detent.recipe_file import to_plain, to_toml
from detent.report.console import PlainConsole
from detent.report.names import inert, printable
from detent.sensitivity_analysis.layers import LayerSensitivity, Sensitivity, decibels
from detent.sensitivity_analysis.proposal import Proposal, Way

SHOWN = 20
_WAYS: dict[Way, str] = {
    "exclude": "leave float",
    "a16": "give 16 bits to",
    "w8": "give 8 bits to the weights of",
}
BAR = 20
BAR_DECIBELS = 30.0
"""A bar that is empty stands for an error that is this much below the largest."""


@dataclass(frozen=True)
class SensitivityReport:
    """What was measured on which model, and what follows from it, where that was asked for.

    `data` and `note` say what the samples are, and how they were read. `device` is what a proposal to leave nodes float
    does to the device's part of the model; None where there is no such proposal, or no device.
    """

    source: str
    recipe: Recipe
    found: Sensitivity
    proposal: Proposal | None = None
    data: str = ""
    note: str = ""
    device: Placement | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. An error of nothing is null in dB."""
        found = self.found
        plain: dict[str, Any] = {
            "model": self.source,
            "recipe": self.recipe.name,
            "data": self.data,
            "samples": found.samples,
            "exact": found.exact,
            "error": found.total,
            "error_db": _finite(decibels(found.total)),
            "changed": found.changed,
            "layers": [_plain(layer) for layer in found.worst_first()],
        }
        if self.proposal is not None:
            plain["proposal"] = {
                "way": self.proposal.way,
                "nodes": list(self.proposal.nodes),
                "tensors": list(self.proposal.tensors),
                "wanted": self.proposal.wanted,
                "predicted": self.proposal.predicted,
                "reached": self.proposal.reached,
                "float_operations": self.proposal.operations,
                "device": None if self.device is None else _placed(self.device),
                "recipe": to_plain(self.proposal.recipe),
            }
        return plain

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_toml(self) -> str:
        """The proposed recipe, as a file."""
        return to_toml(self.recipe if self.proposal is None else self.proposal.recipe)

    def __str__(self) -> str:
        console = PlainConsole(file=io.StringIO(), width=120)
        print_sensitivity(self, console)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _plain(layer: LayerSensitivity) -> dict[str, Any]:
    return {
        "node": layer.node,
        "op_type": layer.op_type,
        "weights": layer.weights,
        "activations": layer.activations,
        "error": layer.error,
        "error_db": _finite(decibels(layer.error)),
        "gain": layer.gain,
        "changed": None if layer.changed is None else list(layer.changed),
        "parameters": layer.parameters,
        "operations": layer.operations,
    }


def _placed(device: Placement) -> dict[str, Any]:
    return {
        "target": device.after.target,
        **{
            when: {"device_nodes": each.device_nodes, "cpu_nodes": each.cpu_nodes, "subgraphs": each.subgraphs}
            for when, each in (("before", device.before), ("after", device.after))
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def print_sensitivity(report: SensitivityReport, console: Console) -> None:
    """The whole error, the worst layers, and the proposal."""
    found = report.found
    console.print(Text(f"{report.source}, {report.recipe.name}", "bold"))
    if report.data:
        console.print(Text(f"On {report.data}."))
    if report.note:
        console.print(Text(report.note))
    how = "" if found.exact else "; --exact takes all, and measures what each layer gains if it is left float"
    said = f"All quantized, nothing refined: error {_decibels(found.total)} dB"
    if found.changed is not None:
        said += f", another top answer on {found.changed} of {found.samples}"
    console.print(Text(f"{said}. Measured on {found.samples} samples{how}."))
    console.print(_table(found))
    if len(found.layers) > SHOWN:
        console.print(Text(f"and {len(found.layers) - SHOWN} more that matter less; --json lists them."))
    if report.proposal is not None:
        console.print(Text(_proposed(report.proposal), style="cyan"))
    if report.device is not None:
        console.print(Text(f"{report.device}.", style="yellow" if report.device.is_worse else ""))


def _table(found: Sensitivity) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    gains = ("gain left float",) if found.exact else ()
    for name in ("layer", "operator", "", "weights dB", "activations dB", *gains):
        left = name in ("layer", "operator", "")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    scores = any(layer.changed is not None for layer in found.layers)
    if scores:
        table.add_column("other answers", justify="right")
    shown = found.worst_first()[:SHOWN]
    for layer in shown:
        row = [
            inert(layer.node),
            layer.op_type,
            bar(layer.error, shown[0].error),
            _decibels(layer.weights),
            _decibels(layer.activations),
        ]
        if gains:
            row.append(f"{100 * layer.gain / found.total:+.1f} %" if layer.gain is not None and found.total else "-")
        table.add_row(*row, *(["{}, {}".format(*layer.changed)] if layer.changed is not None else []))
    return table


def bar(error: float, largest: float) -> str:
    """A bar as long as the error is large, in dB below the largest."""
    return "#" * round(BAR * bar_length(error, largest))


def bar_length(error: float, largest: float) -> float:
    """1 for the largest error, 0 for one that is BAR_DECIBELS below it or less."""
    if error <= 0 or largest <= 0 or not math.isfinite(largest):
        return 0.0
    return max(0.0, 1 - (decibels(largest) - decibels(error)) / BAR_DECIBELS)


def _decibels(error: float | None) -> str:
    return "-" if error is None else f"{decibels(error):.1f}"


def _proposed(proposal: Proposal) -> str:
    names = [printable(name) for name in (*proposal.nodes, *proposal.tensors)]
    if not names:
        return f"Nothing needs to change: the error is below {_decibels(proposal.wanted)} dB already."
    said = f"Proposal: {_WAYS[proposal.way]} {', '.join(names)}. Expected error {_decibels(proposal.predicted)} dB"
    if proposal.way == "exclude":
        said += f", {100 * proposal.operations:.1f} % of the products in float"
    if not proposal.reached:
        said += f". {_decibels(proposal.wanted)} dB cannot be reached this way"
    return f"{said}."
