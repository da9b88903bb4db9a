"""The command `detent evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from detent.commands import options
from detent.commands.consoles import stderr
from detent.commands.options import DATA
from detent.commands.results import ResultOptions
from detent.commands.samples import RunningOptions
from detent.errors import UsageError


def evaluate(
    models: Annotated[
        list[Path], typer.Argument(help="The float model, then those to compare with it.", metavar="MODEL")
    ],
    *,
    data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz, with labels or without.")],
    metric: options.Metric = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="A file of labels, if not in the folder.", rich_help_panel=DATA)
    ] = None,
    no_labels: Annotated[
        bool, typer.Option("--no-labels", help="Compare outputs, whatever labels there are.", rich_help_panel=DATA)
    ] = False,
    label_offset: options.LabelOffset = 0,
    running: RunningOptions,
    emulate: Annotated[
        Literal["half-even", "dpu"] | None,
        typer.Option("--emulate", help="Compute all models but the first in integers, as the NPU does."),
    ] = None,
    results: ResultOptions,
) -> None:
    """Measure models on the same data, and what each lost against the first.

    Example: detent evaluate mobilenetv2.onnx mobilenetv2_int8.onnx --data photos/
    """
    import detent
    from detent.commands.progress_bar import progress_bar
    from detent.report.documents import print_result

    if labels is not None and no_labels:
        raise UsageError("--labels and --no-labels contradict each other. Give one of them.")
    results.check(*models, metric, labels)
    with progress_bar(stderr()) as progress:
        evaluation = detent.evaluate(
            models,
            data,
            metric=metric,
            labels=None if no_labels else "find" if labels is None else labels,
            label_offset=label_offset,
            **running.given(),
            emulate=emulate,
            progress=progress,
        )
    results.tell(evaluation, print_result)
