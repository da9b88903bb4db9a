"""A comparison of two models, tensor by tensor, as text for a terminal: the outputs, then the worst on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.report.names import inert
from detent.results.compared import MEASURES, ModelComparison, TensorDifference

MOST_TENSORS = 10
"""Tensors on the way that are listed; the JSON has all."""

_TITLES = {"sqnr_db": "SQNR dB", "psnr_db": "PSNR dB", "cosine": "cosine", "l1": "L1", "l2": "L2"}


def print_comparison(comparison: ModelComparison, console: Console) -> None:
    """The outputs, the worst tensors, and what could not be compared."""
    console.print(Text(f"{comparison.after} against {comparison.before}, on {comparison.data}.", "bold"))
    if comparison.note:
        console.print(Text(comparison.note))
    outputs = [tensor for tensor in comparison.tensors if tensor.is_output]
    inside = [tensor for tensor in comparison.worst_first() if not tensor.is_output]
    if outputs:
        console.print(_table("outputs", outputs))
    if inside:
        console.print()
        shown = inside[:MOST_TENSORS]
        console.print(_table(f"worst tensors of the same name ({len(shown)} of {len(inside)})", shown))
    if comparison.rescaling:
        console.print(Text(comparison.rescaling))
    if comparison.skipped:
        listed = ", ".join(comparison.skipped[:3])
        more = f" and {len(comparison.skipped) - 3} more" if len(comparison.skipped) > 3 else ""
        console.print(Text(f"Not compared, for their shapes or types: {listed}{more}."))


def _table(title: str, tensors: Sequence[TensorDifference]) -> Table:
    """Mean over the samples for each measure, and the worst."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(title, overflow="fold")
    for measure in MEASURES:
        table.add_column(f"{_TITLES[measure]}: mean", justify="right")
        table.add_column("worst", justify="right")
    table.add_column("worst sample", overflow="fold")
    for tensor in tensors:
        figures = [
            _figure(measure, value) for measure in MEASURES for value in (tensor.mean(measure), tensor.worst(measure))
        ]
        table.add_row(inert(tensor.name), *figures, inert(tensor.worst_samples(1)[0]))
    return table


def _figure(measure: str, value: float) -> str:
    if value == math.inf:
        return "exact"
    return f"{value:.1f}" if measure.endswith("_db") else f"{value:.5f}" if measure == "cosine" else f"{value:.3g}"
