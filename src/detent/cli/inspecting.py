"""Commands that read or convert a file: check, deploy, inspect, stats, convert and split."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typing_extensions import Unpack

from detent.cli.console import AnyModel, Output, PrintOptions, option_of
from detent.graph.guard import guarded
from detent.options import TRUST, ImageOptions, SplitOptions, settled

if TYPE_CHECKING:
    from detent.results.checked import DeviceCheck

Trust = Annotated[bool, option_of(TRUST)]

NOT_TAKEN = 6  # the exit code if the device does not take all of the model


def check(
    model: AnyModel,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "--target",
            help="phx, hpt, stx, krk, strix-halo or cpu; or npu-xint8, npu-a8w8, npu-a16w8, npu-bf16.",
        ),
    ] = "npu-xint8",
    ep_report: Annotated[
        Path | None,
        typer.Option("--ep-report", help="A placement report of the EP, or a folder of them.", metavar="FILE"),
    ] = None,
    time: Annotated[bool, typer.Option("--time", help="Also time the model on this CPU.")] = False,
    software: Annotated[str, typer.Option("--software", help="Ryzen AI version: 1.6, 1.7 or 1.8. Default: any.")] = "",
    trust: Trust = False,
    *,
    printing: PrintOptions,
) -> None:
    """Show, node by node, whether a device accepts MODEL, and why not.

    Exit code 0: it accepts all of it; 6: it does not.

    Example: detent check model_int8.onnx --device stx
    """
    from detent.device_check.check import check as run

    with guarded(model, trust=trust):
        result = run(model, device, software)
    if ep_report is not None:
        _tell_report(model, result, ep_report, printing)
        return
    if time and result.cost is not None:
        from detent.device_check.check import cpu_milliseconds

        result = replace(result, cost=replace(result.cost, cpu=cpu_milliseconds(model)))
    printing.tell(result)
    if not result.accepted:
        raise typer.Exit(NOT_TAKEN)


def _tell_report(model: Path, result: DeviceCheck, file: Path, printing: PrintOptions) -> None:
    """Print a report of the EP beside the prediction, or a table of several."""
    from detent.device_check.ep_report import compare_report, report_table

    if file.is_dir():
        typer.echo(report_table(file))
        return
    printing.tell_text(compare_report(model, result, file))


def deploy(
    model: AnyModel,
    folder: Annotated[Path, typer.Argument(help="Output folder; new or empty.", metavar="DIR")],
    device: Annotated[str, typer.Option("--device", "--target", help="phx, hpt, stx, krk or strix-halo.")],
    tail: Annotated[Path | None, typer.Option("--tail", help="Second part of a split model.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of images, .npy or .npz. Default: random data.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", help="How many samples to include.", min=1)] = 4,
    software: Annotated[
        str, typer.Option("--software", help="Ryzen AI version: 1.6, 1.7 or 1.8. Default: the device's latest.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Deploy even if the device is known to reject the model.")
    ] = False,
    *,
    printing: PrintOptions,
    **options: Unpack[ImageOptions],
) -> None:
    """Write a folder to copy to the laptop: MODEL, a program that runs it on the NPU, samples and expected answers.

    Example: detent deploy mobilenetv2_int8.onnx npu/ --device stx --data images/
    """
    from detent.deploy.folder import deploy as run
    from detent.option_values import image_options

    images = image_options(settled(ImageOptions, options))
    sampled = partial(run, data=data, samples=samples, preprocess=images)
    printing.tell_text(sampled(model, folder, device, tail=tail, software=software, force=force))


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
    printing.either(inspection.to_dict(), inspection_document(inspection, nodes=nodes))


def stats(
    file: Annotated[Path, typer.Argument(help="Statistics written by --save-stats.", metavar="FILE")],
    tensor: Annotated[
        list[str], typer.Option("--tensor", help="Show only tensors that match.", metavar="PATTERN")
    ] = [],  # noqa: B006
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
    from detent.report.statistics_plots import plot_statistics
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
