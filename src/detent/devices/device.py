"""The devices by name: which rules and rewrites each asks for.

Rewrites that are done only on request (`also` in a recipe), and the names of all steps that a recipe may leave out.

| step         | what it does                                                                                |
| ------------ | ------------------------------------------------------------------------------------------- |
| clip_to_relu | a Clip from 0 becomes a Relu: what its upper bound cut off, the range of the codes cuts off |
| whole_clip   | the bounds of a Clip become whole numbers in -128..127, as the DPU has them                 |

Both change what the model computes, so they come after calibration, and only where the recipe says so. What another
target asks for can be asked for by name as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import onnx_ir as ir

from detent.devices import rewrites
from detent.devices.catalog import Device, find_device
from detent.devices.constraints import RULES, align_concats, constrain, permits
from detent.errors import UsageError, nearest
from detent.numerics.formats import IntegerFormat
from detent.numerics.interface import NumberFormat
from detent.plan.plan import Plan
from detent.prepare import LEAVABLE, Pass, ReduceMeanToPool, SplitGlobalPool, SplitToSlice
from detent.recipe import Recipe

Constrain = Callable[[ir.Model, Plan, Collection[str]], list[str]]
Permits = Callable[[ir.Node, Plan, Collection[str]], bool]


def _no_constraints(model: ir.Model, plan: Plan, without: Collection[str] = ()) -> list[str]:  # noqa: ARG001
    return []


def _anything(node: ir.Node, plan: Plan, without: Collection[str] = ()) -> bool:  # noqa: ARG001
    return True


@dataclass(frozen=True)
class Target:
    """What a device asks of a quantized model.

    `preparations` are rewrites of the float model into operators that the device has, `substitutions` those that come
    before the rules on positions. `constrain` applies these rules to the plan and returns what it could not satisfy,
    and `permits` tells of one node whether they hold; `corrections` are rewrites after them. A recipe may have only the
    types that `device` stores, where one is given.
    """

    name: str
    description: str
    preparations: Sequence[type[Pass]] = ()
    substitutions: Sequence[type[rewrites.NodePass]] = ()
    corrections: Sequence[type[rewrites.NodePass]] = ()
    constrain: Constrain = _no_constraints
    permits: Permits = _anything
    device: Device | None = None

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError where the recipe has scales or types that the device has not."""
        if self.device is None:
            return
        stored = {"activations": self.device.activations, "weights": self.device.weights, "biases": self.device.biases}
        for role, part, fmt in _formats(recipe):
            has = _not_shifted(fmt) if self.device.shifts else None
            if has is not None:
                raise UsageError(
                    f"The target {self.name} computes with one power-of-two scale for each tensor, and the "
                    f"{role}{part} of recipe {recipe.name} {has}. Choose a recipe with such scales, such as "
                    "XINT8, or another target, such as npu-float-scale."
                )
            if isinstance(fmt, IntegerFormat) and fmt.dtype not in stored[role]:
                raise UsageError(
                    f"The target {self.name} stores {role} as {' or '.join(stored[role])}, and the {role}{part} of "
                    f"recipe {recipe.name} are {fmt.dtype}. Choose such a type, or another target: npu-float-scale "
                    "for activations of 16 bits (recipe A16W8), cpu for any."
                )


def check_rounding(recipe: Recipe) -> None:
    """Raise UsageError where the device's rounding cannot be simulated: it shifts 8-bit integers, in QDQ form."""
    if recipe.rounding == "half-even":
        return
    asked = f"Rounding {recipe.rounding} is that of shifts of 8-bit integers"
    choose = "Choose a recipe with these, such as XINT8, or leave the rounding half-even."
    for role, part, fmt in _formats(recipe):
        has = _not_shifted(fmt)
        if has is None and isinstance(fmt, IntegerFormat) and fmt.dtype not in _SHIFTED[role]:
            has = f"are {fmt.dtype}"
        if has is not None:
            raise UsageError(f"{asked}, and the {role}{part} of recipe {recipe.name} {has}. {choose}")
    if recipe.format != "qdq":
        raise UsageError(
            f"{asked}, and a file in format {recipe.format} cannot be emulated. Quantize with --format qdq; `detent "
            "convert` writes the result in other forms."
        )


_SHIFTED = {"activations": ("int8", "uint8"), "weights": ("int8", "uint8"), "biases": ("int8", "uint8", "int32")}


def _formats(recipe: Recipe) -> Iterator[tuple[str, str, NumberFormat | None]]:
    """Each role with its format: those of the whole model, and those of parts with the words that name them."""
    for role, fmt in recipe.formats.items():
        yield role, "", fmt
    for override in recipe.overrides:
        given = {"activations": override.activations, "weights": override.weights, "biases": override.biases}
        yield from ((role, f" for {override.part}", fmt) for role, fmt in given.items() if fmt is not None)


