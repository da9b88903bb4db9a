"""All commands: quantize to demo; evaluate to dump, which run models; check to split, which inspect or convert them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typing_extensions import Unpack

from detent import api
from detent import options as opt
from detent.cli import console as ui
from detent.errors import UsageError
from detent.graph.guard import guarded

if TYPE_CHECKING:
    from detent.results.checked import DeviceCheck
    from detent.results.searched import StepOutcome

Trust = Annotated[bool, ui.option_of(opt.TRUST)]

MISSED = 6  # the exit code if a result was found, but none loses as little as was asked for
NOT_TAKEN = 6  # the exit code if the device does not take all of the model


def quantize(
    model: ui.FloatModel,
    output: Annotated[Path | None, typer.Argument(help="Where to write the result.", metavar="OUTPUT")] = None,
    *,
    calib: Annotated[
        Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file. Default: random data.")
    ] = None,
    recipe: ui.RecipeName = None,
    results: ui.ResultOptions,
    **options: Unpack[opt.QuantizeOptions],
) -> None:
    """Quantize MODEL and write it to OUTPUT.

    Example: detent quantize mobilenetv2.onnx mobilenetv2_int8.onnx --calib images/
    """
    if output is None and not options.get("dry_run"):
        raise UsageError(f"Give an OUTPUT to write to, such as {Path(model).stem}_int8.onnx, or --dry-run.")
    _check_order(model, output)
    results.check(model, output, options.get("stats"), options.get("save_stats"))
    with _saying_what_is_kept(output):
        result = ui.run(api.quantize, model, output, calib, recipe, try_advice=True, **options)
    results.tell(result, options.get("save_stats"))


def _check_order(model: Path, output: Path | None) -> None:
    """Refuse an output that is there for a model that is not: they stand in the other order."""
    if output is not None and output.is_file() and not model.exists():
        raise UsageError(f"There is no file {model}, but {output} is there. The MODEL comes first, then the OUTPUT.")


@contextmanager
def _saying_what_is_kept(output: Path | None) -> Iterator[None]:
    """On Ctrl-C, and where memory ends, say what is kept beside the output, if anything is."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError) as error:
        from detent.pipeline.job import checkpoint_beside, refinement_beside

        if output is None:
            raise
        beside = {"What was counted is": checkpoint_beside(output), "Refined layers are": refinement_beside(output)}
        found = next((f"{what} kept in {kept}" for what, kept in beside.items() if kept.exists()), "")
        if found and isinstance(error, MemoryError):
            raise MemoryError(f"{error} {found}, and the next run continues.") from error
        if found:
            raise ui.InterruptedRunError(f"Interrupted. {found}: the same command continues.") from None
        raise


def tune(
    model: ui.FloatModel,
    output: ui.Output,
    *,
    calib: Annotated[Path, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")],
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Recipe to start from: a name or a .toml file.")
    ] = None,
    results: ui.ResultOptions,
    **options: Unpack[opt.TuneOptions],
) -> None:
    """Try ever better ways to quantize MODEL, and write the first that loses at most --max-drop.

    Example: detent tune mobilenetv2.onnx mobilenetv2_int8.onnx --calib photos/ --eval labelled/ --max-drop 1.0
    """
    from detent.report.searches import step_line
    from detent.tuning.tuner import recipe_beside

    _check_order(model, output)
    results.check(model, output, options.get("metric"), options.get("toml") or recipe_beside(output))
    console = ui.stderr() if results.page.printing.json else ui.stdout()

    def print_step(outcome: StepOutcome) -> None:
        console.print(step_line(outcome), markup=False)

    tuning = ui.run(api.tune, model, output, calib, recipe, on_step=print_step, **options)
    results.tell(tuning)
    if not tuning.met:
        raise typer.Exit(MISSED)


