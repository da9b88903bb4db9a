"""Mixed precision by search: as few bits as a wanted error allows, or as little error as bits allow.

Two searches share one method. Every candidate is quantized alone, and the error at the outputs is measured. Noise
powers add, so formats are assigned from these errors, and the model with all of them is measured. Errors add only
approximately: if the whole model misses the wanted error, formats are assigned again for a lower error, by the factor
that was missed.

- `search_precision`: each layer's weights, or each activation, takes one of several formats. Errors are those at the
  worst part of the outputs, as in `sensitivity_analysis`.
- `search_layers`: each layer takes the recipe's formats or one set of others, activations and weights together. Two
  models are planned, one with each, since a layer's other formats may change what is converted around it. The bound
  is about whole outputs, and so are the errors.

Bits add as noise powers do. With a price on noise, each tensor has one best format, whatever the others have:

    minimise  bits + price * error                    for each tensor alone

As the price rises from 0, the formats of a tensor follow each other along the lower convex hull of (bits, error), each
step at the price where it pays. So `assign` makes the steps of all tensors in the order of the error that they remove
for each bit, and stops at the one that reaches the bound. There may be a better choice between two steps, but its
advantage is never larger than one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.execute.probe import Variant
from detent.graph.session import Runner
from detent.numerics.formats import INTEGER_TYPES, IntegerFormat, is_integer
from detent.observe.samples import PendingSample
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
from detent.search import SAMPLES, literal, parts_of, unrefined
from detent.sensitivity_analysis import errors_of, evenly_spaced
from detent.sensitivity_analysis.variants import Parts, QuantizedUnit, all_quantized, quantized_units

ROUNDS = 4  # how often formats are assigned at most before the finest are taken


def assign(
    options: Mapping[str, Sequence[FormatOption]], *, max_error: float | None = None, max_bits: float | None = None
) -> Choice:
    """Return the format of each tensor. Exactly one of the two bounds is given: on the sum of errors, or of bits.

    If the bound cannot be met, the choice is the one that comes nearest.
    """
    if (max_error is None) == (max_bits is None):
        raise UsageError("Give one of a wanted error and a wanted size: the other one follows.")
    hulls = {name: hull(each) for name, each in options.items()}
    chosen = {name: each[0] for name, each in hulls.items()}
    steps = [(_rate(before, after), name, after) for name, each in hulls.items() for before, after in pairwise(each)]
    # On a hull rates fall from step to step, so the order of all keeps that of each; names settle ties.
    for _, name, after in sorted(steps, key=lambda step: (-step[0], step[1], step[2].bits)):
        if max_error is not None and error_of(chosen) <= max_error:
            break
        if max_bits is not None and bits_of(chosen) + after.bits - chosen[name].bits > max_bits:
            break
        chosen[name] = after
    return chosen


def assign_measured(
    options: Mapping[str, Sequence[FormatOption]], measure: Callable[[Choice], float], wanted: float
) -> tuple[Choice, float]:
    """Assign formats so that the measured error of all together is at most `wanted`; also return that error.

    Errors add only approximately. If the whole misses what is wanted, the next assignment aims lower by the same
    factor; the last one takes the finest formats.
    """
    aim = wanted
    for attempt in range(ROUNDS + 1):
        choice = assign(options, max_error=aim if attempt < ROUNDS else 0.0)
        error = measure(choice)
        if error <= wanted:
            break
        aim *= wanted / error
    return choice, error


def hull(options: Sequence[FormatOption]) -> list[FormatOption]:
    """Return the options that are best at some price, from the fewest bits on."""
    found: list[FormatOption] = []
    for option in sorted(options, key=lambda each: (each.bits, each.error)):
        if found and option.error >= found[-1].error:
            continue
        while len(found) > 1 and _rate(found[-2], found[-1]) <= _rate(found[-1], option):
            found.pop()
        found.append(option)
    return found


def _rate(before: FormatOption, after: FormatOption) -> float:
    """Return the error that a step takes away for each bit that it adds."""
    added = after.bits - before.bits
    return (before.error - after.error) / added if added else math.inf


def error_of(choice: Choice) -> float:
    return sum(option.error for option in choice.values())


def bits_of(choice: Choice) -> int:
    return sum(option.bits for option in choice.values())


ROLES: Mapping[SearchedRole, Role] = {"weights": Role.WEIGHT, "activations": Role.ACTIVATION}

WHOLE = "the whole model"

# The error to stay below, as noise power over signal power, from the mean of |y|^2 over the samples.
Bound = Callable[[float], float]


@dataclass(frozen=True)
class Layers:
    """The layers whose formats may change: of these types, with these names (patterns), without others; empty: all."""

    op_types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def among(self, model: ir.Model) -> set[str]:
        """Return their names in a model. Raise UsageError for a pattern that matches none."""
        types = {str(node.name): node.op_type for node in model.graph}
        taken = {name for name, op_type in types.items() if not self.op_types or op_type in self.op_types}
        if self.nodes:
            taken &= _matching(self.nodes, types)
        return taken - _matching(self.exclude, types)


ALL_LAYERS = Layers()


def parse_candidates(
    candidates: str | Sequence[str | IntegerFormat], recipe: Recipe, what: SearchedRole
) -> list[IntegerFormat]:
    """Return the formats to choose from. Names take their scales and granularity from the recipe's format."""
    if what not in ROLES:
        raise UsageError(f"There are no {what!r} to choose formats for. Choose from {', '.join(ROLES)}.")
    given = [name.strip() for name in candidates.split(",")] if isinstance(candidates, str) else candidates
    return [_named_format(each, recipe, what) if isinstance(each, str) else each for each in given]


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
    _check_bounds(candidates, max_error, mean_bits)
    search = _FormatSearch(Run(unrefined(job, count)).planned, candidates, what, layers)
    if not search.options:
        raise UsageError(f"Recipe {job.recipe.name} has no {what} of integers whose format could be chosen.")
    if max_error is not None:
        choice, error = assign_measured(search.options, search.error, max_error)
        return search.result(choice, job.recipe, error, reached=error <= max_error)
    assert mean_bits is not None, "one of them is given"
    choice = assign(search.options, max_bits=mean_bits * search.elements)
    return search.result(choice, job.recipe, search.error(choice), reached=True)


