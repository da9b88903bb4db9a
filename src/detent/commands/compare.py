"""The command `detent compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.commands.consoles import echo_json, stderr, stdout
from detent.commands.results import PageOptions
from detent.commands.samples import RunningOptions
from detent.errors import UsageError


def compare(
    before: Annotated[Path, typer.Argument(help="A model, or a folder of results.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="Another one.", metavar="B")],
    *,
    data: Annotated[Path | None, typer.Option("--data", help="For models: a folder of images, .npy or .npz.")] = None,
    running: RunningOptions,
    inner: Annotated[
        bool, typer.Option("--inner", help="Also what goes from a layer into its activation function.")
    ] = False,
    page: PageOptions,
) -> None:
    """Compare two models tensor by tensor, or two folders of results file by file.

    Example: detent compare model.onnx model_int8.onnx --data images/ --limit 8
    """
    page.check(before, after)
    if before.is_dir() or after.is_dir():
        if data is not None or inner or running != RunningOptions():
            raise UsageError("Two folders of results are compared as they are: give only the folders.")
        _compare_folders(before, after, page)
        return
    if data is None:
        raise UsageError("Give --data DIR with samples to run both models on.")
    from detent.commands.progress_bar import progress_bar
    from detent.measure.tensors import compare_models
    from detent.report.comparison_view import print_comparison
    from detent.report.report import plain

    with progress_bar(stderr()) as progress:
        comparison = compare_models(before, after, data, **running.given(), inner=inner, progress=progress)
    page.write(comparison)
    if page.json:
        echo_json(plain(comparison.to_dict()))
    else:
        print_comparison(comparison, stdout())


def _compare_folders(before: Path, after: Path, page: PageOptions) -> None:
    from detent.measure.results import compare_folders
    from detent.report.report import plain
    from detent.report.results_view import results_table

    found = compare_folders(before, after)
    page.write(found)
    if page.json:
        echo_json(plain(found.to_dict()))
    else:
        stdout().print(results_table(found), end="", markup=False)
