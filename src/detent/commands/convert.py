"""The command `detent convert`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.commands import options

if TYPE_CHECKING:
    from rich.console import Console

Steps = Annotated[
    list[str],
    typer.Option(
        "--to", help="What to convert to, such as float16 or opset:version=21; may be repeated.", metavar="STEP"
    ),
]


def register(app: typer.Typer, stdout: Callable[[], Console]) -> None:
    """Add the command to the application; `stdout` makes the console that it prints to."""

    @app.command()
    def convert(
        model: Annotated[Path, typer.Argument(help="A float or quantized ONNX model.", metavar="MODEL")],
        output: Annotated[Path, typer.Argument(help="Where to write the result.", metavar="OUTPUT")],
        to: Steps = [],  # noqa: B006
        json: options.Json = False,
    ) -> None:
        """Convert MODEL to another form: float, another number type, opset, layout or operator generation.

        Example: detent convert model.onnx model_fp16.onnx --to fixed-shapes:batch=1 --to float16
        """
        from detent.convert import convert as run
        from detent.report.conversion_view import print_conversion

        conversion = run(model, output, to)
        if json:
            typer.echo(conversion.to_json())
            return
        print_conversion(conversion, stdout())
