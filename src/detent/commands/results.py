"""What is done with the result of a command: printed, and written as JSON or as a page; as groups of options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from detent.commands.consoles import stdout
from detent.commands.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from detent.results.evaluated import Evaluation
    from detent.results.quantized import Report
    from detent.results.searched import SensitivityReport, Tuning

    Told = TypeVar("Told", Report, Evaluation, Tuning, SensitivityReport)
    Saved = TypeVar("Saved", Report, Evaluation, Tuning)


@dataclass(frozen=True)
class PageOptions:
    """A page beside what is printed, and JSON instead of it."""

    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write a page for a browser: one file, with pictures.", metavar="FILE"),
    ] = None
    json: Json = False

    def check(self, *others: Path | None) -> None:
        """Refuse, before any work is done, a page that could not be written or that would destroy another file."""
        check_file(self.html, *others)

    def write(self, result: object) -> None:
        """Write the page, where one was asked for."""
        from detent.report.page import write_page

        if self.html is not None:
            write_page(result, self.html)

    def tell(self, result: Told, show: Callable[[Told, Console], None]) -> None:
        """Write the page and print the result: as JSON, or as `show` does."""
        self.write(result)
        if self.json:
            typer.echo(result.to_json())
        else:
            show(result, stdout())


@dataclass(frozen=True)
class ResultOptions:
    """A file of JSON, and a page, beside what is printed."""

    report: Annotated[Path | None, typer.Option("--report", help="Also save the result as JSON.")] = None
    page: PageOptions = PageOptions()

    def check(self, *others: Path | None) -> None:
        """Refuse, before any work is done, files that could not be written or that would destroy others."""
        check_file(self.report, *others)
        self.page.check(*others, self.report)

    def tell(self, result: Saved, show: Callable[[Saved, Console], None]) -> None:
        """Write the files and print the result."""
        if self.report is not None:
            result.save(self.report)
        self.page.tell(result, show)


def check_file(file: Path | None, *others: Path | None) -> None:
    """Refuse a file that could not be written or that would destroy one of the others; None is no file."""
    from detent.graph.save import check_output

    if file is not None:
        check_output(file, *others)
