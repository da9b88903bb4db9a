"""The command `detent mix`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from detent.commands import options
from detent.commands.images import takes_images

if TYPE_CHECKING:
    from rich.console import Console

MISSED = 6
"""The exit code where a recipe was found, but none keeps to the error that was asked for: as `detent tune` has it."""


def register(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    """Add the command to the application; `stdout` and `stderr` make the consoles that it prints to."""

    @app.command()
    @takes_images
    def mix(
        model: Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")],
        calib: Annotated[
            Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")
        ] = None,
        recipe: Annotated[
            str, typer.Option("--recipe", help="What all else is from: a name, or a .toml file.")
        ] = "A8W8",
        settings: options.Settings = [],  # noqa: B006
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
        samples: Annotated[int, typer.Option(min=1, help="Measure on up to N samples.", metavar="N")] = 32,
        fix_shape: Annotated[
            list[str], typer.Option(help="Make a dynamic shape fixed: input=1,3,224,224.", metavar="INPUT=DIMS")
        ] = [],  # noqa: B006
        limit: options.Limit = None,
        seed: options.Seed = None,
        batch: options.Batch = None,
        images: Any = None,
        threads: Annotated[int, typer.Option(min=0, help="Worker threads; 0: one per core.")] = 0,
        workers: options.Workers = None,
        dask: options.Dask = None,
        stats: options.Stats = None,
        json: options.Json = False,
    ) -> None:
        """Find the cheapest format for each layer: mixed precision, as a recipe for `detent quantize`.

        Example: detent mix model.onnx --calib images/ --candidates int4,int8 --max-error -30dB --toml mixed.toml
        """
        import detent
        from detent.graph.save import check_output, write_text
        from detent.observe.executors import open_executor
        from detent.progress_bar import progress_bar
        from detent.report.precision_view import print_precision

        if toml is not None:
            check_output(toml, model)
        wanted = None if max_error is None else options.error_of(max_error)
        with open_executor(workers, dask) as executor, progress_bar(stderr()) as progress:
            report = detent.mix(
                model,
                calib,
                options.change_recipe(recipe, settings),
                candidates=candidates,
                what=what,
                max_error=wanted,
                mean_bits=mean_bits,
                samples=samples,
                preprocess=images,
                fix_shapes=options.shapes(fix_shape),
                limit=limit,
                seed=seed,
                batch=batch,
                threads=threads,
                executor=executor,
                stats=stats,
                progress=progress,
            )
        if toml is not None:
            write_text(report.to_toml(), toml)
        if json:
            typer.echo(report.to_json())
        else:
            print_precision(report, stdout())
        if not report.reached:
            raise typer.Exit(MISSED)
