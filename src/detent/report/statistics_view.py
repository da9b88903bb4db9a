"""Statistics as text for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detent.report.names import printable
from detent.results.summarized import StatisticsView


def print_statistics(view: StatisticsView, console: Console) -> None:
    """The view as tables: the facts of each tensor, then the choices of the methods."""
    shown = "" if len(view.tensors) == view.of else f"{len(view.tensors)} of "
    console.print(
        Text(f"{shown}{view.of} tensors, counted over {view.samples} samples: {printable(view.description)}", "bold")
    )
    facts = _table("#", "tensor", "minimum", "maximum", "near zero", "outliers")
    for tensor in view.tensors:
        facts.add_row(
            str(tensor.number),
            Text(printable(tensor.name)),
            _number(tensor.minimum),
            _number(tensor.maximum),
            f"{100 * tensor.near_zero:.1f} %",
            f"{tensor.outlier_ratio:.1f}",
        )
    console.print(facts)
    console.print(
        Text(
            "outliers: the largest magnitude over that of the 99.9th percentile. "
            "near zero: closer to it than 1/4096 of the largest.",
            "dim",
        )
    )
    methods = list(dict.fromkeys(method for tensor in view.tensors for method in tensor.choices))
    if not methods:
        return
    console.print(Text("\nThe range that each method would choose:"))
    choices = _table("#", *methods)
    for tensor in view.tensors:
        choices.add_row(str(tensor.number), *(_range(tensor.choices.get(method)) for method in methods))
    console.print(choices)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(Text(heading), justify="left" if heading == "tensor" else "right", overflow="fold")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _range(choice: tuple[float, float] | None) -> str:
    return "-" if choice is None else f"{choice[0]:.3g} .. {choice[1]:.3g}"
