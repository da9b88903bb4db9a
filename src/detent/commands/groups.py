"""Options that belong together, as one argument of a command.

    @dataclass(frozen=True)
    class SampleOptions:
        limit: Annotated[int | None, typer.Option("--limit")] = None
        seed: Annotated[int | None, typer.Option("--seed")] = None

    def emulate(model: ..., *, samples: SampleOptions) -> None: ...

`with_groups(emulate)` takes --limit and --seed, and gives them to `emulate` as SampleOptions. A group may have groups
among its fields. Each field that is an option needs a default, and no two of one command may have the same name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of each group in the place of the argument that has its type."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        built = {name: _gathered(kind, arguments) for name, kind in groups.items()}
        taken = {parameter.name for kind in groups.values() for parameter in _options(kind)}
        command(**{name: value for name, value in arguments.items() if name not in taken}, **built)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY  # in which any order of those with and without a default will do
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=kind))
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what the library reads
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _options(group: Any) -> Iterator[inspect.Parameter]:
    """A parameter for every option of a group and of those within it."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if is_dataclass(hints[field.name]):
            yield from _options(hints[field.name])
        else:
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name]
            )


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _gathered(group: Any, arguments: Mapping[str, Any]) -> Any:
    """The group, of the arguments that have the names of its fields."""
    hints = get_type_hints(group, include_extras=True)
    inner = {name: _gathered(kind, arguments) for name, kind in hints.items() if is_dataclass(kind)}
    return group(**{name: arguments[name] for name in hints if name not in inner}, **inner)
