"""Where the commands print. The streams are looked up when a console is made, since they may have been redirected."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """For results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """For progress and errors."""
    return _console(sys.stderr)


def echo_json(value: Any) -> None:
    """Print a value that JSON has, as JSON."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _console(stream: IO[str]) -> Console:
    from detent.report.terminal import PlainConsole

    console = PlainConsole(file=stream)
    # Into a file or a pipe, lines are as long as they are: tools that read them do not want ours folded at column 80.
    return console if console.is_terminal else PlainConsole(file=stream, width=200)
