"""The command `detent mix`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from detent.commands import options
from detent.commands.consoles import stderr, stdout
from detent.commands.parsing import error_of
from detent.commands.recipe_options import RecipeOptions
from detent.commands.results import check_file
from detent.commands.samples import CountingOptions, ReadingOptions

MISSED = 6
"""The exit code where a recipe was found, but none keeps to the error that was asked for: as `detent tune` has it."""


@dataclass(frozen=True)
class MixedRecipe(RecipeOptions):
    """The recipe that gives all but the formats that are chosen."""

    recipe: Annotated[str, typer.Option("--recipe", help="What all else is from: a name, or a .toml file.")] = "A8W8"


def mix(
    model: options.FloatModel,
    *,
    calib: options.Calib = None,
    recipe: MixedRecipe,
    candidates: Annotated[
        str, typer.Option(help="The integer formats to choose from.", metavar="FORMATS")
    ] = "int4,int8",
    what: Annotated[Literal["weights", "activations"], typer.Option(help="Whose formats are chosen.")] = "weights",
    max_error: Annotated[
        str | None,
        typer.Option(help="As few bits as this error takes: -30dB, or 0.001 of the power.", metavar="ERROR"),
    ] = None,
    mean_bits: Annotated[
        float | None, typer.Option(help="Or as little error as so many bits allow on average.", metavar="BITS")
    ] = None,
    toml: Annotated[Path | None, typer.Option(help="Write the recipe to this file.")] = None,
    samples: options.MeasuredSamples = 32,
    reading: ReadingOptions,
    counting: CountingOptions,
    json: options.Json = False,
) -> None:
    """Find the cheapest format for each layer: mixed precision, as a recipe for `detent quantize`.

    Example: detent mix model.onnx --calib images/ --candidates int4,int8 --max-error -30dB --toml mixed.toml
    """
    import detent
    from detent.commands.progress_bar import progress_bar
    from detent.graph.save import write_text
    from detent.report.documents import print_result

    check_file(toml, model)
    with counting.executor() as executor, progress_bar(stderr()) as progress:
        report = detent.mix(
            model,
            calib,
            recipe.chosen(),
            candidates=candidates,
            what=what,
            max_error=None if max_error is None else error_of(max_error),
            mean_bits=mean_bits,
            samples=samples,
            **reading.given(),
            executor=executor,
            stats=counting.stats,
            progress=progress,
        )
    if toml is not None:
        write_text(report.to_toml(), toml)
    if json:
        typer.echo(report.to_json())
    else:
        print_result(report, stdout())
    if not report.reached:
        raise typer.Exit(MISSED)
