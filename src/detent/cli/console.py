"""What all commands share: parameters from declarations, consoles, progress bars, and what to do with a result.

    def emulate(model: QuantizedModel, *, results: PageOptions, **options: Unpack[EmulateOptions]) -> None: ...

`flattened(emulate)` has one parameter for every Flag of EmulateOptions (see `detent.options`) and every field of the
dataclass PageOptions, which is what the command-line library reads. Options that the user does not give are not passed
on, so that each default stays where it is declared.

While a command works, every stage that takes longer than a second has a bar with an estimate.
"""

from __future__ import annotations

import codecs
import functools
import gc
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from detent.options import VERBOSE, Flag, declared
from detent.progress import Progress, silent


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one parameter for each option of its classes and groups."""
    own = inspect.signature(command).parameters
    # Not get_type_hints: in Python 3.10 that hides the option of what is None by default inside an Optional.
    hints = inspect.get_annotations(command, eval_str=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    rest = next((name for name, each in own.items() if each.kind is inspect.Parameter.VAR_KEYWORD), None)
    options = [] if rest is None else list(_flags(get_args(hints[rest])[0]))

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        names = {parameter.name for parameter in options}
        given = {name: arguments.pop(name) for name in names}
        built = {name: _gathered(kind, arguments) for name, kind in groups.items()}
        arguments |= {name: value for name, value in given.items() if value is not None and value != []}
        command(**arguments, **built)

    parameters: list[inspect.Parameter] = []
    for parameter in own.values():
        if parameter.name not in groups and parameter.name != rest:
            # Keyword-only, so that parameters with and without a default may stand in any order.
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=kind))
    parameters += options
    parameters.sort(key=lambda parameter: parameter.name == "json")  # last in help, as it is in groups
    for group in groups.values():
        parameters += _fields(group)
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what the library reads
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _flags(kind: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter for every option of a class that has a flag."""
    for name, (python_type, flag) in declared(kind).items():
        if not isinstance(flag, Flag):
            continue
        default = None if flag.hidden else list(flag.default) if isinstance(flag.default, tuple) else flag.default
        text_type = python_type if flag.reads is None else flag.reads
        if get_origin(text_type) is list:
            default = default or []
        elif default is None:
            text_type = text_type | None
        annotation: Any = Annotated[text_type, option_of(flag, name)]  # a type by value
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def complete_recipe(typed: str) -> list[str]:
    """Return the recipes whose names begin with what was typed, for shell completion."""
    from detent.recipe.recipe import PRESETS

    return [name for name in PRESETS if name.lower().startswith(typed.lower())]


def complete_device(typed: str) -> list[str]:
    """Return the devices and flows whose names begin with what was typed."""
    from detent.devices.catalog import DEVICES
    from detent.devices.device import GENERATIONS

    return [name for name in (*GENERATIONS, *DEVICES) if name.lower().startswith(typed.lower())]


def complete_node(typed: str) -> list[str]:
    """Return the nodes whose names begin with what was typed, of the first model on the line; none if there is none."""
    from detent.errors import DetentError
    from detent.graph.load import read_proto

    # The line as the shells hand it over: what is parsed of it has no arguments while an option lacks its value.
    line = next((os.environ[name] for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS") if name in os.environ), "")
    files = [Path(word.strip("\"'")) for word in line.split() if word.strip("\"'").lower().endswith(".onnx")]
    try:
        nodes = read_proto(files[0]).graph.node if files else []
    except DetentError:  # a message would stand in the middle of what is being typed
        return []
    return [node.name for node in nodes if node.name and node.name.startswith(typed)]


# What the tab key offers for an option.
_COMPLETIONS: Mapping[str, Callable[..., list[str]]] = {
    "device": complete_device,
    **dict.fromkeys(("exclude", "start", "end"), complete_node),
}


def option_of(flag: Flag, name: str = "") -> Any:
    """Return a flag as the command-line library has it; `name` is that of its option."""
    return typer.Option(
        *(flag.name or f"--{name.replace('_', '-')}").split(),
        help=flag.help,
        metavar=flag.metavar,
        min=flag.minimum,
        rich_help_panel=flag.panel,
        autocompletion=_COMPLETIONS.get(name),
    )


def _fields(group: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter for every field of a group, and of those within it."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if is_dataclass(hints[field.name]):
            yield from _fields(hints[field.name])
        else:
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )


def _gathered(group: Any, arguments: dict[str, Any]) -> Any:
    """Build the group from the arguments that have the names of its fields, and take them out."""
    hints: Mapping[str, Any] = get_type_hints(group, include_extras=True)
    inner = {name: _gathered(kind, arguments) for name, kind in hints.items() if is_dataclass(kind)}
    return group(**{name: arguments.pop(name) for name in hints if name not in inner}, **inner)


if TYPE_CHECKING:
    from detent.report.document import Document
    from detent.results import Result

Answer = TypeVar("Answer")

PATIENCE = 1.0  # seconds


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """Yield an observer that draws on `console`, or nothing if it is not a terminal."""
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


FloatModel = Annotated[Path, typer.Argument(help="The float ONNX model.", metavar="MODEL")]
AnyModel = Annotated[Path, typer.Argument(help="A float or quantized ONNX model.", metavar="MODEL")]
QuantizedModel = Annotated[Path, typer.Argument(help="A quantized ONNX model.", metavar="MODEL")]
Output = Annotated[Path, typer.Argument(help="Where to write the result.", metavar="OUTPUT")]
Calib = Annotated[Path | None, typer.Option("--calib", help="Folder of images, .npy or .npz; or one file.")]


RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="A name from `detent recipes`, or a .toml file. Default: XINT8; with attention or SiLU A8W8; or what "
        "suits --device.",
        autocompletion=complete_recipe,
    ),
]
DataOrRandom = Annotated[
    Path | None, typer.Option("--data", help="Folder of images, .npy or .npz; or one file. Default: random data.")
]


