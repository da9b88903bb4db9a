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
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from detent.errors import UsageError, nearest
from detent.methods import METHODS, Method, parse_method
from detent.numerics.block_float import BlockFloat
from detent.numerics.floats import FloatFormat
from detent.numerics.formats import IntegerFormat
from detent.numerics.microscaling import Microscaling
from detent.numerics.named import NAMED_FORMATS
from detent.numerics.params import NumberFormat
from detent.presets import find_preset
from detent.recipe import Override, Recipe
from detent.refinements import REFINEMENTS, Refinement, parse_refinement
from detent.toml_text import toml_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Plain = dict[str, Any]

FORMAT_KINDS: Mapping[str, NumberFormat] = {"block_float": BlockFloat(), "microscaling": Microscaling("int8")}
"""Block formats that have no name are written by their kind and all of their fields."""

FLOAT = "float"
"""How a role that stays float is written."""


def to_plain(recipe: Recipe) -> Plain:
    """A recipe as strings, numbers, lists and tables. What is None is left out, but for roles that stay float."""
    plain = _fields(recipe)
    for role, fmt in recipe.formats.items():
        plain[role] = FLOAT if fmt is None else format_to_plain(fmt)
    plain["method"] = _named(recipe.method)
    if recipe.weight_method is not None:
        plain["weight_method"] = _named(recipe.weight_method)
    plain["refinement"] = "none" if recipe.refinement is None else _named(recipe.refinement)
    plain["overrides"] = [_override_to_plain(override) for override in recipe.overrides]
    return plain


def to_toml(recipe: Recipe) -> str:
    """A recipe as a file to edit."""
    return toml_text(to_plain(recipe))


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"There is no recipe file {path}. `detent recipes XINT8 --toml` prints one to start from."
        ) from None
    except OSError as error:
        raise UsageError(f"Cannot read the recipe {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The recipe {path} is not TOML: {error}") from error
    try:
        return from_plain({"name": path.stem, **plain})
    except UsageError as error:
        raise UsageError(f"In the recipe {path}: {error}") from error


def find_recipe(recipe: str | PathLike[str] | Recipe) -> Recipe:
    """The named recipe, the one in a `.toml` file, or the given one."""
    if isinstance(recipe, Recipe):
        return recipe
    if str(recipe).endswith(".toml"):
        return read_recipe(Path(recipe))
    return find_preset(str(recipe))


def from_plain(plain: Mapping[str, Any]) -> Recipe:
    """The recipe that plain values describe, on top of the one that `base` names."""
    changes = dict(plain)
    base = find_preset(str(changes.pop("base", "XINT8")))
    return change(base, changes)


