"""`detent run`: a user's script, unmodified, in this process.

    detent run quantize.py --model_input float.onnx
    detent run -m quark.onnx.tools.evaluate baseline/ quantized/

The script sees its own arguments in `sys.argv`, is `__main__`, and finds files beside it. Its exceptions and exit codes
are its own.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import typer

from detent.compat.finder import TOOL_ROOTS, is_original, names_served, other_tools, tool_module
from detent.compat.option_rows import ScriptNote
from detent.compat.tool_names import AS_QUARK_IN_CHILDREN, MODULES
from detent.errors import UsageError, nearest


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
        if tool_module(name, TOOL_ROOTS) is None or is_original(name):
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            return
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(str(error)) from None
        if not hasattr(module, "main"):
            raise UsageError(
                f"{name} is not a tool that can be run. `detent run SCRIPT.py` runs a script that uses it."
            )
        run_tool_module(name)


def run_tool_module(name: str) -> None:
    """Run the tool that a module is on the arguments in `sys.argv`, which what is onnxruntime's own reads itself."""
    main = importlib.import_module(name).main
    main(*[sys.argv[1:]] if inspect.signature(main).parameters else [])


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


# What Python runs first in processes that a script starts: it waits until one of the other tools is imported there.
_STARTUP = """
import sys
sys.path.remove({folder!r})
this = sys.modules.pop("sitecustomize")

class Names:
    def find_spec(self, name, path=None, target=None):
        if (name + ".").startswith({names!r}):
            sys.meta_path.remove(self)
            try:
                from detent.compat.finder import stand_in
            except ImportError:
                return None
            return stand_in().find_spec(name, path, target)

sys.meta_path.insert(0, Names())
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = this
"""


@contextmanager
def _in_children(as_quark: bool) -> Iterator[None]:
    """Let processes of Python that a script starts get the names of the other tools, too."""
    before = dict(os.environ)
    with TemporaryDirectory() as folder:
        text = _STARTUP.format(folder=folder, names=tuple(f"{root}." for root in TOOL_ROOTS))
        Path(folder, "sitecustomize.py").write_text(text, encoding="utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, before.get("PYTHONPATH"))))
        os.environ |= {AS_QUARK_IN_CHILDREN: "1"} if as_quark else {}
        try:
            yield
        finally:
            for name in ("PYTHONPATH", AS_QUARK_IN_CHILDREN):
                os.environ.pop(name, None)
                os.environ |= {name: before[name]} if name in before else {}


# Everything behind the script's name is the script's.
PASS_THROUGH: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


def run(context: typer.Context) -> None:
    """Run a script written for AMD Quark, vai_q_onnx or onnxruntime's quantizer, as it is, on Detent.

    Examples: detent run quantize.py --model_input float.onnx · detent run -m quark.onnx.tools.evaluate A B.
    With --as-quark before the script's name, numbers are Quark's, without Detent's own accuracy steps.
    """
    arguments = list(context.args)
    as_quark = arguments[:1] == ["--as-quark"]
    arguments = arguments[as_quark:]
    if not arguments or arguments[0] in ("--help", "-h"):
        typer.echo(context.get_help())
        return
    if arguments[0] == "-m" and len(arguments) < 2:
        raise UsageError("detent run -m needs the name of a module, such as quark.onnx.tools.evaluate.")
    from detent.compat.entry_points import AS_QUARK  # here: `detent --help` starts without what it needs

    sys.excepthook = partial(_print_from, arguments[0])
    before = AS_QUARK.set(as_quark)
    try:
        with _notes_shown(), _in_children(as_quark):
            if arguments[0] == "-m":
                run_module(arguments[1], arguments[2:])
            elif arguments[0] == "quark-cli":
                from detent.compat import quark_cli

                quark_cli.main(arguments[1:])
            else:
                run_script(Path(arguments[0]), arguments[1:])
    except OSError as error:
        # The script's, which the command line would take for its own trouble with the terminal.
        _print_from(arguments[0], type(error), error, error.__traceback__)
        sys.exit(1)
    finally:
        AS_QUARK.reset(before)


@contextmanager
def _notes_shown() -> Iterator[None]:
    """Show notes and warnings of Detent as lines of their own, without the place in Detent that they come from."""
    show, inside = warnings.showwarning, Path(__file__).parents[1]

    def as_note(message: Warning | str, category: type[Warning], filename: str, *place: Any, **more: Any) -> None:
        if issubclass(category, ScriptNote):
            sys.stderr.write(f"Note: {message}\n")
        elif issubclass(category, UserWarning) and Path(filename).is_relative_to(inside):
            sys.stderr.write(f"Warning: {message}\n")
        else:
            show(message, category, filename, *place, **more)

    with warnings.catch_warnings():
        warnings.showwarning = as_note
        yield


def _nearest_name(error: BaseException) -> str:
    """Return the nearest name to one that a script imports from a module of the table, which does not have it."""
    found = (
        re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error)) if isinstance(error, ImportError) else None
    )
    tool = None if found is None else tool_module(found[2], TOOL_ROOTS)
    return "" if found is None or tool not in MODULES else nearest(found[1], names_served(tool))


def _print_from(script: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception as Python does, from the script on: how it was started is not its author's concern."""
    inside = trace
    while inside is not None and inside.tb_frame.f_code.co_filename != script:
        inside = inside.tb_next
    never_began = inside is None and not isinstance(error, SyntaxError)
    traceback.print_exception(kind, error, trace if never_began else inside)
    if hint := _nearest_name(error):
        sys.stderr.write(f"{hint.strip()}\n")
