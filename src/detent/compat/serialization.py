"""Configurations as plain values and back: `to_dict` of every configuration, and names of members in text."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from detent.compat import enums


class Serializable:
    """What can be made plain: enumerations become "Class.Member", types their name."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without what is not set."""
        return {name: plain(value) for name, value in vars(self).items() if value is not None}


def plain(value: Any) -> Any:
    """Return a value as JSON and YAML can hold it; keys that are layers' specifications become pairs."""
    if isinstance(value, Serializable):
        return value.to_dict()
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, Mapping):
        if any(key is None or isinstance(key, Serializable) for key in value):
            return [[plain(key), plain(each)] for key, each in value.items()]
        return {plain(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple, set)) else value


def member_of(value: Any) -> Any:
    """Return the member that "Class.Member" names; any other value as it is."""
    if not isinstance(value, str) or "." not in value:
        return value
    kind, _, name = value.partition(".")
    found = getattr(enums, kind, None)
    return found[name] if isinstance(found, type) and issubclass(found, Enum) and name in found.__members__ else value
