"""Mixed precision by search: each layer's weights, or each activation, in the cheapest of several formats.

Every tensor is quantized alone in every format, and the error at the outputs measured. From these the formats are
assigned (see `measure.precision`), and the model with all of them is measured. Errors add only nearly, so where it
misses the wanted one, the assignment is made again for an error that is as much smaller as it was missed by.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.execute.probe import Variant
from detent.numerics.formats import INTEGER_TYPES, IntegerFormat
from detent.pipeline.job import Job
from detent.pipeline.planned import Planned
from detent.pipeline.prepared import check_recipe
from detent.pipeline.run import Run
from detent.plan.layout import Role
from detent.plan.plan import Plan, make_plan
from detent.plan.select import names_matching
from detent.recipe import Override, Recipe
from detent.recipe.file import parse_format
from detent.results.searched import Choice, FormatOption, PrecisionSearch, SearchedRole
from detent.search.probing import SAMPLES, unrefined
from detent.sensitivity_analysis.layer_errors import errors_of, evenly_spaced
from detent.sensitivity_analysis.precision import assign, bits_of
from detent.sensitivity_analysis.proposal import literal
from detent.sensitivity_analysis.variants import QuantizedUnit, all_quantized, quantized_units

ROLES: Mapping[SearchedRole, Role] = {"weights": Role.WEIGHT, "activations": Role.ACTIVATION}

ROUNDS = 4
"""How often formats are assigned at most."""

WHOLE = "the whole model"


@dataclass(frozen=True)
class Layers:
    """The layers whose formats may change: of these types, with these names (patterns), but for others; empty: all."""

    op_types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def among(self, model: ir.Model) -> set[str]:
        """Their names in a model; UsageError where one of these patterns has no part in it."""
        types = {str(node.name): node.op_type for node in model.graph}
        taken = {name for name, op_type in types.items() if not self.op_types or op_type in self.op_types}
        if self.nodes:
            taken &= _matching(self.nodes, types)
        return taken - _matching(self.exclude, types)


def _matching(patterns: Sequence[str], names: Collection[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        hits = names_matching(pattern, names)
        if not hits:
            raise UsageError(
                f"'{pattern}' matches no layer of the prepared model.{nearest(pattern, names)} "
                "`detent inspect MODEL --nodes` lists them."
            )
        found.update(hits)
    return found


ALL_LAYERS = Layers()


def search_precision(
    job: Job,
    candidates: Sequence[IntegerFormat],
    *,
    what: SearchedRole = "weights",
    max_error: float | None = None,
    mean_bits: float | None = None,
    count: int = SAMPLES,
    layers: Layers = ALL_LAYERS,
) -> PrecisionSearch:
    """Give each layer's weights, or each activation, one of the formats.

    With `max_error`, as few bits as keep the error of the whole model below it; with `mean_bits`, as little error as
    that many bits for a number allow. `layers` are those whose weights, or results, are chosen.
    """
    _check_candidates(job, candidates, what)
    _check_wish(candidates, max_error, mean_bits)
    search = _Search(Run(unrefined(job, count)).planned, job, candidates, what, layers)
    if not search.options:
        raise UsageError(f"Recipe {job.recipe.name} has no {what} of integers whose format could be chosen.")
    if max_error is not None:
        return _below(search, max_error)
    assert mean_bits is not None, "one of them is given"
    choice = assign(search.options, max_bits=mean_bits * search.elements)
    return search.result(choice, search.error(choice), reached=True)


def _below(search: _Search, max_error: float) -> PrecisionSearch:
    """As few bits as keep the measured error below what is wanted; the best that was seen where none does."""
    aim = max_error
    for _ in range(ROUNDS):
        choice = assign(search.options, max_error=aim)
        error = search.error(choice)
        if error <= max_error:
            return search.result(choice, error, reached=True)
        aim *= max_error / error
    finest = assign(search.options, max_error=0.0)
    error = search.error(finest)
    return search.result(finest, error, reached=error <= max_error)


def _check_candidates(job: Job, candidates: Sequence[IntegerFormat], what: SearchedRole) -> None:
    if len(set(candidates)) < 2:
        raise UsageError("A search needs at least two formats to choose from, such as int8 and int16.")
    if not isinstance(job.recipe.formats[what], IntegerFormat):
        raise UsageError(
            f"Recipe {job.recipe.name} has no {what} of integers whose format could be chosen. Start from one that "
            "has, such as A8W8."
        )
    for fmt in candidates:
        check_recipe(job.recipe.replace(**{what: fmt}, refinement=None), job.selection)


def _check_wish(candidates: Sequence[IntegerFormat], max_error: float | None, mean_bits: float | None) -> None:
    if (max_error is None) == (mean_bits is None):
        raise UsageError(
            "Give one of an error to stay below (--max-error -30dB) and the bits of a number on average (--mean-bits "
            "6): the other one follows."
        )
    if max_error is not None and not max_error > 0:
        raise UsageError(f"The wanted error is {max_error:g}: no quantized model has none. Give one above 0, or -30dB.")
    bits = sorted(fmt.bits for fmt in candidates)
    if mean_bits is not None and not mean_bits >= bits[0]:
        raise UsageError(
            f"{mean_bits:g} bits on average cannot be had from formats of at least {bits[0]}: ask for {bits[0]} to "
            f"{bits[-1]}."
        )


class _Search:
    """What was measured, and how a choice becomes a model and a recipe."""

    def __init__(
        self,
        planned: Planned,
        job: Job,
        candidates: Sequence[IntegerFormat],
        what: SearchedRole,
        layers: Layers = ALL_LAYERS,
    ) -> None:
        self._planned, self._job, self._what = planned, job, what
        self._usual = quantized_units(planned.model, planned.plan)
        among = layers.among(planned.model)
        self._things = {
            fmt: _by_slot(quantized_units(planned.model, _planned(planned, what, fmt)), planned.plan, what, among)
            for fmt in candidates
        }
        self._samples = evenly_spaced(planned.probes, len(candidates) * len(self._usual))
        slots = self._things[candidates[0]]
        variants = {
            (slot, fmt): replace(all_quantized("", of_format[slot]), name=f"{slot} {number}")
            for number, (fmt, of_format) in enumerate(self._things.items())
            for slot in slots
        }
        errors = self._errors(list(variants.values()))
        sizes = {
            slot: max(sum(numbers_of(thing, planned.plan) for thing in things), 1) for slot, things in slots.items()
        }
        self.elements = sum(sizes.values())
        self.options = {
            slot: [FormatOption(fmt, sizes[slot] * fmt.bits, errors[variants[slot, fmt].name]) for fmt in candidates]
            for slot in slots
        }

    def _errors(self, variants: Sequence[Variant]) -> dict[str, float]:
        how = self._job.collecting.threads
        planned = self._planned
        return errors_of(planned.model, planned.plan, variants, self._samples, threads=how, progress=self._job.progress)

    def error(self, choice: Choice) -> float:
        """The error of the whole model with these formats, all else as the recipe says."""
        return self._errors([self._whole(WHOLE, choice)])[WHOLE]

    def _uniform(self) -> dict[IntegerFormat, float]:
        """The error of the whole model with one format throughout, for each."""
        whole = {
            fmt: self._whole(f"{WHOLE} {number}", {slot: _of_format(each, fmt) for slot, each in self.options.items()})
            for number, fmt in enumerate(self._things)
        }
        errors = self._errors(list(whole.values()))
        return {fmt: errors[variant.name] for fmt, variant in whole.items()}

    def _whole(self, name: str, choice: Choice) -> Variant:
        chosen = [thing for slot, option in choice.items() for thing in self._things[_integers(option)][slot]]
        replaced = {thing.name for thing in chosen}
        others = [thing for thing in self._usual if thing.name not in replaced]
        return all_quantized(name, [*others, *chosen])

    def result(self, choice: Choice, error: float, reached: bool) -> PrecisionSearch:
        """The choice as a recipe."""
        recipe = self._job.recipe
        parts: dict[IntegerFormat, list[str]] = {}
        for slot, option in choice.items():
            fmt = _integers(option)
            # Where others were chosen by hand, what is usual has to be said, too.
            if recipe.overrides or fmt != recipe.formats[self._what]:
                parts.setdefault(fmt, []).append(slot)
        added = tuple(self._override(fmt, slots) for fmt, slots in parts.items())
        mixed = recipe.replace(
            name=f"{recipe.name}-mixed",
            description=f"{recipe.name}, {self._what} in {', '.join(fmt.label for fmt in self._things)} by search",
            overrides=(*recipe.overrides, *added),
        )
        return PrecisionSearch(
            recipe=mixed if added else recipe,
            what=self._what,
            choice=choice,
            uniform=self._uniform(),
            error=error,
            mean_bits=bits_of(choice) / self.elements,
            reached=reached,
            samples=sum(sample.size for sample in self._samples),
        )

    def _override(self, fmt: IntegerFormat, names: Sequence[str]) -> Override:
        slots = tuple(map(literal, names))
        if self._what == "weights":
            return Override(nodes=slots, weights=fmt)
        return Override(tensors=slots, activations=fmt)


def _integers(option: FormatOption) -> IntegerFormat:
    assert isinstance(option.format, IntegerFormat), "only these are candidates"
    return option.format


def numbers_of(thing: QuantizedUnit, plan: Plan) -> int:
    """How many numbers of a thing have the format of its role: biases, which come with weights, have another."""
    if not thing.is_weight:
        return thing.elements
    sites = plan.layout.sites
    weights = (name for name in thing.original if name in sites and sites[name].role is Role.WEIGHT)
    return sum(thing.original[name].size for name in weights)


def _of_format(options: Sequence[FormatOption], fmt: IntegerFormat) -> FormatOption:
    return next(option for option in options if option.format == fmt)


def _planned(planned: Planned, what: SearchedRole, fmt: IntegerFormat) -> Plan:
    """The plan with all weights, or all activations, in one format."""
    layout = planned.plan.layout
    formats = {
        name: fmt if layout.sites[name].role is ROLES[what] and isinstance(usual, IntegerFormat) else usual
        for name, usual in layout.formats.items()
    }
    recipe = planned.job.recipe.replace(**{what: fmt})
    return make_plan(planned.model, replace(layout, formats=formats), planned.observed.observation.statistics, recipe)


def _by_slot(
    things: Sequence[QuantizedUnit], plan: Plan, what: SearchedRole, among: Collection[str]
) -> dict[str, list[QuantizedUnit]]:
    """Things that have one format together: the constants of a layer, or activations that share their parameters."""
    layout = plan.layout
    slots: dict[str, list[QuantizedUnit]] = {}
    for thing in things:
        if thing.is_weight != (what == "weights") or thing.layer not in among:
            continue
        names = [*thing.variant.constants, *thing.variant.rounding]
        sites = [name for name in names if name in layout.sites and layout.sites[name].role is ROLES[what]]
        if any(isinstance(layout.formats.get(name), IntegerFormat) for name in sites):
            slot = thing.layer if what == "weights" else layout.leader(names[0])
            slots.setdefault(slot, []).append(thing)
    return slots


def parse_candidates(
    candidates: str | Sequence[str | IntegerFormat], recipe: Recipe, what: SearchedRole
) -> list[IntegerFormat]:
    """The formats: names take their scales and granularity from the recipe's format."""
    if what not in ROLES:
        raise UsageError(f"There are no {what!r} to choose formats for. Choose from {', '.join(ROLES)}.")
    given = [name.strip() for name in candidates.split(",")] if isinstance(candidates, str) else candidates
    return [each if isinstance(each, IntegerFormat) else _named_format(each, recipe, what) for each in given]


def _named_format(name: str, recipe: Recipe, what: SearchedRole) -> IntegerFormat:
    fmt = parse_format(name, recipe.formats[what], "candidates") if name in INTEGER_TYPES else None
    if not isinstance(fmt, IntegerFormat):
        listed = ", ".join(INTEGER_TYPES)
        raise UsageError(
            f"candidates: '{name}' is no integer format.{nearest(name, INTEGER_TYPES)} Choose from {listed}."
        )
    return fmt