@dataclass(frozen=True)
class OtherFormats:
    """The formats that a layer may take instead of the recipe's; None: as in the recipe."""

    activations: IntegerFormat | None = None
    weights: IntegerFormat | None = None
    biases: IntegerFormat | None = None

    def override(self, layers: Collection[str]) -> Override:
        """Return the override that gives them to these layers."""
        names = tuple(map(literal, layers))
        return Override(nodes=names, activations=self.activations, weights=self.weights, biases=self.biases)


@dataclass(frozen=True)
class LayerSearch:
    """The recipe with the other formats in the `layers` that take them, and the measured error of the whole model."""

    recipe: Recipe
    layers: tuple[str, ...]
    error: float
    wanted: float

    @property
    def reached(self) -> bool:
        return self.error <= self.wanted


def search_layers(job: Job, other: OtherFormats, layers: Layers, bound: Bound, *, count: int = SAMPLES) -> LayerSearch:
    """Choose which of the `layers` take the other formats."""
    for role in ("activations", "weights"):
        if getattr(other, role) is not None and not is_integer(job.recipe.formats[role]):
            raise UsageError(
                f"Only integers are searched for, and the {role} of recipe {job.recipe.name} are not integers. "
                "Give the other format to every layer, or to some by name."
            )
    usual = Run(unrefined(job, count)).planned
    names = _weighted_layers(usual, layers)
    changed = Run(unrefined(_with(job, other, names), count)).planned
    wanted = bound(signal_power(usual))
    as_usual, otherwise = (_options_of_layers(planned, names) for planned in (usual, changed))

    def chosen(choice: Choice) -> tuple[str, ...]:
        return tuple(name for name in names if choice[name] is otherwise[name])

    def measure(choice: Choice) -> float:
        planned = Run(unrefined(_with(job, other, chosen(choice)), count)).planned
        return _errors(planned, [all_quantized(WHOLE, quantized_units(planned.model, planned.plan))])[WHOLE]

    choice, error = assign_measured({name: [as_usual[name], otherwise[name]] for name in names}, measure, wanted)
    return LayerSearch(_with(job, other, chosen(choice)).recipe, chosen(choice), error, wanted)


def signal_power(planned: Planned) -> float:
    """Return the mean of |y|^2 over samples and float outputs y."""
    runner = Runner(planned.model)
    powers = []
    for pending in planned.probes:
        sample = pending.load()
        outputs = runner(sample.feeds, sample.origin)
        powers += [float(np.square(each, dtype=np.float64).sum()) for each in outputs if each.dtype.kind == "f"]
    return float(np.mean(powers)) if powers else 0.0


