"""The page of all public names: `python -m tools.api_reference docs/api.md` writes it.

It is made from signatures and docstrings as Python has them at run time, because the options of a verb are declared
once, for the command line and for Python, and put into its docstring when it is imported.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
from pathlib import Path
from typing import Any

import detent

HEAD = """# Python reference

Every public name of `detent`. This page is written from the docstrings (`python -m tools.api_reference docs/api.md`);
the [commands](commands.md) have the same options under the same names.

```py
import detent

report = detent.quantize("model.onnx", "model_int8.onnx", "images/", recipe="XINT8")
```
"""

VERBS = (
    *("quantize", "evaluate", "compare", "compare_candidates", "sensitivity", "tune", "mix", "check", "emulate"),
    *("infer", "split", "from_torch", "write_page", "compare_scores", "find_recipe", "find_preset"),
)
STRATEGIES = ("detent.methods", "detent.refinements", "detent.numerics")
CALLED = (types.FunctionType, property)
SECTION = re.compile(r"^(Args|Options|Raises|Returns):\n((?:^(?:    .*)?\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def page() -> str:
    """Return the page as Markdown."""
    others = sorted((name for name in detent.__all__ if name not in VERBS and not name.startswith("_")), key=str.lower)
    errors = [name for name in others if name.endswith("Error")]
    kinds = [name for name in others if name not in errors]
    parts = [HEAD, "\n## What to call\n", *map(_function, VERBS)]
    parts += ["\n## What they take and return\n", *map(_kind, kinds)]
    parts += ["\n## Errors\n", "All are a `DetentError`, and their text says what to do.\n"]
    parts += [f"- `{name}`: {_first(getattr(detent, name))}" for name in errors]
    return "\n".join(parts).rstrip() + "\n"


def _function(name: str) -> str:
    call = getattr(detent, name)
    doc = _dedented(call)
    return "\n".join([f"\n### {name}\n", f"```py\n{name}{_signature(call)}\n```\n", _prose(doc), *_tables(doc)])


def _kind(name: str) -> str:
    found = getattr(detent, name)
    if not inspect.isclass(found):
        return f"\n### {name}\n\nA {type(found).__name__}: {', '.join(map(str, found))}.\n"
    parts = [f"\n### {name}\n", _prose(_dedented(found))]
    rows = [f"| `{field.name}` | {_type(field.type)}{_default(field)} |" for field in _fields(found)]
    if rows:
        parts += ["\n| field | |\n| --- | --- |", *rows]
    methods = [
        f"- `{attribute}{_signature(value) if inspect.isfunction(value) else ''}`: {_first(value)}"
        for attribute, value in inspect.getmembers(found)
        if not attribute.startswith("_") and value.__doc__ and isinstance(value, CALLED)
    ]
    if found.__module__.startswith(STRATEGIES):  # their methods are for the rooms that run them
        methods = []
    return "\n".join([*parts, "", *methods]) if methods else "\n".join(parts)


def _fields(kind: type) -> list[Any]:
    if not dataclasses.is_dataclass(kind):
        return []
    return [field for field in dataclasses.fields(kind) if not field.name.startswith("_")]


def _signature(call: Any) -> str:
    """Return the parameters without their types, which the tables explain."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(call).parameters.values()
        if parameter.name != "self"
    ]
    return str(inspect.Signature(parameters)).replace("'", '"')


def _dedented(value: Any) -> str:
    """Return the docstring; a part that was added at run time is indented otherwise."""
    lines = (value.__doc__ or "").strip().splitlines()
    indented = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    cut = min(indented, default=0)
    return "\n".join([*lines[:1], *(line[cut:].rstrip() for line in lines[1:])]) + "\n"


def _prose(doc: str) -> str:
    return SECTION.sub("", doc).strip() + "\n"


def _tables(doc: str) -> list[str]:
    parts = []
    for title, body in SECTION.findall(doc):
        if title == "Raises":
            parts.append("\nRaises " + "; ".join(f"`{name}`: {_cell(text)}" for name, text in ENTRY.findall(body)))
            continue
        rows = [f"| `{name}` | {_cell(text)} |" for name, text in ENTRY.findall(body)]
        parts += [f"\n| {'argument' if title == 'Args' else 'option'} | |\n| --- | --- |", *rows]
    return parts


def _first(value: Any) -> str:
    return _cell((value.__doc__ or "").strip().partition("\n\n")[0])


def _default(field: Any) -> str:
    plain = isinstance(field.default, (str, int, float, bool)) or field.default is None
    return f", default `{field.default!r}`" if plain else ""


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return f"`{text}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
