"""The third stage: parameters for every value that is quantized, within the rules of the device."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import onnx_ir as ir

from detent.devices.device import Rules
from detent.devices.rewrites import SaturatingClip
from detent.observe.samples import PendingSample
from detent.pipeline.job import Job
from detent.pipeline.observed import Observed
from detent.pipeline.prepared import Stopwatch
from detent.pipeline.widening import find_widening
from detent.plan.divisors import GuardDivisors
from detent.plan.layout import Layout
from detent.plan.plan import Plan, make_plan
from detent.plan.wide import with_wide
from detent.prepare import Pass, prepare
from detent.prepare.base import OperatorPass
from detent.results.quantized import Notes, Widening


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
    unsettled: Sequence[str]
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
    prepared = observed.prepared
    recipe, layout, target = prepared.job.recipe, _copied(prepared.layout), prepared.target
    with watch.step("plan"):
        model = prepared.model.clone()  # weights are shared
        notes = Notes([*prepared.notes.changes], [*prepared.notes.declined])
        _rewrite(model, target.substitutions, layout, notes)
        plan = make_plan(model, layout, observed.observation.statistics, recipe)
        rules = Rules(target, model.clone() if recipe.search_ranges else model, recipe.without)
        plan = rules(plan)
        widening = find_widening(model, plan, observed)
        if widening is not None and widening.tensors:
            plan = make_plan(model, with_wide(layout, widening.names), observed.observation.statistics, recipe)
            plan = rules(plan)
        unsettled = [str(each) for each in rules.violations(plan)]
        _rewrite(model, target.corrections, layout, notes)
        guard = GuardDivisors(plan, observed.observation.statistics)
        _run(model, [SaturatingClip(plan, target.clips), guard], notes)
    return Planned(observed, model, guard.plan, rules, unsettled, notes, widening)


def _copied(layout: Layout) -> Layout:
    """Copy the layout, since rewrites edit it, and other runs may share the one that was observed."""
    return replace(layout, **{name: copy(value) for name, value in vars(layout).items()})


def _rewrite(model: ir.Model, steps: Sequence[type[OperatorPass]], layout: Layout, notes: Notes) -> None:
    """Make the rewrites that the target or the recipe asks for, on quantized nodes only."""
    _run(model, [step(layout.quantizes) for step in steps], notes)


def _run(model: ir.Model, passes: Sequence[Pass], notes: Notes) -> None:
    notes.changes += prepare(model, passes)
    notes.declined += [note for step in passes for note in step.declined]
