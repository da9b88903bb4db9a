"""The commands `detent compare` and `detent infer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detent.commands import options
from detent.commands.images import takes_images
from detent.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

Threads = Annotated[int, typer.Option(min=0, help="Worker threads; 0: one per core.")]


def register(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    """Add the commands to the application; the consoles are made when they print."""
    _add_compare(app, stdout, stderr)
    _add_infer(app, stdout, stderr)


def _add_compare(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    @app.command()
    @takes_images
    def compare(
        before: Annotated[Path, typer.Argument(help="A model, or a folder of results.", metavar="A")],
        after: Annotated[Path, typer.Argument(help="Another one.", metavar="B")],
        data: Annotated[
            Path | None, typer.Option("--data", help="For models: a folder of images, .npy or .npz.")
        ] = None,
        limit: options.Limit = None,
        batch: options.Batch = None,
        images: Any = None,
        inner: Annotated[
            bool, typer.Option("--inner", help="Also what goes from a layer into its activation function.")
        ] = False,
        threads: Threads = 0,
        providers: options.RuntimeProviders = [],  # noqa: B006
        html: options.Html = None,
        json: options.Json = False,
    ) -> None:
        """Compare two models tensor by tensor, or two folders of results file by file.

        Example: detent compare model.onnx model_int8.onnx --data images/ --limit 8
        """
        options.check_page(html, before, after)
        if before.is_dir() or after.is_dir():
            if data is not None or limit or batch or inner or threads or providers or images.given():
                raise UsageError("Two folders of results are compared as they are: give only the folders.")
            _compare_folders(before, after, stdout, html=html, json=json)
            return
        if data is None:
            raise UsageError("Give --data DIR with samples to run both models on.")
        from detent.graph.session import DEFAULT_PROVIDERS
        from detent.measure.tensors import compare_models
        from detent.progress_bar import progress_bar
        from detent.report.comparison_view import print_comparison
        from detent.report.report import plain

        with progress_bar(stderr()) as progress:
            comparison = compare_models(
                before,
                after,
                data,
                preprocess=images,
                limit=limit,
                batch=batch,
                threads=threads,
                providers=tuple(providers) or DEFAULT_PROVIDERS,
                inner=inner,
                progress=progress,
            )
        options.write_html(comparison, html)
        if json:
            _echo_json(plain(comparison.to_dict()))
        else:
            print_comparison(comparison, stdout())


def _add_infer(app: typer.Typer, stdout: Callable[[], Console], stderr: Callable[[], Console]) -> None:
    @app.command()
    @takes_images
    def infer(
        model: Annotated[Path, typer.Argument(help="A float or quantized ONNX model.", metavar="MODEL")],
        data: Annotated[Path, typer.Option("--data", help="A folder of images, .npy or .npz.")],
        out: Annotated[Path, typer.Option("--out", help="Where to write; a new or empty folder.", metavar="DIR")],
        limit: options.Limit = None,
        batch: options.Batch = None,
        images: Any = None,
        threads: Threads = 0,
        providers: options.RuntimeProviders = [],  # noqa: B006
    ) -> None:
        """Run MODEL on data and save each output as .npy, under the name of its sample.

        Example: detent infer model_int8.onnx --data images/ --out answers/
        """
        from detent.graph.session import DEFAULT_PROVIDERS
        from detent.measure.infer import save_outputs
        from detent.progress_bar import progress_bar

        with progress_bar(stderr()) as progress:
            written, described = save_outputs(
                model,
                data,
                out,
                preprocess=images,
                limit=limit,
                batch=batch,
                threads=threads,
                providers=tuple(providers) or DEFAULT_PROVIDERS,
                progress=progress,
            )
        stdout().print(f"{len(written)} files in {out}: {model} on {described}.", markup=False)


def _compare_folders(
    before: Path, after: Path, stdout: Callable[[], Console], *, html: Path | None, json: bool
) -> None:
    from detent.measure.results import compare_folders
    from detent.report.report import plain
    from detent.report.results_view import results_table

    found = compare_folders(before, after)
    options.write_html(found, html)
    if json:
        _echo_json(plain(found.to_dict()))
    else:
        stdout().print(results_table(found), end="", markup=False)


def _echo_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
