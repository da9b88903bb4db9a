"""Where commands print, and what they do with a result: show it, print JSON, write a file or a page.

While a command works, every stage that takes longer than a second has a bar with an estimate.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from detent.cli.flags import option_of
from detent.options import VERBOSE
from detent.progress import Progress, silent

PATIENCE = 1.0  # seconds


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """Yield an observer that draws on `console`, or is silent if that is no terminal."""
    if not console.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        stages = _Stages(bars)
        try:
            yield stages
        finally:
            stages.close()


class _Stages:
    """One bar at a time, shown when its stage has lasted long enough."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._name: str | None = None
        self._timer: threading.Timer | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """See `detent.progress.Progress`."""
        if stage != self._name:
            self.close()
            self._name = stage
            self._task = self._bars.add_task(stage, total=total, visible=False)
            self._timer = threading.Timer(PATIENCE, self._bars.update, (self._task,), {"visible": True})
            self._timer.daemon = True
            self._timer.start()
        self._bars.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Take the current bar away."""
        if self._timer is not None:
            self._timer.cancel()
            self._bars.update(self._task, visible=False)


if TYPE_CHECKING:
    from rich.console import Console

    from detent.progress import Progress
    from detent.report.document import Document
    from detent.results import Result

FloatModel = Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")]
AnyModel = Annotated[Path, typer.Argument(help="A float or quantized ONNX model.", metavar="MODEL")]
QuantizedModel = Annotated[Path, typer.Argument(help="A quantized ONNX model.", metavar="MODEL")]
Output = Annotated[Path, typer.Argument(help="Where to write the result.", metavar="OUTPUT")]
Calib = Annotated[Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")]


def complete_recipe(begun: str) -> list[str]:
    """Return the recipes whose names begin like that: what the shell offers at the Tab key."""
    from detent.recipe.presets import PRESETS

    return [name for name in PRESETS if name.lower().startswith(begun.lower())]


RecipeName = Annotated[
    str,
    typer.Option(
        "--recipe", help="A name that `detent recipes` lists, or a .toml file.", autocompletion=complete_recipe
    ),
]
DataOrRandom = Annotated[
    Path | None, typer.Option("--data", help="Folder of images, .npy or .npz; or one file. Without: random data.")
]


class InterruptedRunError(Exception):
    """Ctrl-C, with something to say about what is kept."""


def stdout() -> Console:
    """Return the console for results. Streams are looked up late, since they may have been redirected."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for progress and errors."""
    return _console(sys.stderr)


def _console(stream: IO[str]) -> Console:
    from detent.report.terminal import PlainConsole

    console = PlainConsole(file=stream)
    # Tools that read a file or a pipe do not want lines folded at column 80.
    return console if console.is_terminal else PlainConsole(file=stream, width=200)


@contextmanager
def working() -> Iterator[Progress]:
    """Show progress during the block, and no Python warnings: the result says what they would."""
    from detent.cli.console import progress_bar

    with progress_bar(stderr()) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield progress


@dataclass(frozen=True)
class PrintOptions:
    """How a result is printed: a short answer, all of it, or JSON."""

    verbose: Annotated[bool, option_of(VERBOSE)] = False
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False

    def tell(self, result: Any, *beside: Path | None) -> None:
        """Print what a verb returned. `beside` are the files that were written beside it."""
        if self.json:
            echo_json(result.to_json() if hasattr(result, "to_json") else result.to_dict())
        else:
            from detent.report.documents import document_of

            self.print(document_of(result), *beside)

    def print(self, document: Document, *beside: Path | None) -> None:
        """Print a document."""
        from detent.report.terminal import print_document

        print_document(document, stdout(), verbose=self.verbose, beside=[file for file in beside if file is not None])


def echo_json(value: Any) -> None:
    """Print plain values as JSON; text is JSON already."""
    import json

    typer.echo(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))


@dataclass(frozen=True)
class PageOptions:
    """A page beside what is printed."""

    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write a page for a browser: one file, with pictures.", metavar="FILE"),
    ] = None
    printing: PrintOptions = PrintOptions()

    def check(self, *others: Any) -> None:
        """Refuse, before any work is done, a page that could not be written or that would destroy another file."""
        check_file(self.html, *others)

    def tell(self, result: Any, *beside: Path | None) -> None:
        """Write the page, if one was asked for, and print the result."""
        from detent.report.page import write_page

        if self.html is not None:
            write_page(result, self.html)
        self.printing.tell(result, *beside, self.html)


@dataclass(frozen=True)
class ResultOptions:
    """A file of JSON, and a page, beside what is printed."""

    report: Annotated[Path | None, typer.Option("--report", help="Also save the result as JSON.")] = None
    page: PageOptions = PageOptions()

    def check(self, *others: Any) -> None:
        """Refuse, before any work is done, files that could not be written or that would destroy others."""
        check_file(self.report, *others)
        self.page.check(*others, self.report)

    def tell(self, result: Result, *beside: Any) -> None:
        """Write the files and print the result."""
        if self.report is not None:
            result.save(self.report)
        self.page.tell(result, *beside, self.report)


def check_file(file: Path | None, *others: Any) -> None:
    """Refuse a file that could not be written or that would destroy one of the others; None stands for no file."""
    from detent.graph.save import check_output

    if file is not None:
        check_output(file, *others)
