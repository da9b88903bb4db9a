"""Mixed precision by search: each layer's weights, or each activation, in the cheapest of several formats.

Every tensor is quantized alone in every format, and the error at the outputs measured. From these the formats are
assigned (see `measure.precision`), and the model with all of them is measured. Errors add only nearly, so where it
misses the wanted one, the assignment is made again for an error that is as much smaller as it was missed by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from detent.errors import UsageError
from detent.measure.precision import Choice, Option, assign, bits_of
from detent.measure.probe import Variant
from detent.measure.proposal import literal
from detent.measure.sensitivity import errors_of, some_of
from detent.measure.things import Thing, everything, things_of
from detent.numerics.formats import IntegerFormat
from detent.opening import Job, check_recipe
from detent.plan.layout import Role
from detent.plan.plan import Plan, make_plan
from detent.probing import SAMPLES, Ready, make_ready
from detent.recipe import Override, Recipe

What = Literal["weights", "activations"]
ROLES: Mapping[What, Role] = {"weights": Role.WEIGHT, "activations": Role.ACTIVATION}

ROUNDS = 4
"""How often formats are assigned at most."""

WHOLE = "the whole model"


@dataclass(frozen=True)
class PrecisionSearch:
    """The recipe that was found, with the format of every layer or activation, and what it costs.

    `error` is that of the whole model, measured, as noise power over signal power; `mean_bits` is of all numbers whose
    format was chosen.
    """

    recipe: Recipe
    formats: Mapping[str, IntegerFormat]
    error: float
    mean_bits: float
    reached: bool


def search_precision(
    job: Job,
    candidates: Sequence[IntegerFormat],
    *,
    what: What = "weights",
    max_error: float | None = None,
    mean_bits: float | None = None,
    count: int = SAMPLES,
) -> PrecisionSearch:
    """Give each layer's weights, or each activation, one of the formats.

    With `max_error`, as few bits as keep the error of the whole model below it; with `mean_bits`, as little error as
    that many bits for a number allow.
    """
    if len(candidates) < 2:
        raise UsageError("A search needs at least two formats to choose from, such as int8 and int16.")
    for fmt in candidates:
        check_recipe(job.recipe.replace(**{what: fmt}, refinement=None), job.selection)
    ready = make_ready(job, count)
    search = _Search(ready, job, candidates, what)
    if not search.options:
        raise UsageError(f"Recipe {job.recipe.name} has no {what} of integers whose format could be chosen.")
    total = search.elements
    if mean_bits is not None:
        choice = assign(search.options, max_error=max_error, max_bits=mean_bits * total)
        error = search.error(choice)
        return search.result(choice, error, bits_of(choice) <= mean_bits * total)
    aim = max_error
    for _ in range(ROUNDS):
        choice = assign(search.options, max_error=aim)
        error = search.error(choice)
        if max_error is None or error <= max_error:
            break
        aim = (aim or 0.0) * max_error / error
    return search.result(choice, error, max_error is not None and error <= max_error)


class _Search:
    """What was measured, and how a choice becomes a model and a recipe."""

    def __init__(self, ready: Ready, job: Job, candidates: Sequence[IntegerFormat], what: What) -> None:
        self._ready, self._job, self._what = ready, job, what
        self._usual = things_of(ready.model, ready.plan)
        self._things = {
            fmt: _by_slot(things_of(ready.model, _planned(ready, what, fmt)), ready.plan, what) for fmt in candidates
        }
        self._samples = some_of(ready.samples, len(candidates) * len(self._usual))
        slots = self._things[candidates[0]]
        variants = {
            (slot, fmt): replace(everything("", of_format[slot]), name=f"{slot} {number}")
            for number, (fmt, of_format) in enumerate(self._things.items())
            for slot in slots
        }
        errors = self._errors(list(variants.values()))
        sizes = {slot: sum(max(thing.elements, 1) for thing in things) for slot, things in slots.items()}
        self.elements = sum(sizes.values())
        self.options = {
            slot: [Option(fmt, sizes[slot] * fmt.bits, errors[variants[slot, fmt].name]) for fmt in candidates]
            for slot in slots
        }

    def _errors(self, variants: Sequence[Variant]) -> dict[str, float]:
        how = self._job.collecting.threads
        ready = self._ready
        return errors_of(ready.model, ready.plan, variants, self._samples, threads=how, progress=self._job.progress)

    def error(self, choice: Choice) -> float:
        """The error of the whole model with these formats, all else as the recipe says."""
        chosen = [thing for slot, option in choice.items() for thing in self._things[_integers(option)][slot]]
        replaced = {thing.name for thing in chosen}
        others = [thing for thing in self._usual if thing.name not in replaced]
        return self._errors([everything(WHOLE, [*others, *chosen])])[WHOLE]

    def result(self, choice: Choice, error: float, reached: bool) -> PrecisionSearch:
        """The choice as a recipe."""
        recipe = self._job.recipe
        formats = {slot: _integers(option) for slot, option in choice.items()}
        parts: dict[IntegerFormat, list[str]] = {}
        for slot, fmt in formats.items():
            if fmt != recipe.formats[self._what]:
                parts.setdefault(fmt, []).append(slot)
        added = tuple(self._override(fmt, slots) for fmt, slots in parts.items())
        mixed = recipe.replace(name=f"{recipe.name}-mixed", overrides=(*recipe.overrides, *added)) if added else recipe
        return PrecisionSearch(mixed, formats, error, bits_of(choice) / self.elements, reached)

    def _override(self, fmt: IntegerFormat, names: Sequence[str]) -> Override:
        slots = tuple(map(literal, names))
        if self._what == "weights":
            return Override(nodes=slots, weights=fmt)
        return Override(tensors=slots, activations=fmt)


def _integers(option: Option) -> IntegerFormat:
    assert isinstance(option.format, IntegerFormat), "only these are candidates"
    return option.format


def _planned(ready: Ready, what: What, fmt: IntegerFormat) -> Plan:
    """The plan with all weights, or all activations, in one format."""
    layout = ready.plan.layout
    formats = {
        name: fmt if layout.sites[name].role is ROLES[what] and isinstance(usual, IntegerFormat) else usual
        for name, usual in layout.formats.items()
    }
    recipe = ready.recipe.replace(**{what: fmt})
    return make_plan(ready.model, replace(layout, formats=formats), ready.observation.statistics, recipe)


def _by_slot(things: Sequence[Thing], plan: Plan, what: What) -> dict[str, list[Thing]]:
    """Things that have one format together: the constants of a layer, or activations that share their parameters."""
    slots: dict[str, list[Thing]] = {}
    for thing in things:
        if thing.is_weight != (what == "weights"):
            continue
        names = [*thing.variant.constants, *thing.variant.rounding]
        formats = [plan.layout.formats.get(name) for name in names]
        if any(isinstance(fmt, IntegerFormat) for fmt in formats):
            slot = thing.layer if what == "weights" else plan.layout.leader(names[0])
            slots.setdefault(slot, []).append(thing)
    return slots
