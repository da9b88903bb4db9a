"""Refinement: one pass over the float model for the targets, then one walk through the quantized model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from detent.errors import DataError, UsageError
from detent.numerics.formats import IntegerFormat, QuantParams
from detent.observe.samples import PendingSample
from detent.plan.plan import Plan
from detent.progress import Progress, silent
from detent.recipe import Recipe
from detent.refine.budget import make_budget
from detent.refine.checkpoint import Finished, Keeper
from detent.refine.layers import Layer, LayerReport, find_layers
from detent.refine.ranges import Constrain, Search
from detent.refine.spacing import Permits, adopt
from detent.refine.step import Step
from detent.refine.targets import STAGE, LayerTarget, float_targets
from detent.refine.walk import Walk
from detent.refinements import AdaRound, Gptq, GradientSearch, Refinement, Rounding

MEMORY = 2 << 30
"""The bytes that refinement may use, unless said otherwise."""


def check_refinement(recipe: Recipe) -> None:
    """Raise UsageError where the refinement cannot work on the recipe's formats."""
    name = type(recipe.refinement).__name__
    if isinstance(recipe.refinement, AdaRound | Rounding | Gptq):
        weights = [recipe.weights, *(override.weights for override in recipe.overrides if override.weights)]
        for fmt in weights:
            if not isinstance(fmt, IntegerFormat):
                what = "stay float" if fmt is None else f"are {fmt.label}"
                raise UsageError(
                    f"{name} chooses between integers, and weights of recipe {recipe.name} {what}. AdaQuant works on "
                    "every format."
                )
    if isinstance(recipe.refinement, GradientSearch) and recipe.refinement.output_rounded:
        for fmt in (recipe.activations, *(override.activations for override in recipe.overrides)):
            if fmt is not None and not isinstance(fmt, IntegerFormat):
                raise UsageError(
                    f"output_rounded of {name} is for activations that are integers, and those of recipe {recipe.name} "
                    f"are {fmt.label}. Leave it out."
                )


def refine(
    model: ir.Model,
    reference: ir.Model,
    plan: Plan,
    refinement: Refinement,
    samples: Sequence[PendingSample],
    *,
    constrain: Constrain | None = None,
    threads: int = 0,
    memory: int = MEMORY,
    permits: Permits = lambda *_: True,
    keeper: Keeper | None = None,
    progress: Progress = silent,
) -> list[LayerReport]:
    """Refine the weights and biases of every layer: fills `plan.refined` and says what became of each layer.

    `model` is the float graph as it will be quantized; `reference` computes the targets and has values of the same
    names. Positions are final, but with `constrain`, which keeps the rules of the target: then the scales of
    activations are searched for on the same walk. `permits` tells which scales of weights the device can compute with.
    About `memory` bytes are used at most: with less, fewer samples and rows are. A `keeper` has the layers that an
    interrupted run finished.
    """
    if not samples:
        raise DataError("There are no samples to refine with. Give calibration data.")
    layers, reports = find_layers(model, plan.layout)
    if not layers:
        return reports
    budget = make_budget(model, plan, list(layers.values()), refinement, samples, memory)
    walk = Walk(model, plan, [sample.origin for sample in budget.samples], threads)
    targets = float_targets(reference, list(layers.values()), budget, walk, progress)
    step = Step(walk, refinement, budget, permits)
    done, total = len(budget.samples), len(budget.samples) + len(layers)

    def visit(node: ir.Node) -> None:
        nonlocal done
        layer = layers.get(node)
        if layer is not None:
            target = targets.pop(layer.output)  # and so its memory is free
            reports.append(_continued(layer, target, step, keeper))
            done += 1
            progress(STAGE, done, total)

    try:
        walk.run(visit, settle=None if constrain is None else Search.on(walk, reference, constrain, budget.samples))
    except KeyboardInterrupt:
        if keeper is not None:
            keeper.write()
        raise
    if keeper is not None:
        keeper.remove()
    return reports


def _continued(layer: Layer, target: LayerTarget, step: Step, keeper: Keeper | None) -> LayerReport:
    """Refine a layer, or take over what an earlier run made of it."""
    if keeper is None:
        return step(layer, target)
    plan, weight = step.walk.plan, str(layer.weight.name)
    finished, before = keeper.finished.get(layer.output), plan.of(weight)
    if finished is None:
        report = step(layer, target)
        names = [weight, *([] if layer.bias is None else [str(layer.bias.name)])]
        after = plan.of(weight)
        scale = after.scale if isinstance(after, QuantParams) and after is not before else None
        refined = {name: plan.refined[name] for name in names if name in plan.refined}
        keeper.keep(layer.output, Finished(report, refined, scale))
        return report
    if finished.scale is not None:
        assert isinstance(before, QuantParams), f"'{weight}' had a scale"
        adopt(replace(before, scale=finished.scale), layer, plan)
    plan.refined.update(finished.refined)
    return finished.report
