"""The command `detent tune`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.commands import options
from detent.commands.consoles import stderr, stdout
from detent.commands.options import DATA
from detent.commands.recipe_options import RecipeOptions, Rounding, change_recipe
from detent.commands.results import ResultOptions
from detent.commands.samples import ReadingOptions

if TYPE_CHECKING:
    from detent.recipe import Recipe

MISSED = 6
"""The exit code where a model was written, but none lost as little as was asked for."""


@dataclass(frozen=True)
class FirstRecipe(RecipeOptions):
    """The recipe of the lowest rung."""

    recipe: Annotated[str, typer.Option("--recipe", help="What to start from: a name, or a .toml file.")] = "XINT8"
    rounding: Rounding = None

    def chosen(self) -> Recipe:
        """The recipe, for a device with this rounding."""
        return change_recipe(self.recipe, self.settings, rounding=self.rounding)


def tune(
    model: options.FloatModel,
    output: options.Output,
    *,
    calib: Annotated[Path, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")],
    max_drop: Annotated[float, typer.Option("--max-drop", min=0.0, help="The loss to accept.")] = 1.0,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Labelled data to judge by. Without: a part of --calib.")
    ] = None,
    metric: options.Metric = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="The time to take: 90s, 10m, 1h30m.", metavar="TIME")
    ] = None,
    recipe: FirstRecipe,
    toml: Annotated[
        Path | None, typer.Option("--toml", help="Where to write the winning recipe. Else: OUTPUT as .toml.")
    ] = None,
    eval_limit: Annotated[
        int | None, typer.Option("--eval-limit", min=1, help="Judge by at most N samples.", rich_help_panel=DATA)
    ] = None,
    label_offset: options.LabelOffset = 0,
    reading: ReadingOptions,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Continue an interrupted tuning.")] = True,
    results: ResultOptions,
) -> None:
    """Try better and better ways to quantize MODEL, and write the first that loses at most --max-drop.

    Example: detent tune mobilenetv2.onnx mobilenetv2_int8.onnx --calib photos/ --eval labelled/ --max-drop 1.0
    """
    import detent
    from detent.commands.progress_bar import progress_bar
    from detent.report.accuracy import step_line
    from detent.report.documents import print_result

    results.check(model, output, metric, toml or output.with_suffix(".toml"))
    console = stderr() if results.page.json else stdout()
    with progress_bar(stderr()) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tuning = detent.tune(
            model,
            output,
            calib,
            recipe.chosen(),
            max_drop=max_drop,
            evaluation=evaluation,
            metric=metric,
            label_offset=label_offset,
            evaluation_limit=eval_limit,
            budget=budget,
            recipe_file=toml,
            **reading.given(),
            resume=resume,
            progress=progress,
            told=lambda outcome: console.print(step_line(outcome), markup=False),
        )
    results.tell(tuning, print_result)
    if not tuning.met:
        raise typer.Exit(MISSED)
