"""The command `detent`: its commands, and one message for every error that a user can cause."""

from __future__ import annotations

import _thread
import codecs
import contextlib
import errno
import io
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from detent import __version__
from detent.cli import commands
from detent.cli.console import InterruptedRunError, flattened, stderr, stdout
from detent.compat.script_runner import PASS_THROUGH, run
from detent.errors import DetentError, ModelError, OutputError, UsageError

# All of them leave nothing half-written behind. SIGBREAK is Windows': Ctrl-Break, or the window that is closed.
ENDINGS = (signal.SIGINT, signal.SIGTERM, *(getattr(signal, name) for name in ("SIGBREAK",) if hasattr(signal, name)))
ALARM = signal.SIGINT if sys.platform == "win32" else signal.SIGALRM
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
    for ending in ENDINGS:
        signal.signal(ending, _interrupt_once)
    sys.unraisablehook = _interrupt_again
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # our own error reports what is wrong with a model
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this, or of a program without a console
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show must not fail it
            codecs.register_error("similar", _similar)
            stream.reconfigure(errors="similar")
    try:
        sys.exit(_run())
    except KeyboardInterrupt:  # before the command-line library began, or while an error was told
        _tell(NOTHING_WRITTEN)
        sys.exit(INTERRUPTED)
    finally:
        for ending in ENDINGS:  # all is done: while Python ends, it would print a traceback
            signal.signal(ending, signal.SIG_IGN)


_SIMILAR = {"…": "~", "×": "x", "−": "-", "–": "-", "±": "~"}  # each as wide as what it stands for, so tables hold


def _similar(error: UnicodeError) -> tuple[str | bytes, int]:
    """Put a similar character for one that a stream cannot show, or spell it out."""
    if isinstance(error, UnicodeEncodeError) and (similar := _SIMILAR.get(error.object[error.start])):
        return similar, error.start + 1
    return codecs.backslashreplace_errors(error)


def _run() -> int:
    """Run a command, tell its error, and return its exit code."""
    try:
        code = _code_of_app()
        sys.stdout.flush()  # here, where a full disk has a message
    except InterruptedRunError as error:
        _tell(_escape(str(error)))
        return INTERRUPTED
    except DetentError as error:
        return _tell_error(str(error), error.exit_code)
    except MemoryError as error:
        advice = "Give --threads 1, a smaller --batch or a smaller --size, or use a machine with more."
        return _tell_error(f"There is not enough memory. {error} {advice}", ModelError.exit_code)
    except OSError as error:
        if error.filename is None:
            _discard_output()
        if _reader_is_gone(error):
            return 1
        return _tell_error(_explain(error), OutputError.exit_code)
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        advice = "Give --threads 1, end other programs, or raise the limit of processes (`ulimit -u`)."
        return _tell_error(f"The system starts no more threads. {advice}", ModelError.exit_code)
    return code


def _code_of_app() -> int:
    """Run the command-line library, which ends by leaving, and return its exit code."""
    if (first := " ".join(sys.argv[1:2])).lower().endswith(".onnx"):
        raise UsageError(f"Name a command first, such as: detent quantize {first} OUTPUT --calib FOLDER")
    try:
        # On Windows the library would take "conv*" for files: a pattern of names is to arrive as it was typed.
        app(windows_expand_args=False)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # the command-line library exits without a message on Ctrl-C
            _tell(NOTHING_WRITTEN)
        if isinstance(stop.code, str):  # the last words of a script
            raise
        if stop.code == UsageError.exit_code and (data := _data_without_option(sys.argv[1:])):
            _tell(f"Data is given by an option: --calib {_escape(data)}")
        return stop.code or 0
    return 0


def _data_without_option(arguments: Sequence[str]) -> str:
    """Return a folder or file among the arguments of a refused command that may be its data; nothing if none is."""
    command, *words = arguments or [""]
    if command not in ("quantize", "tune", "sensitivity") or "--calib" in words:
        return ""
    loose = (word for before, word in itertools.pairwise(words) if not before.startswith("-") and word[:1] != "-")
    return next((word for word in loose if not word.lower().endswith(".onnx") and Path(word).exists()), "")


def _tell_error(text: str, code: int) -> int:
    _tell(f"[bold red]Error:[/] {_escape(text)}")
    return code


def _tell(text: str) -> None:
    """Print on standard error; where that is closed, full, or lacks a character, the exit code must do."""
    with contextlib.suppress(OSError, ValueError):
        stderr().print(text, soft_wrap=True)
        sys.stderr.flush()


def _discard_output() -> None:
    """Let Python, when it ends, not try again to write what could not be written."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _reader_is_gone(error: OSError) -> bool:
    """Tell whether the pipe that is printed to was closed, as `| head` does: Windows calls that an invalid argument."""
    gone = (errno.EPIPE, errno.EINVAL) if sys.platform == "win32" else (errno.EPIPE,)
    return error.filename is None and error.errno in gone


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


def _interrupt_once(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Let the first Ctrl-C stop the work, and ignore those that follow while files are cleaned up."""
    while frame is not None:
        # Half of a module would be left, and the libraries around it report that as some other error. So a bit later.
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _interrupt_soon()
            return
        frame = frame.f_back
    for ending in (*ENDINGS, ALARM):
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a Ctrl-C again that came while an object was deleted: Python prints what is raised there, and goes on."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        _interrupt_soon()
    else:
        sys.__unraisablehook__(dropped)


def _interrupt_soon() -> None:
    """Interrupt the main thread in a moment: by the system's clock where it has one, as it may start no thread."""
    signal.signal(ALARM, _interrupt_once)
    if sys.platform == "win32":
        threading.Timer(0.02, _thread.interrupt_main).start()
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.02)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        stdout().print(__version__, highlight=False)
        raise typer.Exit


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
