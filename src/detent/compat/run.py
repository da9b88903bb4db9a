"""`detent run`: a user's script, unmodified, in this process.

    detent run quantize.py --model_input float.onnx
    detent run -m quark.onnx.tools.evaluate baseline/ quantized/

The script sees its own arguments in `sys.argv`, is `__main__`, and finds files beside it. Its exceptions and exit codes
are its own.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from detent.compat.finder import ROOTS, counterpart, other_tools
from detent.errors import UsageError


def run_script(path: Path, arguments: Sequence[str]) -> None:
    """Run the file `path` as `python path arguments...` would."""
    if not path.is_file():
        raise UsageError(f"There is no script {path}. Usage: detent run SCRIPT.py ARGUMENTS...")
    with other_tools(), _as_main([str(path), *arguments], str(path.resolve().parent)):
        runpy.run_path(str(path), run_name="__main__")


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Run a module as `python -m name arguments...` would. A `.py` behind the name, as manuals have it, is ignored."""
    name = name.removesuffix(".py")
    with other_tools(), _as_main([name, *arguments], str(Path.cwd())):
        if not any(name == root or name.startswith(f"{root}.") for root in ROOTS):
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            return
        try:
            module = counterpart(name)
        except ModuleNotFoundError as error:
            raise UsageError(str(error)) from None
        if not hasattr(module, "main"):
            raise UsageError(
                f"{name} is not a tool that can be run. `detent run SCRIPT.py` runs a script that uses it."
            )
        module.main(list(arguments))


@contextmanager
def _as_main(argv: list[str], folder: str) -> Iterator[None]:
    """Set what a script sees of the command line, and put it back."""
    before = sys.argv, list(sys.path)
    sys.argv = argv
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = before[0]
        sys.path[:] = before[1]
