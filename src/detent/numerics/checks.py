"""What the constructors of the formats complain about."""

from __future__ import annotations

from collections.abc import Sequence

from detent.errors import UsageError, nearest


def check_known(what: str, name: str, known: Sequence[str]) -> None:
    """Complain about a name that is not one of the known ones."""
    if name not in known:
        raise UsageError(f"There is no {what} {name!r}; there are {', '.join(known)}.{nearest(str(name), known)}")


def check_within(field: str, value: int, least: int, most: int | None = None) -> None:
    """Complain about a whole number outside least..most."""
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise UsageError(f"{field} is {value}; it must be {allowed}.")