class _FormatSearch:
    """The errors of every slot in every format, and how a choice of formats becomes a variant and a recipe.

    A slot is a group with one format: the constants of a layer, or activations that share their parameters.
    """

    def __init__(
        self, planned: Planned, candidates: Sequence[IntegerFormat], what: SearchedRole, layers: Layers
    ) -> None:
        self._planned, self._what = planned, what
        self._parts = parts_of(planned)
        self._usual = quantized_units(planned.model, planned.plan)
        among = layers.among(planned.model)
        self._units = {
            fmt: _by_slot(quantized_units(planned.model, _uniform_plan(planned, what, fmt)), planned.plan, what, among)
            for fmt in candidates
        }
        self._samples = evenly_spaced(planned.probes, len(candidates) * len(self._usual))
        slots = self._units[candidates[0]]
        variants = {
            (slot, fmt): replace(all_quantized("", of_format[slot]), name=f"{slot} {number}")
            for number, (fmt, of_format) in enumerate(self._units.items())
            for slot in slots
        }
        errors = self._errors(list(variants.values()))
        sizes = {slot: max(sum(_numbers(unit, planned.plan) for unit in units), 1) for slot, units in slots.items()}
        self.elements = sum(sizes.values())
        self.options = {
            slot: [FormatOption(fmt, sizes[slot] * fmt.bits, errors[variants[slot, fmt].name]) for fmt in candidates]
            for slot in slots
        }

    def _errors(self, variants: Sequence[Variant]) -> dict[str, float]:
        return _errors(self._planned, variants, self._samples, self._parts)

    def error(self, choice: Choice) -> float:
        """Measure the whole model with these formats, all else as the recipe says."""
        return self._errors([self._whole(WHOLE, choice)])[WHOLE]

    def _uniform(self) -> dict[IntegerFormat, float]:
        """Measure the whole model with one format throughout, for each."""
        whole = {}
        for number, fmt in enumerate(self._units):
            choice = {
                slot: next(each for each in options if each.format == fmt) for slot, options in self.options.items()
            }
            whole[fmt] = self._whole(f"{WHOLE} {number}", choice)
        errors = self._errors(list(whole.values()))
        return {fmt: errors[variant.name] for fmt, variant in whole.items()}

    def _whole(self, name: str, choice: Choice) -> Variant:
        chosen = [unit for slot, option in choice.items() for unit in self._units[_integers(option)][slot]]
        replaced = {unit.name for unit in chosen}
        return all_quantized(name, [*(unit for unit in self._usual if unit.name not in replaced), *chosen])

    def result(self, choice: Choice, recipe: Recipe, error: float, reached: bool) -> PrecisionSearch:
        slots: dict[IntegerFormat, list[str]] = {}
        for slot, option in choice.items():
            fmt = _integers(option)
            # If the recipe has overrides, the usual format has to be said too, since one of them may say another.
            if recipe.overrides or fmt != recipe.formats[self._what]:
                slots.setdefault(fmt, []).append(slot)
        added = tuple(self._override(fmt, names) for fmt, names in slots.items())
        mixed = recipe.replace(
            name=f"{recipe.name}-mixed",
            description=f"{recipe.name}, {self._what} in {', '.join(fmt.label for fmt in self._units)} by search",
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

    def _override(self, fmt: IntegerFormat, slots: Sequence[str]) -> Override:
        names = tuple(map(literal, slots))
        if self._what == "weights":
            return Override(nodes=names, weights=fmt)
        return Override(tensors=names, activations=fmt)


def _errors(
    planned: Planned, variants: Sequence[Variant], samples: Sequence[PendingSample] = (), parts: Parts | None = None
) -> dict[str, float]:
    """Measure the variants on `samples`, or on as many probes as they are worth."""
    job = planned.job
    few = list(samples) or evenly_spaced(planned.probes, len(variants))
    threads = job.collecting.threads
    return errors_of(planned.model, planned.plan, variants, few, parts=parts, threads=threads, progress=job.progress)


def _uniform_plan(planned: Planned, what: SearchedRole, fmt: IntegerFormat) -> Plan:
    """Plan all weights, or all activations, in one format."""
    layout = planned.plan.layout
    formats = {
        name: fmt if layout.sites[name].role is ROLES[what] and is_integer(usual) else usual
        for name, usual in layout.formats.items()
    }
    recipe = planned.job.recipe.replace(**{what: fmt})
    return make_plan(planned.model, replace(layout, formats=formats), planned.observed.observation.statistics, recipe)


def _by_slot(
    units: Sequence[QuantizedUnit], plan: Plan, what: SearchedRole, among: Collection[str]
) -> dict[str, list[QuantizedUnit]]:
    layout = plan.layout
    slots: dict[str, list[QuantizedUnit]] = {}
    for unit in units:
        if unit.is_weight != (what == "weights") or unit.layer not in among:
            continue
        names = [*unit.variant.constants, *unit.variant.rounding]
        sites = [name for name in names if name in layout.sites and layout.sites[name].role is ROLES[what]]
        if any(is_integer(layout.formats.get(name)) for name in sites):
            slot = unit.layer if what == "weights" else layout.leader(names[0])
            slots.setdefault(slot, []).append(unit)
    return slots


def _weighted_layers(planned: Planned, layers: Layers) -> list[str]:
    among = layers.among(planned.model)
    units = quantized_units(planned.model, planned.plan)
    names = list(dict.fromkeys(unit.layer for unit in units if unit.is_weight and unit.layer in among))
    if not names:
        raise UsageError("No quantized layer with weights is among those whose format may change.")
    return names


def _with(job: Job, other: OtherFormats, layers: Collection[str]) -> Job:
    if not layers:
        return job
    recipe = job.recipe
    return replace(job, recipe=recipe.replace(overrides=(*recipe.overrides, other.override(layers))))


def _options_of_layers(planned: Planned, names: Sequence[str]) -> dict[str, FormatOption]:
    """Return the bits of each layer, and its error alone, as this plan has it."""
    own: dict[str, list[QuantizedUnit]] = {name: [] for name in names}
    for unit in quantized_units(planned.model, planned.plan):
        if unit.layer in own:
            own[unit.layer].append(unit)
    errors = _errors(planned, [all_quantized(name, units) for name, units in own.items()])
    label = IntegerFormat("int8")  # a FormatOption needs one; here its identity tells which of the two it is
    return {
        name: FormatOption(label, sum(_bits(unit, planned.plan) for unit in units), errors[name])
        for name, units in own.items()
    }


def _bits(unit: QuantizedUnit, plan: Plan) -> int:
    formats = (plan.layout.formats.get(name) for name in (*unit.variant.constants, *unit.variant.rounding))
    widths = [fmt.bits for fmt in formats if is_integer(fmt)]
    return _numbers(unit, plan) * min(widths, default=0)


def _numbers(unit: QuantizedUnit, plan: Plan) -> int:
    """Count the numbers of a unit that have the format of its role: biases, which come with weights, have another."""
    if not unit.is_weight:
        return unit.elements
    sites = plan.layout.sites
    weights = (name for name in unit.original if name in sites and sites[name].role is Role.WEIGHT)
    return sum(unit.original[name].size for name in weights)


def _integers(option: FormatOption) -> IntegerFormat:
    assert is_integer(option.format), "only these are candidates"
    return option.format


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


def _named_format(name: str, recipe: Recipe, what: SearchedRole) -> IntegerFormat:
    fmt = parse_format(name, recipe.formats[what], "candidates") if name in INTEGER_TYPES else None
    if not is_integer(fmt):
        listed = ", ".join(INTEGER_TYPES)
        raise UsageError(
            f"candidates: '{name}' is not an integer format.{nearest(name, INTEGER_TYPES)} Choose from {listed}."
        )
    return fmt


def _check_candidates(job: Job, candidates: Sequence[IntegerFormat], what: SearchedRole) -> None:
    if len(set(candidates)) < 2:
        raise UsageError("A search needs at least two formats to choose from, such as int8 and int16.")
    if not is_integer(job.recipe.formats[what]):
        raise UsageError(
            f"Recipe {job.recipe.name} has no {what} of integers whose format could be chosen. Start from one that "
            "has, such as A8W8."
        )
    for fmt in candidates:
        check_recipe(job.recipe.replace(**{what: fmt}, refinement=None), job.selection)


def _check_bounds(candidates: Sequence[IntegerFormat], max_error: float | None, mean_bits: float | None) -> None:
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
            f"{mean_bits:g} bits on average are not possible with formats of at least {bits[0]}: ask for {bits[0]} to "
            f"{bits[-1]}."
        )
