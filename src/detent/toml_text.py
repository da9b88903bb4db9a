"""Plain values as TOML text. Python reads TOML and does not write it; recipes need little of the language."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(table: Mapping[str, Any]) -> str:
    """A table of scalars, lists, tables of these and lists of tables as a TOML document."""
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lists = {key: value for key, value in table.items() if _is_table_list(value)}
    lines = [f"{key} = {_inline(value)}" for key, value in table.items() if key not in tables and key not in lists]
    for key, value in tables.items():
        lines += ["", f"[{key}]", *_assignments(value)]
    for key, entries in lists.items():
        for entry in entries:
            lines += ["", f"[[{key}]]", *_assignments(entry)]
    return "\n".join(lines) + "\n"


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_inline(value)}" for key, value in table.items()]


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_assignments(value)) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    # TOML's basic strings, booleans and numbers are written as JSON's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
