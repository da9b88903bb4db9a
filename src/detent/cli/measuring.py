"""Commands that run models: evaluate, compare, sensitivity, infer, emulate and dump."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import Unpack

from detent import api
from detent.cli.console import (
    AnyModel,
    Calib,
    DataOrRandom,
    FloatModel,
    PageOptions,
    PrintOptions,
    QuantizedModel,
    RecipeName,
    ResultOptions,
    check_file,
    stdout,
    working,
)
from detent.errors import UsageError
from detent.options import (
    PROPOSAL,
    CompareOptions,
    EmulateOptions,
    EvaluateOptions,
    ImageOptions,
    InferOptions,
    SensitivityOptions,
    settled,
)


def evaluate(
    models: Annotated[
        list[Path], typer.Argument(help="The float model, then those to compare with it.", metavar="MODEL")
    ],
    *,
    data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz, with labels or without.")],
    results: ResultOptions,
    **options: Unpack[EvaluateOptions],
) -> None:
    """Measure models on the same data, and what each loses against the first.

    Example: detent evaluate mobilenetv2.onnx mobilenetv2_int8.onnx --data photos/
    """

    results.check(*models, options.get("metric"), options.get("labels"))
    with working() as progress:
        options["progress"] = progress
        evaluation = api.evaluate(models, data, **options)
    results.tell(evaluation)


def compare(
    before: Annotated[Path, typer.Argument(help="A model, or a folder of results.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="The model or folder to compare with it.", metavar="B")],
    *,
    data: Annotated[Path | None, typer.Option("--data", help="For models: a folder of images, .npy or .npz.")] = None,
    page: PageOptions,
    **options: Unpack[CompareOptions],
) -> None:
    """Compare two models tensor by tensor, or two folders of results file by file.

    Example: detent compare model.onnx model_int8.onnx --data images/ --limit 8
    """
    page.check(before, after)
    with working() as progress:
        options["progress"] = progress
        found = api.compare(before, after, data, **options)
    page.tell(found)


def sensitivity(
    model: FloatModel,
    *,
    calib: Calib = None,
    recipe: RecipeName = "XINT8",
    toml: Annotated[
        Path | None, typer.Option(help="Write the proposed recipe to this file.", rich_help_panel=PROPOSAL)
    ] = None,
    page: PageOptions,
    **options: Unpack[SensitivityOptions],
) -> None:
    """Show which layers lose most when quantized, and propose what to leave in float.

    Example: detent sensitivity mobilenetv2.onnx --calib images/ --max-error -25dB --toml better.toml
    """
    if toml is not None and "max_error" not in options:
        raise UsageError("--toml writes the proposed recipe: say with --max-error what it should reach.")
    check_file(toml, model)
    page.check(model, toml, options.get("stats"))
    with working() as progress:
        options["progress"] = progress
        report = api.sensitivity(model, calib, recipe, **options)
    page.tell(report if toml is None else report.with_file(toml))


def infer(
    model: AnyModel,
    *,
    data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz.")],
    out: Annotated[Path, typer.Option("--out", help="Output folder; new or empty.", metavar="DIR")],
    **options: Unpack[InferOptions],
) -> None:
    """Run MODEL on data and save each output as .npy, under the name of its sample.

    Example: detent infer model_int8.onnx --data images/ --out answers/
    """

    from detent.report.figures import command

    with working() as progress:
        options["progress"] = progress
        written = api.infer(model, data, out, **options)
    console = stdout()
    console.print(f"Wrote {len(written)} files to {out}.", style="bold", markup=False, soft_wrap=True)
    following = command("compare", out, "OTHER_DIR")
    console.print(f"Next: the same with another model, then {following}", style="bold", markup=False, soft_wrap=True)


def emulate(
    model: QuantizedModel,
    *,
    data: DataOrRandom = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write each output as .npy; new or empty folder.", metavar="DIR")
    ] = None,
    printing: PrintOptions,
    **options: Unpack[EmulateOptions],
) -> None:
    """Run an XINT8 MODEL in integers, as the NPU does, and compare its outputs with onnxruntime's.

    Example: detent emulate mobilenetv2_int8.onnx --data images/ --out answers/ --rounding dpu
    """

    with working() as progress:
        options["progress"] = progress
        done = api.emulate(model, data, out, **options)
    printing.tell(done)


def dump(
    model: QuantizedModel,
    *,
    out: Annotated[Path, typer.Option("--out", help="Output folder; new or empty.", metavar="DIR")],
    data: DataOrRandom = None,
    floats: Annotated[bool, typer.Option("--float", help="Also write every float value.")] = False,
    rounding: Annotated[
        str | None,
        typer.Option("--rounding", help="Run in integers, with this rounding: half-even or dpu."),
    ] = None,
    printing: PrintOptions,
    **options: Unpack[ImageOptions],
) -> None:
    """Write the codes of every tensor of a quantized MODEL for the first sample, as .bin and .txt.

    Example: detent dump mobilenetv2_int8.onnx --data images/ --out codes/ --rounding dpu
    """
    from detent.comparison.folders import dump_codes
    from detent.graph.load import load
    from detent.observe.sources import input_specs, open_source
    from detent.option_values import image_options

    images = image_options(settled(ImageOptions, options))
    source = open_source(data, input_specs(load(model)), preprocess=images)
    sample = next(iter(source)).load()
    done = dump_codes(
        model,
        sample.feeds,
        out,
        floats=floats,
        rounding=rounding,  # type: ignore[arg-type]  # any text; checked by the emulator
        origin=sample.origin,
    )
    printing.tell(done)
