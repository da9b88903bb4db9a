"""Names that scripts import and that have no counterpart: they can be imported, and say so when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

from detent.errors import UsageError


class Unsupported:
    """What Detent does not do, and what to do instead."""

    def __init__(self, name: str, instead: str) -> None:
        self._name, self._instead = name, instead

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Say so."""
        raise UsageError(f"{self._name} is not part of Detent. {self._instead}")

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # asked by Python itself, of any object
            raise AttributeError(attribute)
        self()
        raise AssertionError("not reached")

    def __repr__(self) -> str:
        return f"<{self._name}: not part of Detent>"


def unsupported(name: str, instead: str) -> Any:
    """A stand-in for `name` that raises UsageError when it is called or looked into."""
    return Unsupported(name, instead)
