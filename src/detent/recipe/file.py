"""Recipes as text: plain values, TOML files, and single settings such as `weights.granularity=per_channel`.

    base = "A8W8"                     # start from this one; without it, from XINT8
    method = "Percentile:percentile=99.99"

    [weights]                         # what is not said stays as in the base
    granularity = "per_channel"

    [[overrides]]
    nodes = ["head/*"]
    activations = "int16"

Unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from detent.equalizations import (
    EQUALIZATIONS,
    SMOOTHINGS,
    Awq,
    equalization_of,
    parse_equalization,
    parse_smoothing,
)
from detent.equalizations.channel_problem import Equalizer
from detent.errors import UsageError, nearest
from detent.methods import METHODS, Method, parse_method
from detent.numerics import NAMED_FORMATS
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.interface import NumberFormat
from detent.recipe import Override, Recipe
from detent.recipe.recipe import DEFAULT, find_preset
from detent.refinements import REFINEMENTS, Refinement, parse_refinement
from detent.settings import parse_toml, read_text

Plain = dict[str, Any]

# Block formats that have no name are written by their kind and all of their fields.
FORMAT_KINDS: Mapping[str, NumberFormat] = {"block_float": BlockFloat(), "microscaling": Microscaling("int8")}

FLOAT = "float"  # how a role that stays float is written

NONE = "none"  # how a field is written that has no value


# The fields that hold a method or another strategy: how its text is parsed, and the choices.
_CHOICES: Mapping[str, tuple[Callable[[str], Any], Mapping[str, Any]]] = {
    "method": (parse_method, METHODS),
    "weight_method": (parse_method, METHODS),
    "equalize": (parse_equalization, EQUALIZATIONS),
    "smooth": (parse_smoothing, SMOOTHINGS),
    "refinement": (parse_refinement, REFINEMENTS),
}


def to_plain(recipe: Recipe) -> Plain:
    """Return a recipe as plain values. What is None is left out, but for roles that stay float."""
    plain = _fields(recipe)
    for role, fmt in recipe.formats.items():
        plain[role] = FLOAT if fmt is None else format_to_plain(fmt)
    plain["method"] = _named(recipe.method)
    if recipe.weight_method is not None:
        plain["weight_method"] = _named(recipe.weight_method)
    if dataclasses.is_dataclass(recipe.smooth):
        plain["smooth"] = _named(recipe.smooth)
    plain["equalize"] = NONE if recipe.equalize is None else _named(recipe.equalize)
    plain["refinement"] = NONE if recipe.refinement is None else _named(recipe.refinement)
    plain["overrides"] = [_override_to_plain(override) for override in recipe.overrides]
    return plain


def to_toml(recipe: Recipe) -> str:
    """Return a recipe as a file to edit."""
    return toml_text(to_plain(recipe))


def read_recipe(path: Path) -> Recipe:
    try:
        plain = parse_toml(read_text(path))
    except FileNotFoundError:
        raise UsageError(
            f"There is no recipe file {path}. `detent recipes XINT8 --toml` prints one to start from."
        ) from None
    except OSError as error:
        raise UsageError(f"Cannot read the recipe {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"The recipe {path} is not TOML: {error}") from error
    if not plain:
        raise UsageError(
            f'The recipe {path} says nothing: it is empty, or all of it is a comment. Write base = "{DEFAULT}" for the '
            f"default, or print one to start from: detent recipes {DEFAULT} --toml."
        )
    try:
        return from_plain({"name": path.stem, **plain})
    except UsageError as error:
        raise UsageError(f"In the recipe {path}: {error}") from error


def find_recipe(recipe: str | PathLike[str] | Recipe) -> Recipe:
    """Return the named recipe, the one in a `.toml` file, or the given one."""
    if isinstance(recipe, Recipe):
        return recipe
    if str(recipe).endswith(".toml"):
        return read_recipe(Path(recipe))
    return find_preset(str(recipe))


def from_plain(plain: Mapping[str, Any]) -> Recipe:
    """Return the recipe that plain values describe, on top of the one that `base` names."""
    changes = dict(plain)
    # A file says what differs; without a base it is about the default of the command line.
    base = find_preset(str(changes.pop("base", DEFAULT)))
    return change(base, {"description": f"{base.name}, changed", **changes})


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """Return the types of a class's fields. Python compiles them anew each time, which takes milliseconds."""
    return get_type_hints(kind)


