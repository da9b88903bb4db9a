"""The page of all commands: `python -m tools.command_reference docs/commands.md` writes it.

It is made from the declarations of the commands themselves (their arguments, options, defaults and help texts), not
from rendered help, which depends on the width of a terminal and on the version of the library that prints it.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from detent import errors
from detent.cli import INTERRUPTED, app
from detent.cli.measuring import NOT_TAKEN
from detent.cli.quantizing import MISSED

HEAD = """# Commands

```sh
detent --help
detent quantize --help
```

Every command, argument and option. This page is written by `python -m tools.command_reference docs/commands.md`.

"""

NAMES = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}


def exit_codes() -> list[tuple[int, str]]:
    """Each exit code with its meaning."""
    family = [each for each in vars(errors).values() if inspect.isclass(each) and each.__module__ == errors.__name__]
    told = {each.exit_code: (inspect.getdoc(each) or "").splitlines()[0] for each in family}
    told |= {
        0: "Success.",
        1: "A bug in Detent: please report it with the traceback.",
        INTERRUPTED: "Interrupted by Ctrl-C. What was finished is kept where a command says so.",
    }
    refused = (
        "`check`: the device does not accept all of the model. `tune`: no model lost as little as was asked for. "
        "`mix`: the wanted error was not reached."
    )
    for code in {NOT_TAKEN, MISSED}:
        told[code] = refused
    return sorted(told.items())


def page() -> str:
    """The whole page."""
    commands = {_name(info): info.callback for info in app.registered_commands}
    parts = [HEAD, "| command | what it does |\n| --- | --- |"]
    parts += [f"| [`{name}`](#{name}) | {_first(call)} |" for name, call in sorted(commands.items())]
    parts += ["\n## Exit codes\n", "| code | meaning |\n| --- | --- |"]
    parts += [f"| {code} | {meaning} |" for code, meaning in exit_codes()]
    parts += [_command(name, call) for name, call in sorted(commands.items())]
    return "\n".join(parts) + "\n"


def _name(info: Any) -> str:
    return info.name or info.callback.__name__.replace("_", "-")


def _first(call: Callable[..., None]) -> str:
    return (inspect.getdoc(call) or "").split("\n\n", maxsplit=1)[0].replace("\n", " ")


def _command(name: str, call: Callable[..., None]) -> str:
    hints = typing.get_type_hints(call, include_extras=True)
    arguments, options = [], []
    for parameter in inspect.signature(call).parameters.values():
        said = getattr(hints[parameter.name], "__metadata__", ())
        info = next((each for each in said if isinstance(each, ArgumentInfo | OptionInfo)), None)
        if info is None:  # the context, which the library fills in
            continue
        kind = _plain(typing.get_args(hints[parameter.name])[0])
        if isinstance(info, ArgumentInfo):
            arguments.append((_argument(parameter, info), _says(parameter, info)))
        else:
            options.append((_option(parameter, info, kind), _says(parameter, info)))
    taken = [label for label, _ in arguments] + (["[OPTIONS]"] if options else [])
    usage = " ".join(["detent", name, *(taken or ["SCRIPT [ARGUMENTS]"])])
    parts = [f"\n## {name}\n", f"`{usage}`\n", inspect.getdoc(call) or ""]
    if arguments or options:
        rows = [f"| `{label}` | {says} |" for label, says in arguments + options]
        parts += ["\n| argument or option | |\n| --- | --- |", *rows]
    return "\n".join(parts)


def _argument(parameter: inspect.Parameter, info: ArgumentInfo) -> str:
    label = info.metavar or parameter.name.upper()
    return label if parameter.default is inspect.Parameter.empty else f"[{label}]"


def _option(parameter: inspect.Parameter, info: OptionInfo, kind: Any) -> str:
    """The names of an option and what it takes, with no bars that would end a cell of the table."""
    # In an annotation the first name stands where a default would stand elsewhere.
    named = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
    plain = parameter.name.replace("_", "-")
    if kind is bool:
        return ", ".join(named or [f"--{plain}", f"--no-{plain}"]).replace("/", ", ")
    declared = named or [f"--{plain}"]
    return f"{', '.join(declared)} {info.metavar or _takes(kind)}"


def _takes(kind: Any) -> str:
    """What stands for a value of this type."""
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(typing.get_args(kind))
    return NAMES[kind]


def _plain(kind: Any) -> Any:
    """The type of one value: what `kind` is a list of, or what else it is than None."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (list, typing.Union):
        return _plain(next(each for each in typing.get_args(kind) if each is not type(None)))
    return kind


def _says(parameter: inspect.Parameter, info: ArgumentInfo | OptionInfo) -> str:
    help_text = (info.help or "").replace("|", "\\|")
    default = parameter.default
    if default is inspect.Parameter.empty:
        return help_text if isinstance(info, ArgumentInfo) else f"{help_text} Required."
    if default is None or isinstance(default, bool) or default in ([], ""):
        return help_text
    return f"{help_text} Default: {default}."


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
