"""Commands that read or convert a file: check, inspect, stats, convert and split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typing_extensions import Unpack

from detent.cli.console import AnyModel, Output, PrintOptions, echo_json
from detent.graph.guard import guarded
from detent.options import SplitOptions

Trust = Annotated[
    bool, typer.Option("--trust", help="Do not first try the model file in a process of its own.", show_default=False)
]

NOT_TAKEN = 6
"""The exit code if the device does not take all of the model."""


def check(
    model: AnyModel,
    target: Annotated[
        str, typer.Option("--target", help="npu-xint8, npu-a8w8, npu-a16w8, npu-bf16 or cpu.")
    ] = "npu-xint8",
    trust: Trust = False,
    *,
    printing: PrintOptions,
) -> None:
    """Say, node by node, whether a device takes MODEL, and why not.

    Exit code 0: it takes all of it; 6: it does not.

    Example: detent check model_int8.onnx --target npu-xint8
    """
    from detent.device_check.check import check as run

    with guarded(model, trust=trust):
        result = run(model, target)
    printing.tell(result)
    if not result.accepted:
        raise typer.Exit(NOT_TAKEN)


def inspect(
    model: AnyModel,
    nodes: Annotated[bool, typer.Option("--nodes", help="Also list every node.")] = False,
    trust: Trust = False,
    *,
    printing: PrintOptions,
) -> None:
    """Show what is in a model: operators, types, and the scale and position of every quantized tensor."""
    from detent.comparison.inspection import inspect_model
    from detent.report.listings import inspection_document

    with guarded(model, trust=trust):
        inspection = inspect_model(model)
    if printing.json:
        echo_json(inspection.to_dict())
    else:
        printing.print(inspection_document(inspection, nodes=nodes))


def stats(
    file: Annotated[Path, typer.Argument(help="Statistics written by --save-stats.", metavar="FILE")],
    tensor: Annotated[list[str], typer.Option("--tensor", help="Only tensors that match.", metavar="PATTERN")] = [],  # noqa: B006
    sort: Annotated[
        Literal["graph", "outliers"], typer.Option("--sort", help="Graph order, or most outliers first.")
    ] = "graph",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw each tensor into this folder, as SVG.", metavar="DIR")
    ] = None,
    *,
    printing: PrintOptions,
) -> None:
    """Show what calibration saw: range, sparsity and outliers of every tensor, and what each method would choose."""
    from detent.observe.statistics_file import load_statistics
    from detent.report.charts import plot_statistics
    from detent.results.summarized import choices_of, view_statistics

    loaded = load_statistics(file)
    view = view_statistics(loaded, choices_of, patterns=tensor, order=sort)
    if plot is not None:
        plot_statistics(loaded.statistics, plot, {each.name: each.choices for each in view.tensors})
    printing.tell(view, plot)


def convert(
    model: AnyModel,
    output: Output,
    to: Annotated[
        list[str],
        typer.Option(
            "--to", help="What to convert to, such as float16 or opset:version=21; may be repeated.", metavar="STEP"
        ),
    ] = [],  # noqa: B006
    trust: Trust = False,
    *,
    printing: PrintOptions,
) -> None:
    """Convert MODEL to another form: float, another number type, opset, layout or operator generation.

    Example: detent convert model.onnx model_fp16.onnx --to fixed-shapes:batch=1 --to float16
    """
    from detent.convert import convert as run

    with guarded(model, trust=trust):
        printing.tell(run(model, output, to))


def split(
    model: AnyModel,
    body: Annotated[Path, typer.Argument(help="Where to write the first part, for the device.", metavar="BODY")],
    tail: Annotated[Path, typer.Argument(help="Where to write the second part, for the CPU.", metavar="TAIL")],
    *,
    printing: PrintOptions,
    **options: Unpack[SplitOptions],
) -> None:
    """Cut MODEL in two files, and say which tensors go from one to the other.

    Example: detent split yolov8n.onnx yolov8n_body.onnx yolov8n_tail.onnx
    """
    from detent import api

    printing.tell(api.split(model, body, tail, **options))
