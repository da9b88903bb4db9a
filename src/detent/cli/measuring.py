"""Commands that run models: evaluate, compare, sensitivity, infer, emulate and dump."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typing_extensions import Unpack

from detent import api
from detent import options as opt
from detent.cli import console as ui
from detent.errors import UsageError


def evaluate(
    models: Annotated[
        list[Path], typer.Argument(help="The float model, then those to compare with it.", metavar="MODEL")
    ],
    *,
    data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz, with labels or without.")],
    results: ui.ResultOptions,
    **options: Unpack[opt.EvaluateOptions],
) -> None:
    """Measure models on the same data, and what each loses against the first.

    Example: detent evaluate mobilenetv2.onnx mobilenetv2_int8.onnx --data photos/
    """
    results.check(*models, options.get("metric"), options.get("labels"))
    results.tell(ui.run(api.evaluate, models, data, **options))


def compare(
    models: Annotated[list[Path], typer.Argument(help="Two models or folders of results; or more models.")],
    *,
    data: Annotated[Path | None, typer.Option("--data", help="For models: a folder of images, .npy or .npz.")] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", help="Side by side, with the estimated time on phx, hpt, stx, krk or strix-halo."),
    ] = None,
    page: ui.PageOptions,
    **options: Unpack[opt.CompareOptions],
) -> None:
    """Compare two models tensor by tensor, two folders of results file by file, or several models side by side.

    Side by side, they are compared with the first: size, estimated time on a device, accuracy with its interval.

    Example: detent compare model.onnx model_int8.onnx --data images/ --limit 8
    """
    page.check(*models)
    if len(models) < 2:
        raise UsageError(f"Give another model to compare {models[0]} with.")
    if len(models) == 2 and device is None:
        page.tell(ui.run(api.compare, *models, data, **options))
        return
    if options.pop("inner", False) or data is None:
        raise UsageError("Models side by side are run on data: give --data DIR, and leave --inner out.")
    page.tell(ui.run(api.compare_candidates, models, data, estimate_for=device or "stx", **options))


def sensitivity(
    model: ui.FloatModel,
    *,
    calib: ui.Calib = None,
    recipe: ui.RecipeName = "XINT8",
    toml: Annotated[
        Path | None, typer.Option(help="Write the proposed recipe to this file.", rich_help_panel=opt.PROPOSAL)
    ] = None,
    page: ui.PageOptions,
    **options: Unpack[opt.SensitivityOptions],
) -> None:
    """Show which layers lose most when quantized, and propose what to leave in float.

    Example: detent sensitivity mobilenetv2.onnx --calib images/ --max-error -25dB --toml better.toml
    """
    if toml is not None and "max_error" not in options:
        raise UsageError("--toml writes the proposed recipe: say with --max-error what it should reach.")
    ui.check_file(toml, model)
    page.check(model, toml, options.get("stats"))
    report = ui.run(api.sensitivity, model, calib, recipe, **options)
    page.tell(report if toml is None else report.with_file(toml))


def infer(
    model: ui.AnyModel,
    *,
    data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz.")],
    out: Annotated[Path, typer.Option("--out", help="Output folder; new or empty.", metavar="DIR")],
    **options: Unpack[opt.InferOptions],
) -> None:
    """Run MODEL on data and save each output as .npy, under the name of its sample.

    Example: detent infer model_int8.onnx --data images/ --out answers/
    """
    from detent.report.figures import command

    written = ui.run(api.infer, model, data, out, **options)
    following = f"Next: the same with another model, then {command('compare', out, 'OTHER_DIR')}"
    for line in (f"Wrote {len(written)} files to {out}.", following):
        ui.stdout().print(line, style="bold", markup=False, soft_wrap=True)


def emulate(
    model: ui.QuantizedModel,
    *,
    data: ui.DataOrRandom = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write each output as .npy; new or empty folder.", metavar="DIR")
    ] = None,
    printing: ui.PrintOptions,
    **options: Unpack[opt.EmulateOptions],
) -> None:
    """Run an XINT8 MODEL in integers, as the NPU does, and compare its outputs with onnxruntime's.

    Example: detent emulate mobilenetv2_int8.onnx --data images/ --out answers/ --rounding dpu
    """
    printing.tell(ui.run(api.emulate, model, data, out, **options))


def dump(
    model: ui.QuantizedModel,
    *,
    out: Annotated[Path, typer.Option("--out", help="Output folder; new or empty.", metavar="DIR")],
    data: ui.DataOrRandom = None,
    floats: Annotated[bool, typer.Option("--float", help="Also write every float value.")] = False,
    rounding: Annotated[
        str | None,
        typer.Option("--rounding", help="Run in integers, with this rounding: half-even or dpu."),
    ] = None,
    printing: ui.PrintOptions,
    **options: Unpack[opt.ImageOptions],
) -> None:
    """Write the codes of every tensor of a quantized MODEL for the first sample, as .bin and .txt.

    Example: detent dump mobilenetv2_int8.onnx --data images/ --out codes/ --rounding dpu
    """
    from detent.comparison.folders import dump_codes
    from detent.graph.load import load
    from detent.observe.sources import input_specs, open_source
    from detent.option_values import image_options

    images = image_options(opt.settled(opt.ImageOptions, options))
    source = open_source(data, input_specs(load(model)), preprocess=images)
    sample = next(iter(source)).load()
    given: Any = rounding  # any text: the emulator checks it
    printing.tell(dump_codes(model, sample.feeds, out, floats=floats, rounding=given, origin=sample.origin))
