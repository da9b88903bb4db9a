"""Commands that make a quantized model or a recipe, or list recipes and devices: quantize to demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typing_extensions import Unpack

from detent import api
from detent.cli import console as ui
from detent.errors import UsageError
from detent.options import VERBOSE, MixOptions, QuantizeOptions, SettingOptions, TuneOptions

if TYPE_CHECKING:
    from detent.results.searched import StepOutcome

MISSED = 6  # the exit code if a result was found, but none loses as little as was asked for


def quantize(
    model: ui.FloatModel,
    output: Annotated[Path | None, typer.Argument(help="Where to write the result.", metavar="OUTPUT")] = None,
    *,
    calib: Annotated[
        Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file. Default: random data.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="A name from `detent recipes`, or a .toml file. Default: XINT8, or what suits --device."
        ),
    ] = None,
    results: ui.ResultOptions,
    **options: Unpack[QuantizeOptions],
) -> None:
    """Quantize MODEL and write it to OUTPUT.

    Example: detent quantize mobilenetv2.onnx mobilenetv2_int8.onnx --calib images/
    """
    if output is None and not options.get("dry_run"):
        raise UsageError("Give an OUTPUT to write to, or --dry-run.")
    results.check(model, output, options.get("stats"), options.get("save_stats"))
    with _saying_what_is_kept(output):
        result = ui.run(api.quantize, model, output, calib, recipe, try_advice=True, **options)
    results.tell(result, options.get("save_stats"))


@contextmanager
def _saying_what_is_kept(output: Path | None) -> Iterator[None]:
    """On Ctrl-C, say what is kept beside the output, if anything is."""
    try:
        yield
    except KeyboardInterrupt:
        from detent.pipeline.job import checkpoint_beside, refinement_beside

        if output is None:
            raise
        beside = {"What was counted is": checkpoint_beside(output), "Refined layers are": refinement_beside(output)}
        for what, kept in beside.items():
            if kept.exists():
                raise ui.InterruptedRunError(
                    f"Interrupted. {what} kept in {kept}: the same command continues."
                ) from None
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
    **options: Unpack[TuneOptions],
) -> None:
    """Try ever better ways to quantize MODEL, and write the first that loses at most --max-drop.

    Example: detent tune mobilenetv2.onnx mobilenetv2_int8.onnx --calib photos/ --eval labelled/ --max-drop 1.0
    """
    from detent.report.searches import step_line

    results.check(model, output, options.get("metric"), options.get("toml") or output.with_suffix(".toml"))
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
    **options: Unpack[MixOptions],
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
    **options: Unpack[SettingOptions],
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
    verbose: Annotated[bool, ui.option_of(VERBOSE)] = False,
) -> None:
    """Quantize the small digit classifier that comes with Detent, and measure what it cost."""
    from detent.demo import copy_files, run_demo

    if files is not None:
        copy_files(files)
        return
    ui.run(run_demo, output).show(ui.stdout(), verbose=verbose)
