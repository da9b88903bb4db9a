"""The command `detent sensitivity`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from detent.commands import options
from detent.commands.images import takes_images
from detent.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

PROPOSAL = "Proposal"


def register(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    """Add the command to the application; `stdout` and `stderr` make the consoles that it prints to."""

    @app.command()
    @takes_images
    def sensitivity(
        model: Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")],
        calib: Annotated[
            Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")
        ] = None,
        recipe: Annotated[
            str, typer.Option("--recipe", help="A name that `detent recipes` lists, or a .toml file.")
        ] = "XINT8",
        settings: options.Settings = [],  # noqa: B006
        max_error: Annotated[
            str | None,
            typer.Option(
                help="Propose what brings the error below this: -25dB, or 0.003 of the signal's power.",
                metavar="ERROR",
                rich_help_panel=PROPOSAL,
            ),
        ] = None,
        propose: Annotated[
            Literal["exclude", "a16", "w8"],
            typer.Option(
                help="Leave layers float, give activations 16 bits, or 4-bit weights 8.", rich_help_panel=PROPOSAL
            ),
        ] = "exclude",
        toml: Annotated[
            Path | None, typer.Option(help="Write the proposed recipe to this file.", rich_help_panel=PROPOSAL)
        ] = None,
        samples: Annotated[int, typer.Option(min=1, help="Measure on up to N samples.", metavar="N")] = 32,
        exact: Annotated[bool, typer.Option("--exact", help="Measure all of it, on all of them; slow.")] = False,
        limit: options.Limit = None,
        seed: options.Seed = None,
        batch: options.Batch = None,
        images: Any = None,
        threads: Annotated[int, typer.Option(min=0, help="Worker threads; 0: one per core.")] = 0,
        workers: Annotated[
            int | None, typer.Option(min=1, help="Count and measure in N processes.", metavar="N")
        ] = None,
        dask: Annotated[
            str | None, typer.Option(help="Count and measure on a Dask cluster.", metavar="ADDRESS")
        ] = None,
        stats: options.Stats = None,
        html: options.Html = None,
        json: options.Json = False,
    ) -> None:
        """Show which layers cost most when they are quantized, and propose what to leave out.

        Example: detent sensitivity mobilenetv2.onnx --calib images/ --max-error -25dB --toml better.toml
        """
        if toml is not None and max_error is None:
            raise UsageError("--toml writes the proposed recipe: say with --max-error what it should reach.")
        import detent
        from detent.graph.save import check_output, write_text
        from detent.observe.executors import open_executor
        from detent.progress_bar import progress_bar
        from detent.report.sensitivity_view import print_sensitivity

        if toml is not None:
            check_output(toml, model)
        options.check_page(html, model, toml, stats)
        wanted = None if max_error is None else options.error_of(max_error)
        with open_executor(workers, dask) as executor, progress_bar(stderr()) as progress:
            report = detent.sensitivity(
                model,
                calib,
                options.change_recipe(recipe, settings),
                max_error=wanted,
                propose=propose,
                samples=samples,
                exact=exact,
                preprocess=images,
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
        options.write_html(report, html)
        if json:
            typer.echo(report.to_json())
            return
        print_sensitivity(report, stdout())
