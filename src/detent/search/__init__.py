"""Probe a float model: the error that each layer causes, and the layers to leave float or give more bits to reduce it.

The stages of a run up to the plan are run, and then variants of the planned model. Nothing is refined: a refinement
makes one layer repair the errors of those before it, so no error could be attributed to one layer.

A proposal brings the error at the outputs below a wanted one. Noise powers add, so if some things are not quantized,
the expected error is the share of the others in the whole error:

    predicted = at the worst part of the outputs: total * (sum of the errors that are left) / (sum of all errors)

Candidates are taken one after the other, always the one that gains most for its cost, until that is low enough.

- exclude: a layer, or all layers around one activation, which is float only if all of them are. The cost is the number
  of products that are then computed in float.
- a16: an activation, with those that share its scale. 8 more bits leave 2^-16 of its error. The cost is its size.
- w8: the 4-bit weights of a layer. 4 more bits leave 2^-8 of their error. The cost is their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from detent.device_check import placement
from detent.devices.catalog import device_of
from detent.errors import UsageError, check_known
from detent.evaluation.fidelity import shown_parts
from detent.graph.load import name_of
from detent.numerics.formats import IntegerFormat, is_integer
from detent.numerics.interface import NumberFormat
from detent.observe.shards import divisible
from detent.pipeline.job import Job
from detent.pipeline.planned import Planned
from detent.pipeline.run import Run
from detent.plan.layout import Layout, Role
from detent.recipe import Override, Recipe
from detent.results.searched import ErrorSource, Proposal, Sensitivity, SensitivityReport, Way
from detent.sensitivity_analysis import SampleWorkers, sensitivity
from detent.tasks.parts import OutputPart

# The share of the noise power that is left with 8 more bits, which make a step 2^-8 as wide; and with 4 more bits.
LEFT_BY_8_BITS = 2.0**-16
LEFT_BY_4_BITS = 2.0**-8


def propose(found: Sensitivity, layout: Layout, recipe: Recipe, wanted: float, way: Way = "exclude") -> Proposal:
    """Return the recipe with as few exceptions as bring the error (noise over signal power) down to `wanted`."""
    check_known("proposal", way, get_args(Way))
    if not wanted > 0:
        raise UsageError(f"The wanted error is {wanted:g}: no quantized model has none. Give one above 0, or -30dB.")
    if way == "exclude":
        return _exclude(found, recipe, wanted)
    return (_widen if way == "a16" else _widen_weights)(found, layout, recipe, wanted)


@dataclass(frozen=True)
class _Move:
    """Some names that are changed together, and what that costs."""

    names: frozenset[str]
    cost: float


def _greedy(moves: Sequence[_Move], error: Callable[[Collection[str]], float], wanted: float) -> list[str]:
    """Return the names to change: always those that gain most for their cost, without any that prove unnecessary.

    Cheap moves are taken early, and later ones may be enough without them.
    """
    taken: list[_Move] = []
    present = error(())
    while present > wanted:
        names = _names(taken)
        open_ = [move for move in moves if not move.names <= names]
        gains = {move: present - error(names | move.names) for move in open_}
        best = max(open_, key=lambda move: gains[move] / move.cost, default=None)
        if best is None or gains[best] <= 0:
            break
        taken.append(best)
        present -= gains[best]
    for move in tuple(taken):
        others = [each for each in taken if each is not move]
        if error(_names(others)) <= wanted:
            taken = others
    return list(dict.fromkeys(name for move in taken for name in sorted(move.names)))


def _names(moves: Iterable[_Move]) -> frozenset[str]:
    return frozenset(name for move in moves for name in move.names)


def predicted_error(found: Sensitivity, left: Callable[[ErrorSource], float]) -> float:
    """Return the expected error if the share `left(cause)` of each cause's own error is left."""
    shares = np.array([left(cause) for cause in found.sources])
    if found.parts is None:
        totals, errors = np.array([found.total]), np.array([[found.errors[cause.name]] for cause in found.sources])
    else:
        totals = np.array(found.parts.total)
        errors = np.array([found.parts.by_source[cause.name] for cause in found.sources])
    whole = errors.sum(0)
    remaining = shares @ errors
    return float(np.divide(totals * remaining, whole, out=np.zeros_like(whole), where=whole > 0).max(initial=0.0))


