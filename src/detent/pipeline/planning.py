"""From a prepared model to a plan: its data, its statistics, and the parameters that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from detent.devices.device import Device, Rules
from detent.devices.rewrites import NodePass, SaturatingClip
from detent.errors import UsageError
from detent.observe.inputs import input_specs
from detent.observe.peek import peek
from detent.observe.samples import PendingSample
from detent.observe.sources import Source, open_source
from detent.observe.statistics_file import StatisticsFile
from detent.observe.sweep import Observation, look, recall
from detent.pipeline.calibrate import collect, keep
from detent.pipeline.job import Job
from detent.pipeline.rescaling import Rescaling
from detent.plan.layout import Layout, Role
from detent.plan.plan import Plan, make_plan, needs_statistics
from detent.prepare import Pass, prepare
from detent.recipe import EQUALIZING_SAMPLES, Recipe
from detent.refine.ranges import SAMPLES as RANGE_SAMPLES
from detent.report.report import Notes

HELD_OUT = 16
"""Samples kept back to measure the result with, where the data has any to spare."""


def open_data(job: Job, model: ir.Model, layout: Layout) -> Source | None:
    """The data; None where none is needed, because nothing runs or because its statistics are known already."""
    if (job.collecting.needs_identity or job.collecting.executor is not None) and not needs_any(layout):
        raise UsageError(
            f"Recipe {job.recipe.name} needs no statistics of activations here: leave --stats, --save-stats, --workers "
            "and --dask out."
        )
    if job.calibration is None and (job.dry_run or job.collecting.reuse is not None):
        return None
    return open_source(
        job.calibration,
        input_specs(model),
        preprocess=job.preprocess,
        limit=job.limit,
        reserve=HELD_OUT,
        seed=job.seed,
        batch=job.batch,
    )


def observed_sites(layout: Layout) -> list[str]:
    """The activation sites that are looked at: those that share no other's parameters."""
    return [site.value for site in layout.of_role(Role.ACTIVATION) if layout.leader(site.value) == site.value]


def needs_any(layout: Layout) -> bool:
    """Whether any format needs statistics."""
    return any(needs_statistics(layout, layout.sites[name]) for name in observed_sites(layout))


def first_samples(
    job: Job, source: Source | None, saved: StatisticsFile | None
) -> tuple[list[PendingSample], Source | None]:
    """The samples that equalization and refinement look at, and the source to go on with."""
    recipe = job.recipe
    needed = recipe.refinement.samples if recipe.refinement is not None else 0
    if recipe.search_ranges:
        needed = max(needed, RANGE_SAMPLES)
    if (recipe.equalize is not None or recipe.smooth is not None) and saved is None:
        needed = max(needed, EQUALIZING_SAMPLES)
    if not needed:
        return [], source
    if source is None:
        who = "--search-ranges" if recipe.refinement is None else type(recipe.refinement).__name__
        raise UsageError(
            f"{who} looks at samples, and statistics have none: give --calib beside --stats, or --refine none and no "
            "--search-ranges."
        )
    return peek(source, needed)


def observe(
    job: Job,
    model: ir.Model,
    identity: str | None,
    layout: Layout,
    source: Source | None,
    saved: StatisticsFile | None,
    rescaling: Rescaling,
) -> Observation:
    """The statistics, from a file or counted now; those are kept where that was asked for.

    Where no format needs any, nothing is counted.
    """
    how, sites = job.collecting, observed_sites(layout)
    if saved is not None:
        return recall(model, sites, source, saved, providers=how.providers)
    assert source is not None, "without statistics there is data"
    if not needs_any(layout):
        return look(model, sites, source, providers=how.providers)
    observation = collect(how, model, sites, source, job.recipe, job.progress)
    keep(how, identity, source, observation, job.recipe, rescaling)
    return observation


def decide(
    model: ir.Model, layout: Layout, target: Device, observation: Observation, recipe: Recipe, notes: Notes
) -> tuple[Plan, Rules, list[str]]:
    """The plan, as the target allows it, the rules that it follows, and what could not be settled.

    `model` gets the rewrites of the target; the rules are about the graph before the last of these.
    """
    _rewrite(model, target.substitutions, layout, notes)
    plan = make_plan(model, layout, observation.statistics, recipe)
    rules = Rules(target, model.clone() if recipe.search_ranges else model, recipe.without)
    unsettled = rules(plan)
    _rewrite(model, target.corrections, layout, notes)
    _run(model, [SaturatingClip(plan)], notes)
    return plan, rules, unsettled


def _rewrite(model: ir.Model, steps: Sequence[type[NodePass]], layout: Layout, notes: Notes) -> None:
    """Rewrites that the target or the recipe asks for, on quantized nodes only."""
    _run(model, [step(layout.quantizes) for step in steps], notes)


def _run(model: ir.Model, passes: Sequence[Pass], notes: Notes) -> None:
    notes.changes += prepare(model, passes)
    notes.declined += [note for step in passes for note in step.declined]
