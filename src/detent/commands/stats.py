"""The command `detent stats`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from detent.commands import options
from detent.commands.consoles import echo_json, stderr, stdout


def stats(
    file: Annotated[Path, typer.Argument(help="Statistics written by --save-stats.", metavar="FILE")],
    tensor: Annotated[list[str], typer.Option("--tensor", help="Only tensors that match.", metavar="PATTERN")] = [],  # noqa: B006
    sort: Annotated[
        Literal["graph", "outliers"], typer.Option("--sort", help="Graph order, or most outliers first.")
    ] = "graph",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw each tensor into this folder, as SVG.", metavar="DIR")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what calibration saw: range, sparsity and outliers of every tensor, and what each method would choose."""
    from detent.observe.statistics_file import load_statistics
    from detent.report.charts import plot_statistics
    from detent.report.documents import print_result
    from detent.results.summarized import choices_of, view_statistics

    loaded = load_statistics(file)
    view = view_statistics(loaded, choices_of, patterns=tensor, order=sort)
    if plot is not None:
        drawn = plot_statistics(loaded.statistics, plot, {each.name: each.choices for each in view.tensors})
        stderr().print(f"{len(drawn)} plots in {plot}", markup=False)
    if json:
        echo_json(view.to_dict())
    else:
        print_result(view, stdout())
