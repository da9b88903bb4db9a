"""The command `detent sensitivity`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from detent.commands import options
from detent.commands.consoles import stderr
from detent.commands.options import CALIBRATION
from detent.commands.parsing import error_of
from detent.commands.recipe_options import RecipeOptions
from detent.commands.results import PageOptions, check_file
from detent.commands.samples import CountingOptions, ReadingOptions
from detent.errors import UsageError

PROPOSAL = "Proposal"


@dataclass(frozen=True)
class MeasuringOptions(CountingOptions):
    """Workers that do not only count: they measure the layers too."""

    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="Count and measure in N processes.", metavar="N", rich_help_panel=CALIBRATION
        ),
    ] = None
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask", help="Count and measure on a Dask cluster.", metavar="ADDRESS", rich_help_panel=CALIBRATION
        ),
    ] = None


def sensitivity(
    model: options.FloatModel,
    *,
    calib: options.Calib = None,
    recipe: RecipeOptions,
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
    samples: options.MeasuredSamples = 32,
    exact: Annotated[bool, typer.Option("--exact", help="Measure all of it, on all of them; slow.")] = False,
    reading: ReadingOptions,
    counting: MeasuringOptions,
    page: PageOptions,
) -> None:
    """Show which layers cost most when they are quantized, and propose what to leave out.

    Example: detent sensitivity mobilenetv2.onnx --calib images/ --max-error -25dB --toml better.toml
    """
    if toml is not None and max_error is None:
        raise UsageError("--toml writes the proposed recipe: say with --max-error what it should reach.")
    import detent
    from detent.commands.progress_bar import progress_bar
    from detent.graph.save import write_text
    from detent.report.documents import print_result

    check_file(toml, model)
    page.check(model, toml, counting.stats)
    with counting.executor() as executor, progress_bar(stderr()) as progress:
        report = detent.sensitivity(
            model,
            calib,
            recipe.chosen(),
            max_error=None if max_error is None else error_of(max_error),
            propose=propose,
            samples=samples,
            exact=exact,
            **reading.given(),
            executor=executor,
            stats=counting.stats,
            progress=progress,
        )
    if toml is not None:
        write_text(report.to_toml(), toml)
    page.tell(report, print_result)
