"""The command `detent run`."""

from __future__ import annotations

import sys
import traceback
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import typer

PASS_THROUGH: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""Everything behind the script's name is the script's."""


def run(context: typer.Context) -> None:
    """Run a script written for AMD Quark, vai_q_onnx or onnxruntime's quantizer, as it is, on Detent.

    Examples: detent run quantize.py --model_input float.onnx · detent run -m quark.onnx.tools.evaluate A B
    """
    arguments = list(context.args)
    if not arguments or arguments[0] in ("--help", "-h"):
        typer.echo(context.get_help())
        return
    from detent.compat.run import run_module, run_script
    from detent.errors import UsageError

    if arguments[0] == "-m" and len(arguments) < 2:
        raise UsageError("detent run -m needs the name of a module, such as quark.onnx.tools.evaluate.")
    sys.excepthook = partial(_print_from, arguments[0])
    try:
        if arguments[0] == "-m":
            run_module(arguments[1], arguments[2:])
        else:
            run_script(Path(arguments[0]), arguments[1:])
    except OSError as error:
        # The script's, which the command line would take for its own trouble with the terminal.
        _print_from(arguments[0], type(error), error, error.__traceback__)
        sys.exit(1)


def _print_from(script: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception as Python does, from the script on: how it was started is not its author's concern."""
    inside = trace
    while inside is not None and inside.tb_frame.f_code.co_filename != script:
        inside = inside.tb_next
    never_began = inside is None and not isinstance(error, SyntaxError)
    traceback.print_exception(kind, error, trace if never_began else inside)
