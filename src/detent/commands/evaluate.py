"""The command `detent evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from detent.commands import options
from detent.commands.images import takes_images
from detent.commands.options import DATA
from detent.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    """Add the command to the application; the consoles are made when it prints."""

    @app.command()
    @takes_images
    def evaluate(
        models: Annotated[
            list[Path], typer.Argument(help="The float model, then those to compare with it.", metavar="MODEL")
        ],
        data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz, with labels or without.")],
        metric: Annotated[
            Path | None,
            typer.Option("--metric", help="A Python file with score(outputs, sample) or metric(outputs, labels)."),
        ] = None,
        labels: Annotated[
            Path | None, typer.Option("--labels", help="A file of labels, if not in the folder.", rich_help_panel=DATA)
        ] = None,
        no_labels: Annotated[
            bool, typer.Option("--no-labels", help="Compare outputs, whatever labels there are.", rich_help_panel=DATA)
        ] = False,
        label_offset: Annotated[
            int,
            typer.Option("--label-offset", help="Add N to every label (1001 classes: 1).", rich_help_panel=DATA),
        ] = 0,
        limit: options.Limit = None,
        batch: options.Batch = None,
        images: Any = None,
        threads: Annotated[int, typer.Option(min=0, help="Worker threads; 0: one per core.")] = 0,
        providers: options.RuntimeProviders = [],  # noqa: B006
        emulate: Annotated[
            Literal["half-even", "dpu"] | None,
            typer.Option("--emulate", help="Compute all models but the first in integers, as the NPU does."),
        ] = None,
        report: Annotated[Path | None, typer.Option("--report", help="Also save the result as JSON.")] = None,
        html: options.Html = None,
        json: options.Json = False,
    ) -> None:
        """Measure models on the same data, and what each lost against the first.

        Example: detent evaluate mobilenetv2.onnx mobilenetv2_int8.onnx --data photos/
        """
        import detent
        from detent.graph.save import check_output
        from detent.progress_bar import progress_bar

        if labels is not None and no_labels:
            raise UsageError("--labels and --no-labels contradict each other. Give one of them.")
        if report is not None:
            check_output(report, *models, *(file for file in (metric, labels) if file is not None))
        options.check_page(html, *models, metric, labels, report)
        with progress_bar(stderr()) as progress:
            evaluation = detent.evaluate(
                models,
                data,
                metric=metric,
                labels=None if no_labels else "find" if labels is None else labels,
                label_offset=label_offset,
                preprocess=images,
                limit=limit,
                batch=batch,
                threads=threads,
                providers=providers,
                emulate=emulate,
                progress=progress,
            )
        if report is not None:
            evaluation.save(report)
        options.write_html(evaluation, html)
        if json:
            typer.echo(evaluation.to_json())
            return
        from detent.report.evaluation_view import print_evaluation

        print_evaluation(evaluation, stdout())
