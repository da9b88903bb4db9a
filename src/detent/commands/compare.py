"""The command `detent compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.commands.consoles import echo_json, stderr, stdout
from detent.commands.results import PageOptions
from detent.commands.samples import RunningOptions


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
    import detent
    from detent.commands.progress_bar import progress_bar
    from detent.report.documents import print_result
    from detent.results import plain

    with progress_bar(stderr()) as progress:
        found = detent.compare(before, after, data, **running.given(), inner=inner, progress=progress)
    page.write(found)
    if page.json:
        echo_json(plain(found.to_dict()))
    else:
        print_result(found, stdout())
