"""The third stage: parameters for every value that is quantized, within the rules of the device.

A recipe may widen activations to 16 bits: those whose 8-bit rounding costs most at the outputs, until the rest cost
little. With e(S) the error at the outputs (noise over signal) of the float model in which the activations S alone are
rounded,

    e(S) = about the sum of e({x}) for x in S

because errors of different tensors are uncorrelated. So each is measured by itself, on a few samples, and the
costliest are widened until those that are left add up to what `Recipe.widen` allows. The sum is then measured too, and
the bound corrected by it. The more candidates, the fewer samples rank them; the sum is measured on all of the samples.
Neighbours are measured together first: where a run of them costs next to nothing together, as most of attention does,
none of them has to be measured alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.devices.constraints import Violation
from detent.devices.device import Rules
from detent.devices.rescales import RescaleIntoConcat, contradicted
from detent.devices.rewrites import GuardDivisors, SaturatingClip, Substitution
from detent.execute.probe import Probe, Variant
from detent.graph.session import Runner
from detent.observe.samples import PendingSample
from detent.pipeline.job import Job
from detent.pipeline.observed import Observed
from detent.pipeline.prepared import Prepared, Stopwatch
from detent.plan.layout import Layout
from detent.plan.mixed import where_width_may_pay, wide_candidates, with_wide
from detent.plan.plan import Plan, make_plan
from detent.plan.pools import STEP, pool_choices
from detent.prepare import Pass, prepare
from detent.recipe.recipe import WIDENING_SAMPLES
from detent.results.quantized import Notes, Widening, WideTensor
from detent.sensitivity_analysis import SilentModelError, errors_of

RUN = 6  # neighbours that are measured together first

NEGLIGIBLE = 0.25  # the share of the allowed error that runs which are not taken apart may have together

MEMORY = 1 << 28  # bytes for the variants that are measured at once: more of them are hardly quicker

INFERENCES = 200  # that ranking may cost, of which each candidate takes half of one for each sample

ROUNDS = 3  # how often the sum is measured, and corrected

POOL_SAMPLES = 16  # to choose the positions of pools on

Groups = Sequence[tuple[str, ...]]


def find_widening(model: ir.Model, plan: Plan, observed: Observed) -> Widening | None:
    """Choose the activations that need 16 bits; None if the recipe does not ask for it or the network has none such."""
    recipe, samples = observed.prepared.job.recipe, observed.samples[:WIDENING_SAMPLES]
    if recipe.widen is None or not samples:
        return None
    groups = wide_candidates(model, plan.layout)
    if not recipe.widen_everywhere:
        places = where_width_may_pay(model.graph)
        groups = [group for group in groups if not places.isdisjoint(group)]
    if not groups:
        return None
    measured = _Measured(model, plan, observed, samples)
    allowed = 10 ** (-recipe.widen / 10)
    before = measured.together(groups)
    if before <= allowed:
        return Widening((), len(groups), before, before)
    costs = measured.costs(groups, allowed)
    chosen, after = _choose(costs, allowed, measured)
    ratios = _channel_ratios(model, [group[0] for group in chosen], samples)
    tensors = tuple(
        WideTensor(group[0], group, _maker(model, group[0]), costs[group], ratios.get(group[0])) for group in chosen
    )
    return Widening(tensors, len(groups), before, after)


def _choose(
    costs: Mapping[tuple[str, ...], float], allowed: float, measured: _Measured
) -> tuple[list[tuple[str, ...]], float]:
    """Return the groups to widen, the costliest first, and the error that the others have together."""
    order = sorted(costs, key=lambda group: costs[group], reverse=True)
    wanted, count, after = allowed, 0, math.inf
    for _ in range(ROUNDS):
        while count < len(order) and math.fsum(costs[group] for group in order[count:]) > wanted:
            count += 1
        after = measured.together(order[count:])
        if after <= allowed:
            break
        wanted *= 0.9 * allowed / after
    return order[:count], after


class _Measured:
    """The error at the outputs of the float model in which some activations are rounded as planned."""

    def __init__(self, model: ir.Model, plan: Plan, observed: Observed, samples: Sequence[PendingSample]) -> None:
        self._model, self._plan, self._samples, self._prepared = model, plan, samples, observed.prepared
        self._probe = Probe(model, plan.layout)

    def together(self, groups: Groups) -> float:
        """Return the error of all these groups at once."""
        return self._errors([tuple(groups)], self._samples)[tuple(groups)] if groups else 0.0

    def costs(self, groups: Groups, allowed: float) -> dict[tuple[str, ...], float]:
        """Return the error of each group; an equal share of that of its run, if that is negligible."""
        runs = [tuple(groups[at : at + RUN]) for at in range(0, len(groups), RUN)]
        least = NEGLIGIBLE * allowed / len(runs)
        few = self._samples[: max(1, 2 * INFERENCES // len(groups))]
        errors = self._errors(runs, few)
        alone = self._errors([(group,) for run in runs if errors[run] > least for group in run], few)
        return {
            group: alone[(group,)] if errors[run] > least else errors[run] / len(run) for run in runs for group in run
        }

    def _errors(
        self, unions: Sequence[tuple[tuple[str, ...], ...]], samples: Sequence[PendingSample]
    ) -> dict[tuple[tuple[str, ...], ...], float]:
        variants = [
            Variant(str(at), rounding={name: self._plan.of(name) for group in union for name in group})
            for at, union in enumerate(unions)
        ]
        found = _errors_at_outputs(self._model, self._plan, self._prepared, variants, samples, self._probe)
        return {union: found[variant.name] for union, variant in zip(unions, variants, strict=True)}


def _errors_at_outputs(
    model: ir.Model,
    plan: Plan,
    prepared: Prepared,
    variants: Sequence[Variant],
    samples: Sequence[PendingSample],
    probe: Probe | None = None,
) -> Mapping[str, float]:
    """Return the error of each variant at the outputs, by its name; 0 if the model answers 0 on all samples."""
    try:
        return errors_of(
            model,
            plan,
            variants,
            samples,
            parts=prepared.parts or None,  # boxes of a detector, of 0..640, would hide its scores
            threads=prepared.job.collecting.threads,
            memory=MEMORY,
            progress=prepared.job.progress,
            probe=probe,
        )
    except SilentModelError:
        return {variant.name: 0.0 for variant in variants}


def _channel_ratios(model: ir.Model, names: Sequence[str], samples: Sequence[PendingSample]) -> dict[str, float]:
    """Return for each value how many times as large its largest channel is as the middle one, along its last axis."""
    given = {value.name for value in model.graph.inputs}  # an input cannot be fetched
    names = [name for name in names if name not in given]
    if not names:
        return {}
    runner = Runner(model, list(names))
    largest: dict[str, npt.NDArray[np.float64]] = {}
    for pending in samples:
        sample = pending.load()
        for name, value in zip(names, runner(sample.feeds, sample.origin), strict=True):
            if value.ndim > 1:
                seen = np.abs(value.astype(np.float64)).reshape(-1, value.shape[-1]).max(axis=0, initial=0.0)
                known = largest.get(name)
                # A last axis that is not of channels may be of another length in each sample: then there is no ratio.
                if known is None or known.shape == seen.shape:
                    largest[name] = seen if known is None else np.maximum(known, seen)
    middles = {name: float(np.median(sizes)) for name, sizes in largest.items() if sizes.size}
    return {name: float(largest[name].max()) / middle for name, middle in middles.items() if middle > 0.0}


def _maker(model: ir.Model, name: str) -> str:
    """Return the operator that computes a value, and what reads it if that says more."""
    value = next((each for node in model.graph for each in node.outputs if each.name == name), None)
    if value is None:
        return "input"
    readers = sorted({node.op_type for node, _ in value.uses()})
    producer = value.producer()
    return f"{producer.op_type if producer is not None else 'input'} -> {', '.join(readers) or 'output'}"


@dataclass(frozen=True, eq=False)
class Planned:
    """The model with the rewrites of its device, and the plan for it.

    `rules` are those that the plan follows, about the graph before the last rewrites. `notes` are of all rewrites so
    far. The next stages work on `model` and `plan`; the model that was observed stays as it is.
    """

    observed: Observed
    model: ir.Model
    plan: Plan
    rules: Rules
    unsettled: Sequence[Violation]
    notes: Notes
    widening: Widening | None = None

    @property
    def job(self) -> Job:
        """The job, as it was prepared."""
        return self.observed.prepared.job

    @property
    def probes(self) -> list[PendingSample]:
        """The samples to measure layers with."""
        return self.observed.samples[: self.job.probes]


def make_planned(observed: Observed, watch: Stopwatch) -> Planned:
    """Choose the parameters of every site and bring them in line with the rules of the target."""
    planned = _planned(observed, watch)
    torn = contradicted(planned.plan, planned.unsettled)
    return _planned(observed, watch, RescaleIntoConcat(planned.plan, torn)) if torn else planned


def _planned(observed: Observed, watch: Stopwatch, *further: Substitution) -> Planned:
    prepared = observed.prepared
    recipe, layout, target = prepared.job.recipe, _copied(prepared.layout), prepared.target
    with watch.step("plan"):
        model = prepared.model.clone()  # weights are shared
        notes = Notes([*prepared.notes.changes], [*prepared.notes.declined])
        substitutions = [*(step(layout) for step in target.substitutions), *further]
        _run(model, substitutions, notes)
        for step in substitutions:
            layout = step.laid_out(layout)
        plan = _chosen(model, layout, observed, substitutions)
        rules = Rules(target, model.clone() if recipe.search_ranges else model, recipe.without)
        if rules.align_pools and STEP not in recipe.without:
            plan = _with_pools(model, plan, observed)
        plan = rules(plan)
        widening = find_widening(model, plan, observed)
        if widening is not None and widening.tensors:
            plan = rules(_chosen(model, with_wide(layout, widening.names), observed, substitutions))
        unsettled = rules.violations(plan)
        _run(model, [step(layout.quantizes) for step in target.corrections], notes)
        guard = GuardDivisors(plan, observed.observation.statistics)
        _run(model, [SaturatingClip(plan, target.clips), guard], notes)
    return Planned(observed, model, guard.plan, rules, unsettled, notes, widening)


def _copied(layout: Layout) -> Layout:
    """Copy the layout, since rewrites edit it, and other runs may share the one that was observed."""
    return replace(layout, **{name: copy(value) for name, value in vars(layout).items()})


def _chosen(model: ir.Model, layout: Layout, observed: Observed, steps: Sequence[Substitution]) -> Plan:
    """Choose the parameters of every site, of new ones as the steps that made them say."""
    plan = make_plan(model, layout, observed.observation.statistics, observed.prepared.job.recipe)
    for step in steps:
        plan = step.planned(plan)
    return plan


def _with_pools(model: ir.Model, plan: Plan, observed: Observed) -> Plan:
    """Give the values around average pools the position that costs least at the outputs."""
    choices, samples = list(pool_choices(model, plan)), observed.samples[:POOL_SAMPLES]
    if not choices or not samples:
        return plan
    variants: dict[tuple[int, int], Variant] = {}
    for number, choice in enumerate(choices):
        for position in choice.positions:
            rounding = choice.rounding(plan, position)
            variants[number, position] = Variant(f"{number} at {position}", rounding=rounding)
    # Where all cost the same, the first one is the coarsest, which the rule would take.
    errors = _errors_at_outputs(model, plan, observed.prepared, list(variants.values()), samples)
    for number, choice in enumerate(choices):
        best = min(choice.positions, key=lambda position: errors[variants[number, position].name])
        plan = choice.at(plan, best)
    return plan


def _run(model: ir.Model, passes: Sequence[Pass], notes: Notes) -> None:
    notes.changes += prepare(model, passes)
    notes.declined += [note for step in passes for note in step.declined]