def change(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with some fields given as plain values."""
    hints = get_type_hints(Recipe)
    found: dict[str, Any] = {}
    for key, value in changes.items():
        _check_key(key, hints, "A recipe")
        if key in recipe.formats:
            found[key] = parse_format(value, recipe.formats[key], key)
        elif key in ("method", "weight_method"):
            found[key] = _parse_named(value, parse_method, METHODS, key)
        elif key == "refinement":
            found[key] = _parse_named(value, parse_refinement, REFINEMENTS, key)
        elif key == "overrides":
            found[key] = tuple(_parse_override(table) for table in _expect(value, list, key))
        else:
            found[key] = _coerce(value, hints[key], key)
    return recipe.replace(**found)


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with settings such as `weights.granularity=per_channel` or `method=Entropy`, one after another."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise UsageError(f"--set '{setting}': expected FIELD=VALUE, such as weights.granularity=per_channel.")
        key, _, rest = path.partition(".")
        value: Any = _parse_text(text)
        for part in reversed(rest.split(".") if rest else ()):
            value = {part: value}
        if rest and key in ("method", "weight_method", "refinement"):
            present = to_plain(recipe)[key]
            value = {**(present if isinstance(present, dict) else {}), **value}
        try:
            recipe = change(recipe, {key: value})
        except UsageError as error:
            raise UsageError(f"--set '{setting}': {error}") from error
    return recipe


def format_to_plain(fmt: NumberFormat) -> Plain:
    """A number format as a table."""
    if isinstance(fmt, IntegerFormat | FloatFormat):
        fields = _fields(fmt)
        return {"type": fields.pop("dtype"), **fields}
    return {"type": "block_float" if isinstance(fmt, BlockFloat) else "microscaling", **_fields(fmt)}


def parse_format(value: Any, present: NumberFormat | None, where: str) -> NumberFormat | None:
    """A format from its name or a table. What a table does not say is as in `present`, if that is of the same kind."""
    if value == FLOAT:
        return None
    table = {"type": value} if isinstance(value, str) else dict(_expect(value, dict, where))
    start = _start_of_format(table.pop("type", None), present, where)
    hints = get_type_hints(type(start))
    for key in table:
        _check_key(key, [hint for hint in hints if hint != "dtype"], f"The format of {where} ({start.label})")
    changes = {key: _coerce(entry, hints[key], f"{where}.{key}") for key, entry in table.items()}
    return dataclasses.replace(start, **changes)


def _start_of_format(name: Any, present: NumberFormat | None, where: str) -> NumberFormat:
    """The format that a table starts from: the present one, or that of its `type`."""
    known: dict[str, NumberFormat] = {**NAMED_FORMATS, **FORMAT_KINDS}
    if name is None and present is not None:
        return present
    if name not in known:
        raise UsageError(
            f"{where}: there is no type '{name}'.{nearest(str(name), NAMED_FORMATS)} "
            f'Choose from {", ".join(NAMED_FORMATS)}, or "{FLOAT}".'
        )
    start = known[name]
    if isinstance(present, IntegerFormat) and isinstance(start, IntegerFormat):
        return dataclasses.replace(present, dtype=start.dtype)
    if isinstance(present, FloatFormat) and isinstance(start, FloatFormat):
        return dataclasses.replace(present, dtype=start.dtype)
    return present if present is not None and name in FORMAT_KINDS and type(present) is type(start) else start


def _override_to_plain(override: Override) -> Plain:
    plain = {key: value for key, value in _fields(override).items() if value not in (False, [], [[], []])}
    for role in ("activations", "weights", "biases"):
        fmt = getattr(override, role)
        if fmt is not None:
            plain[role] = format_to_plain(fmt)
    return plain


def _parse_override(table: Any) -> Override:
    hints, found = get_type_hints(Override), dict[str, Any]()
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
    """The fields of a dataclass as plain values, without those that are None."""
    shallow = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {key: _listed(entry) for key, entry in shallow.items() if entry is not None}


def _listed(value: Any) -> Any:
    return [_listed(entry) for entry in value] if isinstance(value, tuple) else value


def _named(choice: Method | Refinement) -> Plain:
    return {"name": type(choice).__name__, **_fields(choice)}


def _parse_named(value: Any, parse: Callable[[str], Any], known: Mapping[str, Any], where: str) -> Any:
    """A method or refinement from text such as `Rounding:rows=128`, or from a table with its name."""
    if isinstance(value, str):
        return parse(value)
    table = dict(_expect(value, dict, where))
    name = table.pop("name", None)
    if name not in known:
        raise UsageError(f"{where} has no name that is known. Choose from {', '.join(known)}.")
    choice = known[name]
    hints = get_type_hints(type(choice))
    for key in table:
        _check_key(key, hints, str(name))
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
    """A plain value as the type that a field has: lists become tuples, whole numbers floats."""
    options = get_args(hint) if get_origin(hint) is UnionType or type(None) in get_args(hint) else (hint,)
    for option in options:
        origin, arguments = get_origin(option), get_args(option)
        if origin is tuple and isinstance(value, list):
            inner = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
            if len(inner) == len(value):
                return tuple(_coerce(entry, each, where) for entry, each in zip(value, inner, strict=True))
        elif origin is not None and value in arguments:  # one of several words
            return value
        elif option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif isinstance(option, type) and type(value) is option:
            return value
    wanted = " or ".join(str(getattr(option, "__name__", option)) for option in options if option is not type(None))
    raise UsageError(f"{where} is {value!r}: expected {wanted}.")


def _parse_text(text: str) -> Any:
    """A value as TOML has it; what is none is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
