"""Whether a value is of the type that its option declares, and how a message says that type.

Types are those of annotations: `int | None`, `Sequence[str]`, `Literal["a", "b"]`. A class of Detent's is a NewType of
its name, since options are declared before it is imported. Checks are as Python's users mean them: NumPy's numbers are
numbers, any sized collection is a list, and True is not a number.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin

from detent.errors import UsageError, nearest

_WORDS: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
    PathLike: "a path",
    Mapping: "a dictionary",
    Callable: "a function",
}
_PLURALS = {str: " of texts", int: " of whole numbers", float: " of numbers"}


def check_type(option: str, value: Any, wanted: Any, purpose: str = "") -> None:
    """Raise UsageError, with what `purpose` says of the option, for a value of another type or text with a NUL."""
    texts = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(text, (str, PathLike)) and "\0" in str(text) for text in texts):
        raise UsageError(f"'{option}' is {value!r}, with a NUL character, which no name and no path has. Take it out.")
    if not _fits(value, wanted):
        words = [word for kind in _alternatives(wanted) for word in _described(kind)]
        *most, last = words
        takes = f"{', '.join(most)} or {last}" if most else last
        offered = nearest(repr(value), words) if isinstance(value, str) else ""
        told = f" {purpose[0].upper()}{purpose[1:]}" if purpose else ""
        raise UsageError(f"'{option}' is {reprlib.repr(value)}; it takes {takes}.{offered}{told}")


def _alternatives(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)


def _fits(value: Any, wanted: Any) -> bool:
    """Tell whether a value is of one of the alternatives of a type."""
    if getattr(value, "shape", None) == ():  # NumPy's and PyTorch's numbers
        value = value.item()
    return any(_is(value, kind) for kind in _alternatives(wanted))


def _is(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, NewType):
        return any((each.__name__, each.__module__[:7]) == (kind.__name__, "detent.") for each in type(value).__mro__)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is Mapping:
        pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(_fits(part, each) for pair in pairs for part, each in zip(pair, inner, strict=True))
    if origin in (Sequence, tuple):
        if not isinstance(value, Collection) or isinstance(value, (str, bytes, Mapping)):
            return False
        return (origin is Sequence or len(value) == len(inner)) and all(_fits(each, inner[0]) for each in value)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, Integral) and value in (0, 1)
    return kind is Any or isinstance(value, origin or kind)


def _described(kind: Any) -> list[str]:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if isinstance(kind, NewType):
        return [f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"]
    if origin is Literal:
        return [repr(word) for word in inner]
    if origin in (Sequence, tuple):
        return [f"a list{_PLURALS.get(inner[0], '')}"]
    return [_WORDS[origin]]