def mix(
    model: ui.FloatModel,
    *,
    calib: ui.Calib = None,
    recipe: Annotated[
        str, typer.Option("--recipe", help="Recipe for everything else: a name or a .toml file.")
    ] = "A8W8",
    toml: Annotated[Path | None, typer.Option(help="Write the recipe to this file.")] = None,
    printing: ui.PrintOptions,
    **options: Unpack[opt.MixOptions],
) -> None:
    """Find the cheapest format for each layer: mixed precision, as a recipe for `detent quantize`.

    Example: detent mix model.onnx --calib images/ --candidates int4,int8 --max-error -30dB --toml mixed.toml
    """
    ui.check_file(toml, model)
    report = ui.run(api.mix, model, calib, recipe, **options)
    printing.tell(report if toml is None else report.with_file(toml))
    if not report.reached:
        raise typer.Exit(MISSED)


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Show this recipe, or the one in a .toml file.", metavar="NAME")
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print the recipe as a TOML file to edit.")] = False,
    *,
    printing: ui.PrintOptions,
    **options: Unpack[opt.SettingOptions],
) -> None:
    """List the recipes, or show one.

    Example: detent recipes A8W8 --toml > my.toml, then detent quantize MODEL OUTPUT --recipe my.toml
    """
    from detent.recipe.file import find_recipe, to_plain, to_toml, with_settings
    from detent.recipe.recipe import PRESETS
    from detent.report.listings import recipe_document, recipes_document

    settings = options.get("set", ())
    if name is None:
        if toml or settings:
            raise UsageError("Give the NAME of a recipe: `detent recipes XINT8 --toml`.")
        listed = list(PRESETS.values())
        printing.either({each.name: to_plain(each) for each in listed}, recipes_document(listed))
        return
    recipe = with_settings(find_recipe(name), settings)
    if toml:
        typer.echo(to_toml(recipe), nl=False)
    else:
        printing.either(to_plain(recipe), recipe_document(recipe))


def devices(
    name: Annotated[
        str | None, typer.Argument(help="Show all that is known about this device.", metavar="NAME")
    ] = None,
    *,
    printing: ui.PrintOptions,
) -> None:
    """List the devices, or show what is known of one: each fact with its source and confidence.

    Example: detent devices stx
    """
    from dataclasses import asdict

    from detent.devices.catalog import DEVICES, find_device
    from detent.devices.device import GENERATIONS
    from detent.report.listings import device_document, devices_document

    if name is None:
        chips = {each.name: each.chips for each in GENERATIONS.values()}
        printing.either(chips, devices_document(list(GENERATIONS.values()), list(DEVICES.values())))
        return
    device = find_device(name)
    facts = [] if device.generation is None else [asdict(each) for each in device.generation.facts]
    printing.either({"name": device.name, "facts": facts}, device_document(device))


def demo(
    output: Annotated[Path, typer.Argument(help="Where to write the result.")] = Path("detent-demo/digits_xint8.onnx"),
    files: Annotated[
        Path | None,
        typer.Option("--files", help="Only copy the demo's model and images there.", metavar="DIR"),
    ] = None,
    verbose: Annotated[bool, ui.option_of(opt.VERBOSE)] = False,
) -> None:
    """Quantize the small digit classifier that comes with Detent, and measure what it cost."""
    from detent.demo import copy_files, run_demo

    if files is not None:
        copy_files(files)
        return
    ui.run(run_demo, output).show(ui.stdout(), verbose=verbose)


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
        typer.Option(
            "--device",
            help="Side by side, with the estimated time on phx, hpt, stx, krk or strix-halo.",
            autocompletion=ui.complete_device,
        ),
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
    recipe: ui.RecipeName = None,
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
    trust: Trust = False,
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
    given: Any = rounding  # any text: the emulator checks it
    with guarded(model, trust=trust):
        source = open_source(data, input_specs(load(model)), preprocess=images)
        sample = next(iter(source)).load()
        printing.tell(dump_codes(model, sample.feeds, out, floats=floats, rounding=given, origin=sample.origin))


