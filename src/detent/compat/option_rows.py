"""The rows of the option tables: what becomes of an option of another tool, or of a key of one that is a dictionary.

An option is *honoured* (its value changes the state that the table is about: a request, a refinement), *met* (Detent
does that anyway, or never needs it) or *refused* (there is no counterpart, and the message says what to do instead).
None is ignored: a value that asks for something else than what Detent does is an error, even where the option is met.

Rules and readers raise UsageError with the reason alone; the row puts the name and the value before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from detent.errors import UsageError, nearest

Verdict = Literal["honoured", "met", "refused"]
Rule = Callable[[Any, Any], Any]
"""From a state and the value of an option to the state that the option makes of it."""
Reader = Callable[[Any], Any]

NOTHING: tuple[Any, ...] = (False, None, 0, "", [], {}, ())
"""Values that ask for nothing."""


NO_FIELD = object()
"""In place of a default: the configuration for a dictionary has no field for this key."""


def as_given(value: Any) -> Any:
    """Return the value itself."""
    return value


@dataclass(frozen=True)
class Option:
    """One row: the name, what becomes of the option in a sentence, and how a value is read and applied."""

    name: str
    verdict: Verdict
    says: str
    rule: Rule
    read: Reader = as_given

    def apply(self, state: Any, value: Any) -> Any:
        """Return the state with this option set to `value`."""
        try:
            return self.rule(state, self.read(value))
        except UsageError as error:
            shown = "" if isinstance(value, (Mapping, list, tuple)) else f"={value!r}"
            raise UsageError(f"{self.name}{shown}: {error}") from None


def honoured(name: str, says: str, rule: Rule, read: Reader = as_given) -> Option:
    """Make a row for an option whose value changes the state."""
    return Option(name, "honoured", says, rule, read)


def met(name: str, says: str, accepts: Collection[Any] | None = None, otherwise: str = "Delete the option.") -> Option:
    """Make a row for what Detent does anyway: any value passes, or only those in `accepts`."""

    def rule(state: Any, value: Any) -> Any:
        if accepts is not None and not any(value is each or value == each for each in accepts):
            raise UsageError(f"{says}. {otherwise}")
        return state

    return Option(name, "met", says, rule)


def refused(name: str, why: str, instead: str = "Delete the option.", unless: Collection[Any] = NOTHING) -> Option:
    """Make a row for what has no counterpart; values in `unless` ask for nothing and pass."""

    def rule(state: Any, value: Any) -> Any:
        # By type too, because 0 == False: the number may ask for something where the truth value does not.
        if any(value is each or (type(value) is type(each) and value == each) for each in unless):
            return state
        raise UsageError(f"not part of Detent: {why}. {instead}")

    return Option(name, "refused", f"{why}. {instead}", rule)


def table_of(options: Iterable[Option]) -> dict[str, Option]:
    """Return the rows by name."""
    return {option.name: option for option in options}


def defaults_of(rows: Iterable[tuple[Any, Option]]) -> dict[str, Any]:
    """Return the keys of a dictionary that are fields of its configuration, from pairs of a default and a row."""
    return {option.name: default for default, option in rows if default is not NO_FIELD}


def apply_rows(rows: Mapping[str, Option], state: Any, given: Mapping[str, Any]) -> Any:
    """Return the state with all options applied, in the order of the rows, whatever order they are given in."""
    check_keys(given, rows)
    for name, option in rows.items():
        if name in given:
            state = option.apply(state, given[name])
    return state


def check_keys(given: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError for a key that is not known."""
    for key in given:
        if key not in known:
            raise UsageError(f"there is no '{key}'.{nearest(key, known)} There are {', '.join(known)}.")


def boolean(value: Any) -> bool:
    """Return a value that must be True or False."""
    if not isinstance(value, bool):
        raise UsageError("it must be True or False.")
    return value


def number(value: Any) -> float:
    """Return a value that must be a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError("it must be a number.")
    return float(value)


def whole(value: Any) -> int:
    """Return a value that must be a whole number."""
    if number(value) != int(value):
        raise UsageError("it must be a whole number.")
    return int(value)


def count(value: Any) -> int | None:
    """Return a value that must be a whole number, or None."""
    return None if value is None else whole(value)


def names(value: Any) -> tuple[str, ...]:
    """Return a value that must be a list of names."""
    if value is None:
        return ()
    if isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise UsageError("it must be a list of names.")
    return tuple(value)
