"""Where commands print, and what they do with a result: show it, print JSON, write a file or a page."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from detent.progress import Progress
    from detent.results import Result

FloatModel = Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")]
AnyModel = Annotated[Path, typer.Argument(help="A float or quantized ONNX model.", metavar="MODEL")]
QuantizedModel = Annotated[Path, typer.Argument(help="A quantized ONNX model.", metavar="MODEL")]
Output = Annotated[Path, typer.Argument(help="Where to write the result.", metavar="OUTPUT")]
Calib = Annotated[Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")]
RecipeName = Annotated[str, typer.Option("--recipe", help="A name that `detent recipes` lists, or a .toml file.")]
DataOrRandom = Annotated[
    Path | None, typer.Option("--data", help="Folder of images, .npy or .npz; or one file. Without: random data.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


class InterruptedRunError(Exception):
    """Ctrl-C, with something to say about what is kept."""


def stdout() -> Console:
    """Return the console for results. Streams are looked up late, since they may have been redirected."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for progress and errors."""
    return _console(sys.stderr)


def echo_json(value: Any) -> None:
    """Print plain values as JSON."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def tell(result: object) -> None:
    """Print what a verb returned."""
    from detent.report.documents import print_result

    print_result(result, stdout())


def _console(stream: IO[str]) -> Console:
    from detent.report.terminal import PlainConsole

    console = PlainConsole(file=stream)
    # Tools that read a file or a pipe do not want lines folded at column 80.
    return console if console.is_terminal else PlainConsole(file=stream, width=200)


@contextmanager
def working() -> Iterator[Progress]:
    """Show progress during the block, and no Python warnings: the result says what they would."""
    from detent.cli.progress_bar import progress_bar

    with progress_bar(stderr()) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield progress


@dataclass(frozen=True)
class PageOptions:
    """A page beside what is printed, and JSON instead of it."""

    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write a page for a browser: one file, with pictures.", metavar="FILE"),
    ] = None
    json: Json = False

    def check(self, *others: Any) -> None:
        """Refuse, before any work is done, a page that could not be written or that would destroy another file."""
        check_file(self.html, *others)

    def write(self, result: object) -> None:
        """Write the page, if one was asked for."""
        from detent.report.page import write_page

        if self.html is not None:
            write_page(result, self.html)

    def tell(self, result: Result) -> None:
        """Write the page and print the result: as JSON, or as text."""
        self.write(result)
        if self.json:
            typer.echo(result.to_json())
        else:
            tell(result)


@dataclass(frozen=True)
class ResultOptions:
    """A file of JSON, and a page, beside what is printed."""

    report: Annotated[Path | None, typer.Option("--report", help="Also save the result as JSON.")] = None
    page: PageOptions = PageOptions()

    def check(self, *others: Any) -> None:
        """Refuse, before any work is done, files that could not be written or that would destroy others."""
        check_file(self.report, *others)
        self.page.check(*others, self.report)

    def tell(self, result: Result) -> None:
        """Write the files and print the result."""
        if self.report is not None:
            result.save(self.report)
        self.page.tell(result)


def check_file(file: Path | None, *others: Any) -> None:
    """Refuse a file that could not be written or that would destroy one of the others; None is no file."""
    from detent.graph.save import check_output

    if file is not None:
        check_output(file, *others)