def _not_shifted(fmt: NumberFormat | None) -> str | None:
    """What a format has in the place of one power-of-two scale for the tensor; None where it has that."""
    if not isinstance(fmt, IntegerFormat):
        return "stay float" if fmt is None else f"are {fmt.label}"
    if not fmt.power_of_two:
        return "have float scales" if fmt.scale == "float" else f"have {fmt.scale} scales"
    return None if fmt.granularity == "per_tensor" else "have a scale for each channel or group"


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "npu-cnn",
            "Ryzen AI NPU, CNN flow: shift and alignment rules, operators as the device computes them",
            preparations=(SplitToSlice, ReduceMeanToPool, SplitGlobalPool),
            substitutions=(rewrites.RoundLeakySlope, rewrites.SigmoidToHardSigmoid),
            corrections=(rewrites.ScaleHardSigmoid, rewrites.ScalePools, rewrites.ScaleReduceMean),
            constrain=constrain,
            permits=permits,
            device=find_device("npu-xint8"),
        ),
        Target(
            "npu-float-scale",
            "Ryzen AI NPU, integers with float scales: what a Concat joins has one scale",
            preparations=(SplitToSlice, ReduceMeanToPool),
            constrain=align_concats,
        ),
        Target(
            "npu-vaiml",
            "Ryzen AI NPU, VAIML flow: power-of-two scales without rules on their positions",
            preparations=(SplitToSlice,),
        ),
        Target("npu-bf16", "Ryzen AI NPU, floats of 16 bits and blocks: no scales, no rules"),
        Target("cpu", "any runtime: the numbers of the recipe, no device rules and no rewrites"),
    )
}


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a target for one model, but for those that a recipe leaves out."""

    target: Target
    model: ir.Model
    without: Collection[str] = ()

    def __call__(self, plan: Plan) -> list[str]:
        """Move the parameters of a plan until they hold; what could not be satisfied."""
        return self.target.constrain(self.model, plan, self.without)

    def permit(self, node: ir.Node, plan: Plan) -> bool:
        """Whether the parameters around one node are as they ask for."""
        return self.target.permits(node, plan, self.without)


def find_target(name: str) -> Target:
    """The named target."""
    if name not in TARGETS:
        raise UsageError(f"There is no target '{name}'.{nearest(name, TARGETS)} Known: {', '.join(TARGETS)}.")
    return TARGETS[name]


Step = TypeVar("Step", bound=Pass)


OPTIONAL: Mapping[str, type[rewrites.NodePass]] = {
    step.step(): step for step in (rewrites.ClipToRelu, rewrites.WholeClip)
}


def with_steps(target: Target, recipe: Recipe) -> Target:
    """The target with what the recipe asks for also, and without what it leaves out. UsageError for unknown names."""
    check_steps(recipe)
    everywhere = TARGETS.values()

    def chosen(own: Sequence[type[Step]], others: Iterable[type[Step]]) -> tuple[type[Step], ...]:
        asked = {step.step(): step for step in others if step.step() in recipe.also}
        kept = {step.step(): step for step in own if step.step() not in recipe.without}
        return tuple({**kept, **asked}.values())

    return replace(
        target,
        preparations=chosen(target.preparations, (step for each in everywhere for step in each.preparations)),
        substitutions=chosen(
            target.substitutions, (*(step for each in everywhere for step in each.substitutions), *OPTIONAL.values())
        ),
        corrections=chosen(target.corrections, (step for each in everywhere for step in each.corrections)),
    )


def leavable_steps() -> list[str]:
    """The names that `without` may hold."""
    return list(dict.fromkeys([*(step.step() for step in LEAVABLE), *_of_targets(), *(name for name, _, _ in RULES)]))


def optional_steps() -> list[str]:
    """The names that `also` may hold."""
    return [*OPTIONAL, *_of_targets()]


def _of_targets() -> list[str]:
    """The steps that some target asks for."""
    steps = [(*target.preparations, *target.substitutions, *target.corrections) for target in TARGETS.values()]
    return list(dict.fromkeys(step.step() for each in steps for step in each))


def check_steps(recipe: Recipe) -> None:
    """Raise UsageError where a recipe names a step that there is not, or both wants one and does not."""
    for field, given, known in (
        ("without", recipe.without, leavable_steps()),
        ("also", recipe.also, optional_steps()),
    ):
        for name in given:
            if name not in known:
                raise UsageError(
                    f"'{field}' of recipe {recipe.name} has '{name}', which is no step that can be left out or asked "
                    f"for.{nearest(name, known)} Known: {', '.join(known)}."
                )
    both = set(recipe.without) & set(recipe.also)
    if both:
        raise UsageError(f"Recipe {recipe.name} has '{min(both)}' in 'without' and in 'also'. Choose one of the two.")