def _exclude(found: Sensitivity, recipe: Recipe, wanted: float) -> Proposal:
    groups = [cause.touches for cause in found.sources]
    # A node that only reads, such as an ArgMax, causes no error and is no layer here; but as long as it is quantized,
    # so are the activations that it reads.
    members: dict[str, tuple[str, ...]] = {name: (name,) for group in groups for name in sorted(group)}
    members |= {layer.node: layer.members for layer in found.layers}
    costs = dict.fromkeys(members, 1) | {layer.node: max(layer.operations, 1) for layer in found.layers}
    groups += [frozenset([layer]) for layer in costs]
    moves = [_Move(group, sum(costs[layer] for layer in group)) for group in dict.fromkeys(groups)]

    def error(layers: Collection[str]) -> float:
        return predicted_error(found, lambda cause: 0.0 if cause.touches <= set(layers) else 1.0)

    chosen = _greedy(moves, error, wanted)
    nodes = tuple(name for layer in members if layer in chosen for name in members[layer])
    added = (Override(nodes=tuple(map(literal, nodes)), leave_float=True),) if nodes else ()
    share = sum(costs[layer] for layer in chosen) / sum(costs.values())
    changed = _extended(recipe, added, "some layers left float")
    return Proposal(changed, "exclude", nodes, (), found.total, error(chosen), wanted, share)


def _widen(found: Sensitivity, layout: Layout, recipe: Recipe, wanted: float) -> Proposal:
    sizes: dict[str, int] = {}
    for cause in found.sources:
        for site in cause.activations:
            if _wider(layout.formats[site]) is not None:
                leader = layout.leader(site)
                sizes[leader] = sizes.get(leader, 0) + max(cause.elements, 1)
    if not sizes:
        raise UsageError(
            f"Recipe {recipe.name} has no activations of 8-bit integers that could have 16 bits. Choose exclude."
        )

    def error(leaders: Collection[str]) -> float:
        wide = set(leaders)
        return predicted_error(
            found, lambda cause: LEFT_BY_8_BITS if wide.intersection(map(layout.leader, cause.activations)) else 1.0
        )

    chosen = _greedy([_Move(frozenset([leader]), size) for leader, size in sizes.items()], error, wanted)
    added = tuple(_wide_overrides(chosen, layout))
    changed = _extended(recipe, added, "some activations in 16 bits")
    return Proposal(changed, "a16", (), tuple(chosen), found.total, error(chosen), wanted, 0.0)


def _wide_overrides(leaders: Iterable[str], layout: Layout) -> list[Override]:
    """Return an override for each format in use."""
    formats: dict[NumberFormat, list[str]] = {}
    for leader in leaders:
        wide = _wider(layout.formats[leader])
        assert wide is not None, f"'{leader}' was a candidate"
        formats.setdefault(wide, []).append(leader)
    return [
        Override(tensors=tuple(map(literal, tensors)), activations=activations)
        for activations, tensors in formats.items()
    ]


def _widen_weights(found: Sensitivity, layout: Layout, recipe: Recipe, wanted: float) -> Proposal:
    formats: dict[str, IntegerFormat] = {}
    costs: dict[str, int] = {}
    for cause in found.sources:
        for name in cause.constants:
            site = layout.sites.get(name)
            wide = None if site is None or site.role is not Role.WEIGHT else _wider(layout.formats[name], 4)
            if wide is not None:
                formats[cause.layer] = wide
                costs[cause.layer] = max(cause.elements, 1)
    if not formats:
        raise UsageError(f"Recipe {recipe.name} has no 4-bit weights that could have 8. Choose exclude or a16.")

    def error(layers: Collection[str]) -> float:
        wide = set(layers)
        return predicted_error(found, lambda cause: LEFT_BY_4_BITS if cause.is_weight and cause.layer in wide else 1.0)

    taken = _greedy([_Move(frozenset([layer]), cost) for layer, cost in costs.items()], error, wanted)
    chosen = [layer for layer in formats if layer in taken]
    parts = {fmt: [layer for layer in chosen if formats[layer] == fmt] for fmt in dict.fromkeys(formats.values())}
    added = tuple(Override(nodes=tuple(map(literal, layers)), weights=fmt) for fmt, layers in parts.items() if layers)
    changed = _extended(recipe, added, "some weights in 8 bits")
    return Proposal(changed, "w8", tuple(chosen), (), found.total, error(chosen), wanted, 0.0)


