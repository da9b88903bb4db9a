"""The command `detent`: its commands, and one message for every error that a user can cause."""

from __future__ import annotations

import _thread
import io
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from detent import __version__
from detent.cli import commands
from detent.cli.console import InterruptedRunError, flattened, stderr, stdout
from detent.compat.script_runner import PASS_THROUGH, run
from detent.errors import DetentError, ModelError, OutputError

NOTHING_WRITTEN = "Interrupted. Nothing was written."
INTERRUPTED = 130  # what shells report after Ctrl-C: 128 + SIGINT

# The commands of `commands.py` as `detent --help` lists them, the most wanted ones first.
PANELS = {
    "Quantize": ("quantize", "tune", "mix", "recipes", "devices", "demo"),
    "Measure": ("evaluate", "compare", "sensitivity", "infer", "emulate", "dump"),
    "Inspect and convert": ("check", "deploy", "inspect", "stats", "convert", "split"),
}

SCRIPTS = "Scripts of other quantizers"

app = typer.Typer(
    name="detent",
    help="Quantize trained ONNX models for NPUs, and measure what it costs.",
    epilog="First: `detent demo`. Then: `detent quantize model.onnx model_int8.onnx --calib images/`.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for _panel, _names in PANELS.items():
    for _name in _names:
        app.command(rich_help_panel=_panel)(flattened(getattr(commands, _name)))
app.command(rich_help_panel=SCRIPTS, context_settings=PASS_THROUGH)(run)


def main() -> None:
    """Run a command; every error that a user can cause is one message and an exit code that means something."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # both leave nothing half-written behind
        signal.signal(ending, _interrupt_once)
    sys.unraisablehook = _interrupt_again
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # our own error reports what is wrong with a model
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show must not fail the command
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # the command-line library exits without a message on Ctrl-C
            stderr().print(NOTHING_WRITTEN)
        raise
    except KeyboardInterrupt:  # before the command-line library began
        stderr().print(NOTHING_WRITTEN)
        sys.exit(INTERRUPTED)
    except InterruptedRunError as error:
        stderr().print(str(error), markup=False, soft_wrap=True)
        sys.exit(INTERRUPTED)
    except DetentError as error:
        stderr().print(f"[bold red]Error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except MemoryError as error:
        advice = "Give --threads 1, a smaller --batch or a smaller --size, or use a machine with more."
        stderr().print(
            f"[bold red]Error:[/] There is not enough memory. {_escape(str(error))} {advice}", soft_wrap=True
        )
        sys.exit(ModelError.exit_code)
    except OSError as error:
        stderr().print(f"[bold red]Error:[/] {_escape(_explain(error))}", soft_wrap=True)
        sys.exit(OutputError.exit_code)


def _explain(error: OSError) -> str:
    """Return what to tell of an error of the system. Commands name the files that they cannot read or write."""
    try:
        Path.cwd()
    except OSError:
        return "The current folder is gone, so relative paths mean nothing. Change to another one, or give whole paths."
    if error.errno is None:  # of a library that is loaded when it is needed
        return f"{error} Is there enough memory, and is the installation whole?"
    if error.filename is not None:
        return f"Cannot use {error.filename}: {error.strerror}. Give another one."
    return f"Cannot print the result: {error}"  # what is left is the terminal or pipe itself


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Let the first Ctrl-C stop the work, and ignore those that follow while files are cleaned up."""
    while frame is not None:
        # Half of a module would be left, and the libraries around it report that as some other error. So a bit later.
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            threading.Timer(0.02, _thread.interrupt_main, (number,)).start()
            return
        frame = frame.f_back
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a Ctrl-C again that came while an object was deleted: Python prints what is raised there, and goes on."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        signal.signal(signal.SIGINT, _interrupt_once)
        threading.Timer(0.02, _interrupt_main).start()
    else:
        sys.__unraisablehook__(dropped)


def _interrupt_main() -> None:
    """Send Ctrl-C to the main thread. A real signal, where there is one, also ends what waits for the system."""
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        stdout().print(__version__, highlight=False)
        raise typer.Exit


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
