"""The command `detent infer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.commands import options
from detent.commands.consoles import stderr, stdout
from detent.commands.samples import RunningOptions


def infer(
    model: options.AnyModel,
    *,
    data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write; a new or empty folder.", metavar="DIR")],
    running: RunningOptions,
) -> None:
    """Run MODEL on data and save each output as .npy, under the name of its sample.

    Example: detent infer model_int8.onnx --data images/ --out answers/
    """
    import detent
    from detent.commands.progress_bar import progress_bar

    with progress_bar(stderr()) as progress:
        written = detent.infer(model, data, out, **running.given(), progress=progress)
    stdout().print(f"{len(written)} files in {out}.", markup=False)
