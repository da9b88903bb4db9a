"""Settings that users write: text files, and choices as text (a name, and settings of the dataclass it stands for)."""

from __future__ import annotations

import codecs
import dataclasses
import json
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from detent.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Choice = TypeVar("Choice")

# How a file begins whose encoding is marked. PowerShell redirects text as UTF-16, and Notepad marks UTF-8.
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def read_text(path: Path) -> str:
    """Return the text of a file: UTF-8, or what the mark at its beginning says. Raise OSError or UnicodeDecodeError."""
    data = path.read_bytes()
    mark = next((mark for mark in _MARKS if data.startswith(mark)), b"")
    return data[len(mark) :].decode(_MARKS.get(mark, "utf-8")).replace("\r\n", "\n")


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says. Raise ValueError if it is none, or nested deeper than Python can follow."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML says. Raise ValueError if it is none, or nested deeper than Python can follow."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_choice(text: str, known: Mapping[str, Choice], noun: str, unsettable: Collection[str] = ()) -> Choice:
    """Return one of `known` by name, in any case, with settings after a colon: `Percentile:percentile=99.99`.

    A setting of several numbers has slashes between them: `LayerwisePercentile:candidates=99.9/99.99,metric=mse`.
    `unsettable` are fields that cannot be written so.
    """
    name, _, settings = text.partition(":")
    by_lower = {key.lower(): choice for key, choice in known.items()}
    if name.lower() not in by_lower:
        raise UsageError(f"There is no {noun} '{name}'.{nearest(name, known)} Choose from {', '.join(known)}.")
    choice: Any = by_lower[name.lower()]
    changes: dict[str, object] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        fields = dataclasses.fields(choice) if dataclasses.is_dataclass(choice) else ()
        names = [field.name for field in fields if field.name not in unsettable]
        if key not in names:
            listed = ", ".join(names) or "none"
            raise UsageError(f"{type(choice).__name__} has no setting '{key}'.{nearest(key, names)} It has: {listed}.")
        changes[key] = _parse(setting, value, getattr(choice, key))
    result: Choice = dataclasses.replace(choice, **changes) if changes else choice
    return result


def choice_text(choice: Any) -> str:
    """Write a choice as the text that `parse_choice` reads: its name and its non-default settings."""
    if choice is None:
        return "none"
    settings = [
        (each.name, getattr(choice, each.name))
        for each in dataclasses.fields(choice)
        if getattr(choice, each.name) != each.default
    ]
    written = ",".join(f"{name}={_show(value)}" for name, value in settings)
    return type(choice).__name__ + (f":{written}" if written else "")


def parse_memory(text: str) -> int:
    """Read bytes from text with a unit, in any case: `2GB`, `1.5 GB`, `800MB`. A GB has 1024 MB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])i?B?\s*", text, re.IGNORECASE)
    if found is None:
        raise UsageError(f"'{text}' is not an amount of memory: give a number and a unit, such as 2GB or 800MB.")
    return int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2].upper())))


def show_memory(count: int) -> str:
    """Write bytes with a unit, rounded up to a number that `parse_memory` reads as enough."""
    return f"{-(-count // 2**20)}MB"


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(setting: str, value: str, default: object) -> object:
    """Read the value of a setting in the type of its default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        if isinstance(default, tuple):
            return tuple(float(part) for part in value.split("/"))
        if default is None:
            return float(value)
        return type(default)(value)  # type: ignore[call-arg]  # str, int or float
    except (ValueError, KeyError, TypeError):
        kind = "true or false" if isinstance(default, bool) else "a number"
        raise UsageError(f"'{setting}': expected {kind} after the equals sign.") from None
