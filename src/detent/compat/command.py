"""The command `detent run`."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
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
    try:
        if arguments[0] == "-m":
            run_module(arguments[1], arguments[2:])
        else:
            run_script(Path(arguments[0]), arguments[1:])
    except OSError:
        # The script's, which the command line would take for its own trouble with the terminal.
        traceback.print_exc()
        sys.exit(1)
