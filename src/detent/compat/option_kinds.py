"""The vocabulary of the option table: what a script asks for, and the kinds of rows that say what becomes of an option.

Each option of the other tools is *honoured* (its value changes the request), *met* (Detent does that anyway, or never
needs it) or *refused* (there is no counterpart, and the message says what to do instead). None is ignored: a value that
asks for something else than what Detent does is an error, even where the option is otherwise met.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from detent.compat.auto_mixprecision import MixedSearch
from detent.devices.catalog import OPTIONAL, find_device
from detent.devices.constraints import CONCATS, SHIFTS
from detent.errors import UsageError
from detent.prepare import default_passes
from detent.recipe import Override, Recipe

SHIFT_RULES = SHIFTS.names
(CONCAT_RULE,) = CONCATS.names


@dataclass(frozen=True)
class RandomData:
    """Random calibration data: shapes for dynamic inputs and ranges, as RandomDataReader takes them."""

    shapes: Any = None
    ranges: Any = None


@dataclass(frozen=True)
class Request:
    """One quantization in Detent's terms: a recipe, and what `detent.quantize` is told beside it.

    `patterns` are regular expressions of nodes to leave float. `always_random` means that data is not even looked at
    where it is given. `search` chooses layers before anything is quantized. `conversions` are steps of `detent convert`
    that the result goes through.
    """

    recipe: Recipe
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    limit: int | None = None
    threads: int = 0
    providers: tuple[str, ...] = ()
    fix_shapes: Mapping[str, Sequence[int]] | None = None
    statistics: Path | None = None
    random: RandomData = RandomData()
    always_random: bool = False
    search: MixedSearch | None = None
    conversions: tuple[str, ...] = ()
    external_data: bool = False
    summary: bool = True

    def replace(self, **changes: Any) -> Request:
        """Return the same with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_recipe(self, **changes: Any) -> Request:
        """Return the same with some fields of the recipe changed."""
        return self.replace(recipe=self.recipe.replace(**changes))

    def with_override(self, override: Override) -> Request:
        """Return the same with one more override."""
        return self.with_recipe(overrides=(*self.recipe.overrides, override))


Verdict = Literal["honoured", "met", "refused"]
Rule = Callable[[Request, str, Any], Request]
"""From a request, the name of an option and its value to the request that the option makes of it."""

NOTHING: tuple[Any, ...] = (False, None, 0, "", [], {}, ())
"""Values that ask for nothing."""


@dataclass(frozen=True)
class Option:
    """One row: the name, what becomes of the option in a sentence, and the rule that applies a value."""

    name: str
    verdict: Verdict
    says: str
    rule: Rule

    def apply(self, request: Request, value: Any) -> Request:
        """Return the request with this option set to `value`."""
        return self.rule(request, self.name, value)


def honoured(name: str, says: str, rule: Rule) -> Option:
    """Make a row for an option whose value changes the request."""
    return Option(name, "honoured", says, rule)


def met(name: str, says: str, accepts: Collection[Any] | None = None, otherwise: str = "Delete the option.") -> Option:
    """Make a row for what Detent does anyway: any value passes, or only those in `accepts`."""

    def rule(request: Request, name: str, value: Any) -> Request:
        if accepts is not None and not any(value is each or value == each for each in accepts):
            raise UsageError(f"The option {name}={value!r} cannot be had: {says}. {otherwise}")
        return request

    return Option(name, "met", says, rule)


def refused(name: str, why: str, instead: str = "Delete the option.", unless: Collection[Any] = NOTHING) -> Option:
    """Make a row for what has no counterpart; values in `unless` ask for nothing and pass."""

    def rule(request: Request, name: str, value: Any) -> Request:
        if any(value is each or (type(value) is type(each) and value == each) for each in unless):
            return request
        raise UsageError(f"The option {name}={value!r} is not part of Detent: {why}. {instead}")

    return Option(name, "refused", f"{why}. {instead}", rule)


