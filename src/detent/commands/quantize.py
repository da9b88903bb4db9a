"""The command `detent quantize`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from detent.commands import options
from detent.commands.consoles import stderr
from detent.commands.interruption import InterruptedWithWordsError
from detent.commands.options import CALIBRATION
from detent.commands.recipe_options import ACCURACY, RecipeFlags
from detent.commands.results import ResultOptions
from detent.commands.samples import CountingOptions, ReadingOptions
from detent.errors import UsageError

NODES = "Which nodes"


class NodeArguments(TypedDict):
    """What says which nodes are quantized."""

    include: list[str]
    exclude: list[str]
    op_types: list[str]
    start: list[str]
    end: list[str]


@dataclass(frozen=True)
class NodeOptions:
    """Which nodes are quantized."""

    include: Annotated[
        list[str], typer.Option(help="Only nodes that match.", metavar="PATTERN", rich_help_panel=NODES)
    ] = field(default_factory=list)
    exclude: Annotated[list[str], typer.Option(help="Leave these float.", metavar="PATTERN", rich_help_panel=NODES)] = (
        field(default_factory=list)
    )
    op_types: Annotated[
        list[str], typer.Option("--op-types", help="Only these operators.", metavar="TYPE", rich_help_panel=NODES)
    ] = field(default_factory=list)
    start: Annotated[
        list[str], typer.Option("--from", help="Only what follows NODE.", metavar="NODE", rich_help_panel=NODES)
    ] = field(default_factory=list)
    end: Annotated[
        list[str], typer.Option("--to", help="Only what leads to NODE.", metavar="NODE", rich_help_panel=NODES)
    ] = field(default_factory=list)

    def given(self) -> NodeArguments:
        """As keyword arguments."""
        return {
            "include": self.include,
            "exclude": self.exclude,
            "op_types": self.op_types,
            "start": self.start,
            "end": self.end,
        }


@dataclass(frozen=True)
class KeepingOptions:
    """On what statistics are counted, and what is kept of them."""

    providers: Annotated[
        list[str],
        typer.Option("--providers", help="onnxruntime's.", metavar="PROVIDER", rich_help_panel=CALIBRATION),
    ] = field(default_factory=list)
    save_stats: Annotated[
        Path | None,
        typer.Option("--save-stats", help="Keep the statistics in this file.", rich_help_panel=CALIBRATION),
    ] = None
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Continue an interrupted run.", rich_help_panel=CALIBRATION),
    ] = True


def quantize(
    model: options.FloatModel,
    output: Annotated[Path | None, typer.Argument(help="Where to write the result.", metavar="OUTPUT")] = None,
    *,
    calib: Annotated[
        Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file. Without: random data.")
    ] = None,
    recipe: RecipeFlags,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", help="What --refine may use; default 2GB.", metavar="AMOUNT", rich_help_panel=ACCURACY
        ),
    ] = None,
    nodes: NodeOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    keeping: KeepingOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; run nothing, write no model.")
    ] = False,
    results: ResultOptions,
) -> None:
    """Quantize MODEL and write it to OUTPUT.

    Example: detent quantize mobilenetv2.onnx mobilenetv2_int8.onnx --calib images/
    """
    if output is None and not dry_run:
        raise UsageError("Give an OUTPUT to write to, or --dry-run.")
    import detent
    from detent.commands.progress_bar import progress_bar
    from detent.report.documents import print_result

    results.check(model, output, counting.stats, keeping.save_stats)
    chosen = recipe.chosen()
    with (
        _saying_what_is_kept(output),
        counting.executor() as executor,
        progress_bar(stderr()) as progress,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # the report says it
        result = detent.quantize(
            model,
            output,
            calib,
            chosen,
            **nodes.given(),
            **reading.given(),
            executor=executor,
            providers=keeping.providers,
            stats=counting.stats,
            save_stats=keeping.save_stats,
            resume=keeping.resume,
            memory=memory,
            dry_run=dry_run,
            progress=progress,
        )
    results.tell(result, print_result)


@contextmanager
def _saying_what_is_kept(output: Path | None) -> Iterator[None]:
    """Ctrl-C says what is kept beside the output, where anything is."""
    try:
        yield
    except KeyboardInterrupt:
        from detent.pipeline.job import checkpoint_beside, refinement_beside

        if output is None:
            raise
        beside = {"What was counted is": checkpoint_beside(output), "Refined layers are": refinement_beside(output)}
        for what, kept in beside.items():
            if kept.exists():
                raise InterruptedWithWordsError(
                    f"Interrupted. {what} kept in {kept}: the same command continues."
                ) from None
        raise
