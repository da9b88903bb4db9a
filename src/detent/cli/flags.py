"""The parameters of a command, from declarations: flags of option classes, and groups of results.

    def emulate(model: QuantizedModel, *, results: PageOptions, **options: Unpack[EmulateOptions]) -> None: ...

`flattened(emulate)` has one parameter for every Flag of EmulateOptions (see `detent.options`) and every field of the
dataclass PageOptions, which is what the command-line library reads. Options that the user does not give are not passed
on, so that each default stays where it is declared.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from detent.options import Flag, declared


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one parameter for each option of its classes and groups."""
    own = inspect.signature(command).parameters
    hints = get_type_hints(command, include_extras=True)
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
        annotation = Annotated.__class_getitem__((text_type, option_of(flag, name)))  # type: ignore[attr-defined]  # a type by value
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option_of(flag: Flag, name: str = "") -> Any:
    """Return a flag as the command-line library has it; `name` is that of its option."""
    return typer.Option(
        *(flag.name or f"--{name.replace('_', '-')}").split(),
        help=flag.help,
        metavar=flag.metavar,
        min=flag.minimum,
        rich_help_panel=flag.panel,
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