class InterruptedRunError(Exception):
    """Ctrl-C, with something to say about what is kept."""


def stdout() -> Console:
    """Return the console for results. Streams are looked up late, since they may have been redirected."""
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(stream: IO[str]) -> Console:
    from detent.report.terminal import PlainConsole

    console = PlainConsole(file=stream)
    # Tools that read a file or a pipe do not want lines folded at column 80.
    return console if console.is_terminal else PlainConsole(file=stream, width=200)


def run(verb: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
    """Call a verb, with a bar for its progress, and no Python warnings: the result says what they would."""
    with progress_bar(stderr()) as progress, warnings.catch_warnings(), _collector_at_rest(progress) as watched:
        warnings.simplefilter("ignore", UserWarning)
        return verb(*arguments, progress=watched, **options)


@contextmanager
def _collector_at_rest(progress: Progress) -> Iterator[Progress]:
    """Yield an observer that lets Python's collector begin with the first stage.

    Until then modules are loaded, which stay as long as the process does. They are four fifths of all objects, and each
    collection would look at them again.
    """

    def observe(stage: str, done: int, total: int | None) -> None:
        if not gc.isenabled():
            if not gc.get_freeze_count():
                gc.freeze()
            gc.enable()
        progress(stage, done, total)

    gc.disable()
    try:
        yield observe
    finally:
        gc.enable()


@dataclass(frozen=True)
class PrintOptions:
    """How a result is printed: a short answer, all of it, or JSON."""

    verbose: Annotated[bool, option_of(VERBOSE)] = False
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False

    def tell(self, result: Any, *beside: Path | None) -> None:
        """Print what a verb returned. `beside` are the files that were written beside it."""
        from detent.report.documents import document_of

        if self.json:
            echo_json(result.to_json() if hasattr(result, "to_json") else result.to_dict())
        else:
            self.print(document_of(result), *beside)

    def print(self, document: Document, *beside: Path | None) -> None:
        from detent.report.terminal import print_document

        print_document(document, stdout(), verbose=self.verbose, beside=[file for file in beside if file is not None])

    def either(self, plain: Any, document: Document) -> None:
        """Print plain values as JSON, or else the document that shows them."""
        echo_json(plain) if self.json else self.print(document)

    def tell_text(self, result: Any) -> None:
        """Print a result that is its own text."""
        echo_json(result.to_json()) if self.json else typer.echo(str(result))


def echo_json(value: Any) -> None:
    """Print plain values as JSON; text is JSON already. It is ASCII where the stream is not UTF-8."""
    import json

    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8":
        # Outside of its strings JSON is ASCII.
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    typer.echo(text)


@dataclass(frozen=True)
class PageOptions:
    """A page beside what is printed."""

    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write an HTML report: one file, with charts.", metavar="FILE"),
    ] = None
    printing: PrintOptions = PrintOptions()

    def check(self, *others: Any) -> None:
        """Refuse, before any work is done, a page that could not be written or that would destroy another file."""
        check_file(self.html, *others)

    def tell(self, result: Any, *beside: Path | None) -> None:
        """Write the page, if one was asked for, and print the result."""
        from detent.report.documents import write_page

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
