"""One family of errors: every failure that a user can cause or cure is a `DetentError`.

A message says what was wrong, where (file, node, tensor or sample) and what to do about it, in that order. The class
tells a program which side to look at, and the command line which exit code to return.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DetentError(Exception):
    """Base of all errors that Detent raises on purpose."""

    exit_code = 1


class UsageError(DetentError):
    """An option, a recipe or a pattern that does not mean anything, or contradicts another."""

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
    """A sentence that offers the known names most like `name`: " Did you mean 'x'?", or the empty string."""
    matches = difflib.get_close_matches(name, list(known), n=limit, cutoff=0.5)
    if not matches:
        return ""
    return " Did you mean " + " or ".join(repr(match) for match in matches) + "?"
