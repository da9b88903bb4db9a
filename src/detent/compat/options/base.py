"""The vocabulary of the option table.

Each option of the other tools is *honoured* (its value changes the request), *met* (Detent does that anyway, or never
needs it) or *refused* (there is no counterpart, and the message says what to do instead). None is ignored: a value that
asks for something else than what Detent does is an error, even where the option is otherwise met.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from detent.compat.request import Request
from detent.compat.steps import steps_of
from detent.devices.catalog import OPTIONAL
from detent.errors import UsageError

Verdict = Literal["honoured", "met", "refused"]
Apply = Callable[[Request, Any], Request]

NOTHING: tuple[Any, ...] = (False, None, 0, "", [], {}, ())
"""Values that ask for nothing."""


@dataclass(frozen=True)
class Option:
    """One option: its name, what becomes of it in a sentence, and the change that its value makes."""

    name: str
    verdict: Verdict
    says: str
    apply: Apply


def honoured(name: str, says: str, apply: Apply) -> Option:
    """An option whose value changes the request."""
    return Option(name, "honoured", says, apply)


def met(name: str, says: str, accepts: Collection[Any] | None = None, otherwise: str = "") -> Option:
    """An option that asks for what Detent does anyway: any value, or only those in `accepts`."""

    def apply(request: Request, value: Any) -> Request:
        if accepts is not None and not any(value is each or value == each for each in accepts):
            raise UsageError(f"The option {name}={value!r} cannot be had: {says}. {otherwise}".rstrip())
        return request

    return Option(name, "met", says, apply)


def refused(name: str, why: str, instead: str, unless: Collection[Any] = NOTHING) -> Option:
    """An option without a counterpart; values in `unless` ask for nothing and pass."""

    def apply(request: Request, value: Any) -> Request:
        if any(value is each or (type(value) is type(each) and value == each) for each in unless):
            return request
        raise UsageError(f"The option {name}={value!r} is not part of Detent: {why}. {instead}")

    return Option(name, "refused", f"{why}. {instead}", apply)


def switch(name: str, *steps: str) -> Option:
    """True and False for steps of preparation or rules of a target."""

    def apply(request: Request, value: Any) -> Request:
        recipe, wanted = request.recipe, boolean(name, value)
        usual = steps_of(recipe.target)
        without = [step for step in recipe.without if step not in steps]
        also = [step for step in recipe.also if step not in steps]
        if wanted:
            also += [step for step in steps if step not in usual]
        else:
            without += [step for step in steps if step in usual]
        for step in also:
            if step not in OPTIONAL:
                raise UsageError(
                    f"The option {name}=True: the target {recipe.target} does not do that. enable_npu_cnn=True, or "
                    "AlignConcat=True for float scales, choose a target that does."
                )
        return request.with_recipe(without=tuple(without), also=tuple(also))

    listed = ", ".join(f"`{step}`" for step in steps)
    return honoured(name, f"{listed}: done where True, left out where False", apply)


def all_of(name: str, steps: tuple[str, ...], says: str) -> Option:
    """One switch for many steps: True leaves each as it is, False leaves all out."""

    def apply(request: Request, value: Any) -> Request:
        return request if boolean(name, value) else switch(name, *steps).apply(request, False)

    return honoured(name, says, apply)


def boolean(name: str, value: Any) -> bool:
    """A value that must be True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"The option {name} is {value!r}: it must be True or False.")
    return value


def number(name: str, value: Any) -> float:
    """A value that must be a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"The option {name} is {value!r}: it must be a number.")
    return value


def whole(name: str, value: Any) -> int:
    """A value that must be a whole number."""
    if number(name, value) != int(value):
        raise UsageError(f"The option {name} is {value!r}: it must be a whole number.")
    return int(value)


def names(option: str, value: Any) -> tuple[str, ...]:
    """A value that must be a list of names."""
    if value is None:
        return ()
    if isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"The option {option} is {value!r}: it must be a list of names.")
    return tuple(value)


def field(name: str, says: str, recipe_field: str, convert: Callable[[str, Any], Any] = boolean) -> Option:
    """An option that is one field of the recipe."""
    return honoured(
        name,
        f"{says} (`{recipe_field}`)",
        lambda request, value: request.with_recipe(**{recipe_field: convert(name, value)}),
    )
