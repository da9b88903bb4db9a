"""The sensitivity of a model's layers, as data and as a table: the worst first, with a bar for each."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.report.names import inert, printable
from detent.results.searched import Proposal, Sensitivity, SensitivityReport, Way, decibels

SHOWN = 20
_WAYS: dict[Way, str] = {
    "exclude": "leave float",
    "a16": "give 16 bits to",
    "w8": "give 8 bits to the weights of",
}
BAR = 20
BAR_DECIBELS = 30.0
"""A bar that is empty stands for an error that is this much below the largest."""


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
