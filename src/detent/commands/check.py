"""The command `detent check`."""

from __future__ import annotations

from typing import Annotated

import typer

from detent.commands import options
from detent.commands.consoles import stdout

NOT_TAKEN = 6
"""The exit code where the device does not take all of the model."""


def check(
    model: options.AnyModel,
    target: Annotated[
        str, typer.Option("--target", help="npu-xint8, npu-a8w8, npu-a16w8, npu-bf16 or cpu.")
    ] = "npu-xint8",
    json: options.Json = False,
) -> None:
    """Say, node by node, whether a device takes MODEL, and why not.

    Exit code 0: it takes all of it; 6: it does not.

    Example: detent check model_int8.onnx --target npu-xint8
    """
    from detent.device_check.check import check as run
    from detent.report.documents import print_result

    result = run(model, target)
    if json:
        typer.echo(result.to_json())
    else:
        print_result(result, stdout())
    if not result.accepted:
        raise typer.Exit(NOT_TAKEN)
