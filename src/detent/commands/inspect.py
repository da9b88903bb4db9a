"""The command `detent inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from detent.commands import options
from detent.commands.consoles import echo_json, stdout


def inspect(
    model: options.AnyModel,
    nodes: Annotated[bool, typer.Option("--nodes", help="Also list every node.")] = False,
    json: options.Json = False,
) -> None:
    """Show what is in a model: operators, types, and the scale and position of every quantized tensor."""
    from detent.comparison.inspection import inspect_model
    from detent.report.listings import inspection_document
    from detent.report.terminal import print_document

    inspection = inspect_model(model)
    if json:
        echo_json(inspection.to_dict())
    else:
        print_document(inspection_document(inspection, nodes=nodes), stdout())
