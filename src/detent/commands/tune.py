"""The command `detent tune`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detent.commands import options
from detent.commands.images import takes_images
from detent.commands.options import DATA

if TYPE_CHECKING:
    from rich.console import Console

MISSED = 6
"""The exit code where a model was written, but none lost as little as was asked for."""


def register(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    """Add the command to the application; the consoles are made when it prints."""

    @app.command()
    @takes_images
    def tune(
        model: Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")],
        output: Annotated[Path, typer.Argument(help="Where to write the result.", metavar="OUTPUT")],
        calib: Annotated[Path, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")],
        max_drop: Annotated[float, typer.Option("--max-drop", min=0.0, help="The loss to accept.")] = 1.0,
        evaluation: Annotated[
            Path | None, typer.Option("--eval", help="Labelled data to judge by. Without: a part of --calib.")
        ] = None,
        metric: Annotated[
            Path | None,
            typer.Option("--metric", help="A Python file with score(outputs, sample) or metric(outputs, labels)."),
        ] = None,
        budget: Annotated[
            str | None, typer.Option("--budget", help="The time to take: 90s, 10m, 1h30m.", metavar="TIME")
        ] = None,
        recipe: Annotated[str, typer.Option("--recipe", help="What to start from: a name, or a .toml file.")] = "XINT8",
        settings: options.Settings = [],  # noqa: B006
        toml: Annotated[
            Path | None, typer.Option("--toml", help="Where to write the winning recipe. Else: OUTPUT as .toml.")
        ] = None,
        eval_limit: Annotated[
            int | None, typer.Option("--eval-limit", min=1, help="Judge by at most N samples.", rich_help_panel=DATA)
        ] = None,
        label_offset: Annotated[
            int, typer.Option("--label-offset", help="Add N to every label (1001 classes: 1).", rich_help_panel=DATA)
        ] = 0,
        fix_shape: Annotated[
            list[str], typer.Option(help="Make a dynamic shape fixed: input=1,3,224,224.", metavar="INPUT=DIMS")
        ] = [],  # noqa: B006
        limit: options.Limit = None,
        seed: options.Seed = None,
        batch: options.Batch = None,
        images: Any = None,
        threads: Annotated[int, typer.Option(min=0, help="Worker threads; 0: one per core.")] = 0,
        resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Continue an interrupted tuning.")] = True,
        report: Annotated[Path | None, typer.Option("--report", help="Also save the ladder as JSON.")] = None,
        html: options.Html = None,
        json: options.Json = False,
    ) -> None:
        """Try better and better ways to quantize MODEL, and write the first that loses at most --max-drop.

        Example: detent tune mobilenetv2.onnx mobilenetv2_int8.onnx --calib photos/ --eval labelled/ --max-drop 1.0
        """
        import detent
        from detent.graph.save import check_output
        from detent.progress_bar import progress_bar
        from detent.report.tuning import RungOutcome
        from detent.report.tuning_view import print_rung, print_tuning

        if report is not None:
            check_output(report, model, output)
        options.check_page(html, model, output, metric, toml or output.with_suffix(".toml"), report)
        console = stderr() if json else stdout()

        def told(outcome: RungOutcome) -> None:
            print_rung(outcome, console)

        with progress_bar(stderr()) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            tuning = detent.tune(
                model,
                output,
                calib,
                options.change_recipe(recipe, settings),
                max_drop=max_drop,
                evaluation=evaluation,
                metric=metric,
                label_offset=label_offset,
                evaluation_limit=eval_limit,
                budget=budget,
                recipe_file=toml,
                preprocess=images,
                fix_shapes=options.shapes(fix_shape),
                limit=limit,
                seed=seed,
                batch=batch,
                threads=threads,
                resume=resume,
                progress=progress,
                told=told,
            )
        if report is not None:
            tuning.save(report)
        options.write_html(tuning, html)
        if json:
            typer.echo(tuning.to_json())
        else:
            print_tuning(tuning, console)
        if not tuning.met:
            raise typer.Exit(MISSED)
