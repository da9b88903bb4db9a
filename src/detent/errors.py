"""One family of errors: every failure that a user can cause or cure is a `DetentError`.

A message says what was wrong, where (file, node, tensor or sample) and what to do about it, in that order. The class
tells a program which side to look at, and the command line which exit code to return.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence


class DetentError(Exception):
    """Base of all errors that Detent raises on purpose."""

    exit_code = 1


class UsageError(DetentError):
    """An option, recipe or pattern is invalid, or contradicts another."""

    exit_code = 2


class ModelError(DetentError):
    """The model cannot be read, is not valid, or holds something that cannot be quantized."""

    exit_code = 3


class DataError(DetentError):
    """The calibration or evaluation data cannot be read or does not fit the model."""

    exit_code = 4


class OutputError(DetentError):
    """The result cannot be written. Nothing was left behind."""

    exit_code = 5


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Suggest the known names most like `name`: " Did you mean 'x'?", or the empty string."""
    matches = difflib.get_close_matches(name, list(known), n=limit, cutoff=0.5)
    if not matches:
        return ""
    return " Did you mean " + " or ".join(repr(match) for match in matches) + "?"


def listed(names: Sequence[str], shown: int) -> str:
    """List a few names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}"


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Raise UsageError for a name that is not one of the known ones."""
    if name not in known:
        raise UsageError(f"There is no {what} {name!r}.{nearest(str(name), known)} There are {', '.join(known)}.")


def check_within(field: str, value: int, least: int, most: int | None = None) -> None:
    """Raise UsageError for a whole number outside least..most."""
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise UsageError(f"{field} is {value}; it must be {allowed}.")
