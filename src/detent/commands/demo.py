"""The command `detent demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.commands.consoles import stderr, stdout


def demo(
    output: Annotated[Path, typer.Argument(help="Where to write the result.")] = Path("detent-demo/digits_xint8.onnx"),
    files: Annotated[
        Path | None,
        typer.Option("--files", help="Only copy its model and images there, to try things on.", metavar="DIR"),
    ] = None,
) -> None:
    """Quantize the small digit classifier that comes with Detent, and measure what it cost."""
    from detent.commands.progress_bar import progress_bar
    from detent.demo.run import copy_files, run_demo

    if files is not None:
        copy_files(files)
        return
    with progress_bar(stderr()) as progress:
        result = run_demo(output, progress)
    result.show(stdout())
