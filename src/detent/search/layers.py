"""Which layers take another format, activations and weights together, so that the error stays below a wanted one.

Two models are prepared: one as the recipe says, and one with the other formats in every layer that may have them. In
each, every layer is quantized alone, its weights with what it computes and what is converted for it, and the error at
the outputs measured. Of the two ways that each layer has, as few bits are taken as the error allows (see
`measure.precision`). The model with all of them is then prepared and measured as a whole, and where it misses the
wanted error, the choice is made again, more strictly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from detent.errors import UsageError
from detent.execute.probe import Variant
from detent.graph.session import Runner
from detent.numerics.formats import IntegerFormat
from detent.pipeline.job import Job
from detent.pipeline.planned import Planned
from detent.pipeline.run import Run
from detent.plan.plan import Plan
from detent.recipe import Override, Recipe
from detent.results.searched import FormatOption
from detent.search.precision import ROUNDS, WHOLE, Layers, numbers_of
from detent.search.probing import SAMPLES, unrefined
from detent.sensitivity_analysis.layer_errors import errors_of, evenly_spaced
from detent.sensitivity_analysis.precision import assign
from detent.sensitivity_analysis.proposal import literal
from detent.sensitivity_analysis.variants import QuantizedUnit, all_quantized, quantized_units

Bound = Callable[[float], float]
"""The error to stay below, as noise power over signal power, from the mean of |y|^2 over the samples."""


@dataclass(frozen=True)
class OtherFormats:
    """The formats that a layer may take instead of the recipe's; None: as in the recipe."""

    activations: IntegerFormat | None = None
    weights: IntegerFormat | None = None
    biases: IntegerFormat | None = None

    def override(self, layers: Collection[str]) -> Override:
        """The override that gives them to these layers."""
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
        """Whether the wanted error is."""
        return self.error <= self.wanted


def search_layers(job: Job, other: OtherFormats, layers: Layers, bound: Bound, *, count: int = SAMPLES) -> LayerSearch:
    """Choose which of the `layers` take the other formats."""
    _check_integers(job.recipe, other)
    usual = Run(unrefined(job, count)).planned
    names = _candidates(usual, layers)
    changed = Run(unrefined(_with(job, other, names), count)).planned
    wanted = bound(signal_power(usual))
    as_usual, otherwise = (_errors_alone(job, planned, names) for planned in (usual, changed))
    options = {name: [as_usual[name], otherwise[name]] for name in names}
    aim = wanted
    for attempt in range(ROUNDS + 1):
        choice = assign(options, max_error=aim if attempt < ROUNDS else 0.0)
        found = _measured(job, other, [name for name in names if choice[name] is otherwise[name]], wanted, count)
        if found.reached:
            break
        aim *= wanted / found.error
    return found


def signal_power(planned: Planned) -> float:
    """The mean of |y|^2 over samples and float outputs y."""
    runner = Runner(planned.model)
    powers = []
    for pending in planned.probes:
        sample = pending.load()
        outputs = runner(sample.feeds, sample.origin)
        powers += [float(np.square(each, dtype=np.float64).sum()) for each in outputs if each.dtype.kind == "f"]
    return float(np.mean(powers)) if powers else 0.0


def _check_integers(recipe: Recipe, other: OtherFormats) -> None:
    for role in ("activations", "weights"):
        if getattr(other, role) is not None and not isinstance(recipe.formats[role], IntegerFormat):
            raise UsageError(
                f"Only integers are searched for, and the {role} of recipe {recipe.name} are none. Give the other "
                "format to every layer, or to some by name."
            )


def _candidates(planned: Planned, layers: Layers) -> list[str]:
    among = layers.among(planned.model)
    things = quantized_units(planned.model, planned.plan)
    names = list(dict.fromkeys(thing.layer for thing in things if thing.is_weight and thing.layer in among))
    if not names:
        raise UsageError("No quantized layer with weights is among those whose format may change.")
    return names


def _with(job: Job, other: OtherFormats, layers: Collection[str]) -> Job:
    if not layers:
        return job
    recipe = job.recipe
    return replace(job, recipe=recipe.replace(overrides=(*recipe.overrides, other.override(layers))))


def _errors_alone(job: Job, planned: Planned, names: Sequence[str]) -> dict[str, FormatOption]:
    """What each layer costs and takes, the way that this plan has it."""
    own: dict[str, list[QuantizedUnit]] = {name: [] for name in names}
    for thing in quantized_units(planned.model, planned.plan):
        if thing.layer in own:
            own[thing.layer].append(thing)
    errors = _errors(job, planned, [all_quantized(name, things) for name, things in own.items()])
    label = IntegerFormat("int8")  # an option has a format; which of the two ways it is, it tells by itself
    return {
        name: FormatOption(label, sum(_bits(thing, planned.plan) for thing in things), errors[name])
        for name, things in own.items()
    }


def _bits(thing: QuantizedUnit, plan: Plan) -> int:
    formats = (plan.layout.formats.get(name) for name in (*thing.variant.constants, *thing.variant.rounding))
    widths = [fmt.bits for fmt in formats if isinstance(fmt, IntegerFormat)]
    return numbers_of(thing, plan) * min(widths, default=0)


def _errors(job: Job, planned: Planned, variants: Sequence[Variant]) -> dict[str, float]:
    samples = evenly_spaced(planned.probes, len(variants))
    return errors_of(
        planned.model, planned.plan, variants, samples, threads=job.collecting.threads, progress=job.progress
    )


def _measured(job: Job, other: OtherFormats, chosen: Sequence[str], wanted: float, count: int) -> LayerSearch:
    """Prepare and measure the whole model with the other formats in these layers."""
    changed = _with(job, other, chosen)
    planned = Run(unrefined(changed, count)).planned
    error = _errors(job, planned, [all_quantized(WHOLE, quantized_units(planned.model, planned.plan))])[WHOLE]
    return LayerSearch(changed.recipe, tuple(chosen), error, wanted)
