"""Markup from Python: every text becomes text, whatever it holds, and only what this room made is markup.

    tag("td", "<b>", class_="name")   is   <td class="name">&lt;b&gt;</td>

Names of tags and attributes are ours; texts and values of attributes may be anybody's. Characters that do not print
(controls, reversed writing) are spelt out, but for line breaks.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from detent.report.names import printable

VOID = frozenset({"input", "link", "meta", "wbr"})

_PARTS = re.compile(r"(?<=[/._:])(?=[^/._:])")


class Markup(str):
    """Text that is markup already: only `tag`, `joined` and the page itself make it."""

    __slots__ = ()


Child = str | None
"""A text, or markup; None is nothing."""

Value = str | int | bool | None
"""A text or number; True for an attribute without a value, False and None for none."""


def text(content: str) -> Markup:
    """Any text as markup that shows it."""
    return Markup(html.escape("\n".join(map(printable, content.split("\n")))))


def tag(element: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element. `class_` is class, and `data_row` is data-row."""
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in VOID:
        return Markup(f"<{element}{opened}>")
    return Markup(f"<{element}{opened}>{joined(children)}</{element}>")


def joined(children: Iterable[Child]) -> Markup:
    """Markup and texts, one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children if child))


def name_of(content: str) -> Markup:
    """A name out of a model or a folder: apart from the direction of the text around it, and broken at its parts."""
    parts = _PARTS.split(content)
    return tag(
        "bdi", joined(joined((tag("wbr") if at else None, part)) for at, part in enumerate(parts)), class_="name"
    )


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    spelt = key.rstrip("_").replace("_", "-")
    return f" {spelt}" if value is True else f' {spelt}="{text(str(value))}"'