def _wider(fmt: NumberFormat, bits: int = 8) -> IntegerFormat | None:
    """Return the format with twice the bits, for one with that many; None for any other."""
    if not is_integer(fmt) or fmt.bits != bits:
        return None
    return dataclasses.replace(fmt, dtype=fmt.dtype.replace(str(bits), str(2 * bits)))


def literal(name: str) -> str:
    """Return a pattern that matches this name; names with wildcards cannot be quoted."""
    if "*" in name or "?" in name:
        raise UsageError(f"'{name}' has a * or ? in its name, which a recipe takes for a pattern. Rename it.")
    return name


def _extended(recipe: Recipe, added: tuple[Override, ...], what: str) -> Recipe:
    if not added:
        return recipe
    described = f"{recipe.description.rstrip('.')}; {what}." if recipe.description else f"{recipe.name}, {what}."
    return recipe.replace(name=f"{recipe.name}-mixed", description=described, overrides=(*recipe.overrides, *added))


SAMPLES = 32  # errors of layers differ by orders of magnitude: a few samples rank them


def parts_of(planned: Planned) -> Mapping[str, Sequence[OutputPart]]:
    """Return the parts of a planned model's outputs, found in the graph or else in the first sample."""
    observed, prepared = planned.observed, planned.observed.prepared
    shown = shown_parts(prepared.purpose, observed.original(planned.probes[0])) if planned.probes else {}
    return shown | dict(prepared.parts)


def unrefined(job: Job, count: int = SAMPLES, executor: Any = None) -> Job:
    """Return the job whose planned stage is measured: without refinement, with `count` samples to measure on.

    With an `executor`, on which samples will be measured, what has to be counted is counted there.
    """
    if job.calibration is None:
        raise UsageError("What a layer's rounding does at the output depends on the data: give calibration data.")
    if job.recipe.dynamic:
        raise UsageError(
            f"Recipe {job.recipe.name} finds the scales of activations while the model runs, which cannot be measured "
            "layer by layer. Choose one with calibrated scales, such as A8W8."
        )
    if executor is not None:
        job = replace(job, options={**job.options, "executor": executor}, measures=True)
    return replace(job, recipe=job.recipe.replace(refinement=None, search_ranges=False), probes=count)


def probe(
    job: Job,
    *,
    count: int = SAMPLES,
    exact: bool = False,
    wanted: float | None = None,
    way: Way = "exclude",
    executor: Any = None,
) -> SensitivityReport:
    """Measure the sensitivity of every layer of a model under a recipe, on up to `count` samples.

    With a `wanted` error, noise power over signal power, also propose a recipe that should reach it. With an
    `executor`, samples are counted and measured on its workers; the result is the same.
    """
    if wanted is not None:
        wide = None if job.recipe.activations is None else _wider(job.recipe.activations)
        if way == "a16" and wide is not None:
            device_of(job.recipe).check(job.recipe.replace(activations=wide))
    run = Run(unrefined(job, count, executor))
    source = run.prepared.source
    assert source is not None, "there is data"
    if executor is not None:
        divisible(source)  # refused before anything is computed
    planned = run.planned
    found = sensitivity(
        planned.model,
        planned.plan,
        planned.probes,
        parts=parts_of(planned),
        exact=exact,
        threads=job.collecting.threads,
        workers=None if executor is None else SampleWorkers(executor, source),
        progress=job.progress,
    )
    proposal = None if wanted is None else propose(found, planned.plan.layout, job.recipe, wanted, way)
    name = name_of(job.model)
    leaves_float = proposal is not None and proposal.way == "exclude" and proposal.nodes
    device = placement(planned.model, job.recipe, proposal.recipe, name) if proposal and leaves_float else None
    return SensitivityReport(name, job.recipe, found, proposal, source.describe, source.note, device)