def switch(name: str, *steps: str) -> Option:
    """Make a row for steps of preparation or rules of a target: done for True, left out for False."""
    listed = ", ".join(f"`{step}`" for step in steps)
    return honoured(name, f"{listed}: done where True, left out where False", _switching(steps))


def all_of(name: str, steps: tuple[str, ...], says: str) -> Option:
    """Make a row for many steps: True leaves each as it is, False leaves all out."""
    rule = _switching(steps)
    return honoured(
        name, says, lambda request, name, value: request if boolean(name, value) else rule(request, name, False)
    )


def _switching(steps: tuple[str, ...]) -> Rule:
    def rule(request: Request, name: str, value: Any) -> Request:
        recipe, wanted = request.recipe, boolean(name, value)
        usual = steps_of(recipe.target)
        without = [step for step in recipe.without if step not in steps]
        also = [step for step in recipe.also if step not in steps]
        if wanted:
            also += [step for step in steps if step not in usual]
        else:
            without += [step for step in steps if step in usual]
        if not set(also) <= set(OPTIONAL):
            raise UsageError(
                f"The option {name}=True: the target {recipe.target} does not do that. enable_npu_cnn=True, or "
                "AlignConcat=True for float scales, choose a target that does."
            )
        return request.with_recipe(without=tuple(without), also=tuple(also))

    return rule


def steps_of(target: str) -> frozenset[str]:
    """Return the steps and rules that a target has without being asked, by the names that `Recipe.without` takes."""
    device = find_device(target)
    passes = {each.step() for each in default_passes(None, [make() for make in device.preparations])}
    return frozenset((*passes, *device.steps, *device.constraints.names))


def device_rewrites() -> tuple[str, ...]:
    """Return what makes the file answer as the CNN device does, rounding aside."""
    device = find_device("npu-xint8")
    return tuple(each.step() for each in (*device.substitutions, *device.corrections))


def field(name: str, says: str, recipe_field: str, convert: Callable[[str, Any], Any] | None = None) -> Option:
    """Make a row for an option that is one field of the recipe, True or False unless `convert` says otherwise."""
    read = convert or boolean
    return honoured(
        name,
        f"{says} (`{recipe_field}`)",
        lambda request, name, value: request.with_recipe(**{recipe_field: read(name, value)}),
    )


def listing(name: str, says: str, where: str) -> Option:
    """Make a row for nodes that are added to a list of the request."""
    return honoured(
        name,
        f"{says} (`{where}`)",
        lambda request, name, value: request.replace(**{where: (*getattr(request, where), *names(name, value))}),
    )


def setting(name: str, says: str, method: str, key: str) -> Option:
    """Make a row for a setting of one calibration method, and of no other."""

    def rule(request: Request, name: str, value: Any) -> Request:
        given = tuple(value) if isinstance(value, list) else value
        return with_setting(request, name, value, method, **{key: given})

    return honoured(name, f"{says} (`{method}.{key}`)", rule)


def with_setting(request: Request, name: str, value: Any, method: str, **changes: Any) -> Request:
    """Return the request with settings of its calibration method changed; UsageError if that is another method."""
    chosen = request.recipe.method
    if type(chosen).__name__ != method:
        raise UsageError(f"The option {name}={value!r} is for {method}, and the method is {chosen}.")
    return request.with_recipe(method=dataclasses.replace(chosen, **changes))  # type: ignore[type-var]  # every method is a dataclass


def boolean(name: str, value: Any) -> bool:
    """Return a value that must be True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"The option {name} is {value!r}: it must be True or False.")
    return value


def number(name: str, value: Any) -> float:
    """Return a value that must be a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"The option {name} is {value!r}: it must be a number.")
    return value


def whole(name: str, value: Any) -> int:
    """Return a value that must be a whole number."""
    if number(name, value) != int(value):
        raise UsageError(f"The option {name} is {value!r}: it must be a whole number.")
    return int(value)


def names(option: str, value: Any) -> tuple[str, ...]:
    """Return a value that must be a list of names."""
    if value is None:
        return ()
    if isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"The option {option} is {value!r}: it must be a list of names.")
    return tuple(value)
