"""The rows of the option tables: what becomes of an option of another tool, or of a key of one that is a dictionary.

An option is *honoured* (its value changes the state that the table is about: a request, a refinement), *met* (Detent
does that anyway, or never needs it), *noted* (the file is right without it, and a note says what is not done) or
*refused* (the file would not be what was asked for: the message says what to do instead). None is ignored silently: a
value that has no effect beside the rest of a configuration is noted, too, since the other tools run such scripts.

Rules and readers raise UsageError, or NoEffect, with the reason alone; the row puts the name and the value before it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from detent.errors import UsageError, check_known

Verdict = Literal["honoured", "met", "noted", "refused"]
Rule = Callable[[Any, Any], Any]  # from a state and the value of an option to the state that the option makes of it
Reader = Callable[[Any], Any]

NOTHING: tuple[Any, ...] = (False, None, 0, "", [], {}, ())  # values that ask for nothing


class ScriptNote(UserWarning):
    """Something in a script that Detent does differently or not at all, without harm to the result."""


class NoEffect(Exception):  # noqa: N818 - it never reaches the user: the row turns it into a note
    """Why an option changes nothing, given the rest of a configuration."""


def note(text: str) -> None:
    """Tell the user of a script what is not done as the script says."""
    warnings.warn(text, ScriptNote, stacklevel=2)


NO_FIELD = object()  # in place of a default: the configuration for a dictionary has no field for this key


def as_given(value: Any) -> Any:
    """Return the value itself."""
    return value


def unchanged(state: Any, _: Any) -> Any:
    """Return the state itself: the rule of an option that was applied before the table."""
    return state


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
        shown = "" if isinstance(value, (Mapping, list, tuple)) else f"={value!r}"
        try:
            return self.rule(state, self.read(value))
        except NoEffect as reason:
            note(f"{self.name}{shown}: {reason}")
            return state
        except UsageError as error:
            raise UsageError(f"{self.name}{shown}: {error}") from None
        except (TypeError, AttributeError, ValueError) as error:  # the value is of a kind that no rule expects
            kind = type(value).__name__
            raise UsageError(
                f"{self.name}{shown}: the option does not take a value of type {kind} ({error})."
            ) from error


def honoured(name: str, says: str, rule: Rule, read: Reader = as_given) -> Option:
    """Make a row for an option whose value changes the state."""
    return Option(name, "honoured", says, rule, read)


def met(name: str, says: str, accepts: Collection[Any] | None = None) -> Option:
    """Make a row for what Detent does anyway: any value passes, one that is not in `accepts` with a note."""

    def rule(state: Any, value: Any) -> Any:
        if accepts is not None and not any(value is each or value == each for each in accepts):
            raise NoEffect(f"{says}.")
        return state

    return Option(name, "met", says, rule)


def asks_for(value: Any, nothing: Collection[Any]) -> bool:
    """Return whether a value asks for something: by type too, because 0 == False and the number may be a request."""
    return not any(value is each or (type(value) is type(each) and value == each) for each in nothing)


def noted(name: str, why: str, unless: Collection[Any] = NOTHING) -> Option:
    """Make a row for what is not done, and what the result is right without."""

    def rule(state: Any, value: Any) -> Any:
        if asks_for(value, unless):
            raise NoEffect(f"{why}.")
        return state

    return Option(name, "noted", why, rule)


def refused(name: str, why: str, instead: str = "Delete the option.", unless: Collection[Any] = NOTHING) -> Option:
    """Make a row for what has no counterpart; values in `unless` ask for nothing and pass."""

    def rule(state: Any, value: Any) -> Any:
        if asks_for(value, unless):
            raise UsageError(f"not part of Detent: {why}. {instead}")
        return state

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
    for key in given:
        check_known("key", key, known)


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
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value):
        raise UsageError("it must be a list of names.")
    return tuple(value)
