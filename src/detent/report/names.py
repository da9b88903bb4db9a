"""Names of tensors as text to look at. A model's names are anybody's text: they may hold line breaks or worse."""

from __future__ import annotations

from rich.markup import escape

_KEPT_LENGTH = 60


def printable(name: str) -> str:
    """The name with everything that does not print (line breaks, terminal codes, reversed writing) spelt out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in name
    )


def inert(name: str) -> str:
    """A name for text with markup: everything that does not print spelt out, and brackets taken as they are."""
    return escape(printable(name))


def file_stem(index: int, name: str) -> str:
    """A file name without ending: the tensor's number, which makes it unique, and the harmless part of its name."""
    harmless = "".join(character if character.isascii() and character.isalnum() else "_" for character in name)
    return f"{index:03d}_{harmless.strip('_')[:_KEPT_LENGTH]}".rstrip("_")