def check(
    model: ui.AnyModel,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "--target",
            help="phx, hpt, stx, krk, strix-halo or cpu; or npu-xint8, npu-a8w8, npu-a16w8, npu-bf16. "
            "Default: the last kind, by the file's numbers.",
            autocompletion=ui.complete_device,
        ),
    ] = None,
    ep_report: Annotated[
        Path | None,
        typer.Option("--ep-report", help="A placement report of the EP, or a folder of them.", metavar="FILE"),
    ] = None,
    time: Annotated[bool, typer.Option("--time", help="Also time the model on this CPU.")] = False,
    software: Annotated[str, typer.Option("--software", help="Ryzen AI version: 1.6, 1.7 or 1.8. Default: any.")] = "",
    trust: Trust = False,
    *,
    printing: ui.PrintOptions,
) -> None:
    """Show, node by node, whether a device accepts MODEL, and why not.

    Exit code 0: it accepts all of it; 6: it does not.

    Example: detent check model_int8.onnx --device stx
    """
    from detent.device_check import check as run

    with guarded(model, trust=trust):
        result = run(model, device, software)
    if ep_report is not None:
        _tell_report(model, result, ep_report, printing)
        return
    if time and result.cost is not None:
        from detent.device_check import cpu_milliseconds

        result = replace(result, cost=replace(result.cost, cpu=cpu_milliseconds(model)))
    printing.tell(result)
    if not result.accepted:
        raise typer.Exit(NOT_TAKEN)


def _tell_report(model: Path, result: DeviceCheck, file: Path, printing: ui.PrintOptions) -> None:
    """Print a report of the EP beside the prediction, or a table of several."""
    from detent.device_check.ep_report import compare_report, report_table

    if file.is_dir():
        typer.echo(report_table(file))
        return
    printing.tell_text(compare_report(model, result, file))


def deploy(
    model: ui.AnyModel,
    folder: Annotated[Path, typer.Argument(help="Output folder; new or empty.", metavar="DIR")],
    device: Annotated[
        str,
        typer.Option(
            "--device", "--target", help="phx, hpt, stx, krk or strix-halo.", autocompletion=ui.complete_device
        ),
    ],
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
    trust: Trust = False,
    *,
    printing: ui.PrintOptions,
    **options: Unpack[opt.ImageOptions],
) -> None:
    """Write a folder to copy to the laptop: MODEL, a program that runs it on the NPU, samples and expected answers.

    Example: detent deploy mobilenetv2_int8.onnx npu/ --device stx --data images/
    """
    from detent.convert.splitting import tail_file
    from detent.deploy import deploy as run
    from detent.option_values import image_options

    images = image_options(opt.settled(opt.ImageOptions, options))
    sampled = partial(run, data=data, samples=samples, preprocess=images)
    with guarded(model, tail or tail_file(model), trust=trust):
        printing.tell_text(sampled(model, folder, device, tail=tail, software=software, force=force))


def inspect(
    model: ui.AnyModel,
    nodes: Annotated[bool, typer.Option("--nodes", help="Also list every node.")] = False,
    trust: Trust = False,
    *,
    printing: ui.PrintOptions,
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
    printing: ui.PrintOptions,
) -> None:
    """Show what calibration saw: range, sparsity and outliers of every tensor, and what each method would choose."""
    from detent.observe.statistics_file import load_statistics
    from detent.report.statistics_plots import plot_statistics
    from detent.results.tensors import choices_of, view_statistics

    loaded = load_statistics(file)
    view = view_statistics(loaded, choices_of, patterns=tensor, order=sort)
    if plot is not None:
        plot_statistics(loaded.statistics, plot, {each.name: each.choices for each in view.tensors})
    printing.tell(view, plot)


def convert(
    model: ui.AnyModel,
    output: ui.Output,
    to: Annotated[
        list[str],
        typer.Option(
            "--to", help="What to convert to, such as float16 or opset:version=21; may be repeated.", metavar="STEP"
        ),
    ] = [],  # noqa: B006
    trust: Trust = False,
    *,
    printing: ui.PrintOptions,
) -> None:
    """Convert MODEL to another form: float, another number type, opset, layout or operator generation.

    Example: detent convert model.onnx model_fp16.onnx --to fixed-shapes:batch=1 --to float16
    """
    from detent.convert import convert as run

    with guarded(model, trust=trust):
        printing.tell(run(model, output, to))


def split(
    model: ui.AnyModel,
    body: Annotated[Path, typer.Argument(help="Where to write the first part, for the device.", metavar="BODY")],
    tail: Annotated[Path, typer.Argument(help="Where to write the second part, for the CPU.", metavar="TAIL")],
    *,
    printing: ui.PrintOptions,
    **options: Unpack[opt.SplitOptions],
) -> None:
    """Cut MODEL in two files, and say which tensors go from one to the other.

    Example: detent split yolov8n.onnx yolov8n_body.onnx yolov8n_tail.onnx
    """
    printing.tell(api.split(model, body, tail, **options))
