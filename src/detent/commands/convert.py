"""The command `detent convert`."""

from __future__ import annotations

from typing import Annotated

import typer

from detent.commands import options
from detent.commands.consoles import stdout

Steps = Annotated[
    list[str],
    typer.Option(
        "--to", help="What to convert to, such as float16 or opset:version=21; may be repeated.", metavar="STEP"
    ),
]


def convert(
    model: options.AnyModel,
    output: options.Output,
    to: Steps = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Convert MODEL to another form: float, another number type, opset, layout or operator generation.

    Example: detent convert model.onnx model_fp16.onnx --to fixed-shapes:batch=1 --to float16
    """
    from detent.convert import convert as run
    from detent.report.documents import print_result

    conversion = run(model, output, to)
    if json:
        typer.echo(conversion.to_json())
    else:
        print_result(conversion, stdout())