def change(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with some fields changed, given as plain values."""
    hints = _hints(Recipe)
    found: dict[str, Any] = {}
    for key, value in changes.items():
        _check_key(key, hints, "A recipe")
        if key in recipe.formats:
            found[key] = parse_format(value, recipe.formats[key], key)
        elif key == "weight_method" and value == NONE:
            found[key] = None
        elif key == "equalize" and isinstance(value, bool):
            found[key] = equalization_of(value)
        elif key in _CHOICES and not (key == "smooth" and isinstance(value, int | float)):
            found[key] = _parse_named(value, *_CHOICES[key], key)
        elif key == "overrides":
            found[key] = tuple(_parse_override(table) for table in _expect(value, list, key))
        else:
            found[key] = _coerce(value, hints[key], key)
    return recipe.replace(**found)


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Apply settings such as `weights.granularity=per_channel` or `method=Entropy`, one after another."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise UsageError(f"--set '{setting}': expected FIELD=VALUE, such as weights.granularity=per_channel.")
        key, _, rest = path.partition(".")
        value: Any = _parse_text(text)
        # `--set operators=Conv,Gemm`: quoting a TOML list in a shell is a nuisance.
        if isinstance(value, str) and _hints(Recipe).get(key) == tuple[str, ...]:
            value = [word.strip() for word in value.split(",") if word.strip()]
        for part in reversed(rest.split(".") if rest else ()):
            value = {part: value}
        # `--set refinement.rows=64` changes one setting of the present refinement, not all others back to their
        # defaults.
        if rest and key in _CHOICES:
            value = _with_present(value, to_plain(recipe).get(key))
        try:
            recipe = change(recipe, {key: value})
        except UsageError as error:
            raise UsageError(f"--set '{setting}': {error}") from error
    return recipe


def _with_present(value: Plain, present: Any) -> Plain:
    """Return a table with one setting of a method or refinement, and its other settings as they are now."""
    if not isinstance(present, dict) or value.get("name", present["name"]) != present["name"]:
        return value
    return {**present, **value}


def format_to_plain(fmt: NumberFormat) -> Plain:
    fields = _fields(fmt)
    return {"type": fields.pop("dtype", fmt.kind), **fields}


def parse_format(value: Any, present: NumberFormat | None, where: str) -> NumberFormat | None:
    """Parse a format, a name or a table. What a table does not say is as in `present`, if that is of the same kind."""
    if value == FLOAT:
        return None
    table = {"type": value} if isinstance(value, str) else dict(_expect(value, dict, where))
    start = _start_of_format(table.pop("type", None), present, where)
    hints = _field_types(start)
    for key in table:
        _check_key(key, [hint for hint in hints if hint != "dtype"], f"The format of {where} ({start.label})")
    changes = {key: _coerce(entry, hints[key], f"{where}.{key}") for key, entry in table.items()}
    return start.replace(**changes)


def _start_of_format(name: Any, present: NumberFormat | None, where: str) -> NumberFormat:
    """Return the format that a table starts from: the present one, or that of its `type`."""
    known: dict[str, NumberFormat] = {**NAMED_FORMATS, **FORMAT_KINDS}
    if name is None and present is not None:
        return present
    if not isinstance(name, str) or name not in known:
        raise UsageError(
            f"{where}: there is no type '{name}'.{nearest(str(name), NAMED_FORMATS)} "
            f'Choose from {", ".join(NAMED_FORMATS)}, or "{FLOAT}".'
        )
    start = known[name]
    if present is None or present.kind != start.kind or start.in_blocks:
        return start
    # `weights = "int4"` keeps the granularity and the kind of scale of the recipe that it changes.
    return present.replace(dtype=start.dtype)


def _override_to_plain(override: Override) -> Plain:
    plain = {key: value for key, value in _fields(override).items() if value not in (False, [], [[], []])}
    return plain | {role: format_to_plain(fmt) for role, fmt in override.formats.items()}


def _parse_override(table: Any) -> Override:
    hints, found = _hints(Override), dict[str, Any]()
    for key, value in _expect(table, dict, "overrides").items():
        _check_key(key, hints, "An override")
        if key in ("activations", "weights", "biases"):
            found[key] = parse_format(value, None, f"overrides.{key}")
            if found[key] is None:
                raise UsageError(f'overrides.{key} is "{FLOAT}": say leave_float = true instead.')
        else:
            found[key] = _coerce(value, hints[key], f"overrides.{key}")
    return Override(**found)


def _fields(value: Any) -> Plain:
    """Return the fields of a dataclass as plain values, without those that are None."""
    shallow = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {key: _listed(entry) for key, entry in shallow.items() if entry is not None}


def _field_types(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with their types, without what its bases declare beside them."""
    kind: type = type(value)
    hints = _hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(value)}


