"""The devices by name: which rules and rewrites each asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.plan.plan import Plan
from detent.prepare import Pass, ReduceMeanToPool, SplitGlobalPool, SplitToSlice
from detent.recipe import Recipe
from detent.targets import dpu
from detent.targets.alignment import align_concats
from detent.targets.shifts import constrain

PassMaker = Callable[[Callable[[ir.Node], bool]], Pass]


def _no_constraints(model: ir.Model, plan: Plan) -> list[str]:  # noqa: ARG001 - the signature of `constrain`
    return []


@dataclass(frozen=True)
class Target:
    """What a device asks of a quantized model.

    `preparations` are rewrites of the float model into operators that the device has, `substitutions` those that come
    before the rules on positions. `constrain` applies these rules to the plan and returns what it could not satisfy;
    `corrections` are rewrites after them. `requires_power_of_two`: it scales by shifting, a whole tensor at a time.
    """

    name: str
    description: str
    preparations: Sequence[Callable[[], Pass]] = ()
    substitutions: Sequence[PassMaker] = ()
    corrections: Sequence[PassMaker] = ()
    constrain: Callable[[ir.Model, Plan], list[str]] = _no_constraints
    requires_power_of_two: bool = False

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError where the recipe has scales that the device has not."""
        if not self.requires_power_of_two:
            return
        formats = {"activations": recipe.activations, "weights": recipe.weights, "biases": recipe.biases}
        for role, fmt in formats.items():
            if not fmt.power_of_two or fmt.per_channel:
                scales = "a scale for each channel" if fmt.power_of_two else "float scales"
                raise UsageError(
                    f"The target {self.name} computes with one power-of-two scale for each tensor, and the {role} of "
                    f"recipe {recipe.name} have {scales}. Choose a recipe with such scales, such as XINT8, or another "
                    f"target, such as npu-float-scale."
                )


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "npu-cnn",
            "Ryzen AI NPU, CNN flow: shift and alignment rules, operators as the device computes them",
            preparations=(SplitToSlice, ReduceMeanToPool, SplitGlobalPool),
            substitutions=(dpu.RoundLeakySlope, dpu.SigmoidToHardSigmoid),
            corrections=(dpu.ScaleHardSigmoid, dpu.ScalePools, dpu.ScaleReduceMean),
            constrain=constrain,
            requires_power_of_two=True,
        ),
        Target(
            "npu-float-scale",
            "Ryzen AI NPU, integers with float scales: what a Concat joins has one scale",
            preparations=(SplitToSlice, ReduceMeanToPool),
            constrain=align_concats,
        ),
        Target("cpu", "any runtime: the numbers of the recipe, no device rules and no rewrites"),
    )
}


def find_target(name: str) -> Target:
    """The named target."""
    if name not in TARGETS:
        raise UsageError(f"There is no target '{name}'.{nearest(name, TARGETS)} Known: {', '.join(TARGETS)}.")
    return TARGETS[name]