def _listed(value: Any) -> Any:
    return [_listed(entry) for entry in value] if isinstance(value, tuple) else value


def _named(choice: Method | Refinement | Equalizer | Awq) -> Plain:
    return {"name": type(choice).__name__, **_fields(choice)}


def _parse_named(value: Any, parse: Callable[[str], Any], known: Mapping[str, Any], where: str) -> Any:
    """Parse a method or refinement: text such as `Rounding:rows=128`, or a table with its name."""
    if isinstance(value, str):
        return parse(value)
    table = dict(_expect(value, dict, where))
    name = table.pop("name", None)
    if name is None:
        raise UsageError(f'{where} has settings and no name. Say which one: name = "{next(iter(known))}".')
    if not isinstance(name, str) or name not in known:
        offered = nearest(str(name), known)
        raise UsageError(f"{where}: there is no '{name}'.{offered} Choose from {', '.join(known)}.")
    choice = known[name]
    if choice is None and table:
        raise UsageError(f"{where} is none, which has no setting '{next(iter(table))}'.")
    if choice is None:
        return None
    hints = _field_types(choice)
    for key in table:
        _check_key(key, hints, type(choice).__name__)
    return dataclasses.replace(
        choice, **{key: _coerce(entry, hints[key], f"{where}.{key}") for key, entry in table.items()}
    )


def _check_key(key: str, known: Any, owner: str) -> None:
    if key not in known:
        raise UsageError(f"{owner} has no field '{key}'.{nearest(key, known)} Fields: {', '.join(known)}.")


def _expect(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "a table"
        raise UsageError(f"{where} is {value!r}: expected {wanted}.")
    return value


def _coerce(value: Any, hint: Any, where: str) -> Any:
    """Convert a plain value to the type of a field: lists become tuples, whole numbers floats, and "none" is None."""
    options = get_args(hint) if get_origin(hint) is UnionType or type(None) in get_args(hint) else (hint,)
    if type(None) in options and value == NONE:
        return None
    for option in options:
        origin, arguments = get_origin(option), get_args(option)
        if origin is tuple and isinstance(value, list):
            inner = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
            if len(inner) == len(value):
                return tuple(_coerce(entry, each, where) for entry, each in zip(value, inner, strict=True))
        elif origin is Literal and value in arguments:
            return value
        # In Python True is a number; in a recipe it is a mistake.
        elif option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif isinstance(option, type) and type(value) is option:
            return value
    wanted = " or ".join(_described(option) for option in options)
    offered = nearest(value, get_args(hint)) if get_origin(hint) is Literal and isinstance(value, str) else ""
    raise UsageError(f"{where} is {value!r}: expected {wanted}.{offered}")


def _described(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        inner = arguments[0]
        plural = {str: "words", float: "numbers"}.get(inner, "lists")
        return f"a list of {plural}" if arguments[-1] is Ellipsis else f"a list of {len(arguments)} {plural}"
    words = {bool: "true or false", str: "a word", int: "a whole number", float: "a number", type(None): f"'{NONE}'"}
    return words.get(hint) or f"'{hint.__name__}'"


def _parse_text(text: str) -> Any:
    """Parse a value as TOML; what is not TOML is a word."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    # A text with a line break could smuggle in other keys.
    return parsed["value"] if len(parsed) == 1 else text


def toml_text(table: Mapping[str, Any]) -> str:
    """Return a table of scalars, lists, tables of these and lists of tables as a TOML document.

    Python reads TOML and does not write it; recipes need little of the language.
    """
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lists = {
        key: value
        for key, value in table.items()
        if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value)
    }
    lines = [f"{key} = {_inline(value)}" for key, value in table.items() if key not in tables and key not in lists]
    for key, value in tables.items():
        lines += ["", f"[{key}]", *_assignments(value)]
    for key, entries in lists.items():
        for entry in entries:
            lines += ["", f"[[{key}]]", *_assignments(entry)]
    return "\n".join(lines) + "\n"


def _assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_inline(value)}" for key, value in table.items()]


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_assignments(value)) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # TOML's basic strings, booleans and numbers are written as JSON's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
