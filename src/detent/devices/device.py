"""What a device is to Detent: one frozen value that quantizing and checking read.

| who reads it | what it reads                                                                              |
| ------------ | ------------------------------------------------------------------------------------------ |
| quantize     | `types` and `shifts` (which recipes fit), the three kinds of rewrites, `constraints`       |
| check        | `operators`, `likely`, `refused`, `types`, `shifts`, `constraints`, `recipe`               |

The values themselves are in `catalog`. A rule that only some devices have is a field here, never a test of a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from detent.devices.constraints import UNCONSTRAINED, Constraints, Violation
from detent.devices.generations import Generation
from detent.errors import UsageError
from detent.numerics.codec import DeviceRounding
from detent.numerics.formats import is_integer
from detent.numerics.interface import NumberFormat
from detent.plan.operators import DEVICE_CLIPS
from detent.plan.plan import Plan
from detent.prepare import Pass
from detent.prepare.base import OperatorPass
from detent.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Device:
    """One way of running a model on a device, and what it asks of the model.

    `accelerated`: it is more than a CPU. `operators` are the published ones; `likely` are others, with the reason to
    expect them; `refused` are operators with a known reason why they do not work; `disputed` are those that only some
    generations take, where none is named. Without `operators` on an
    accelerated device nothing is known about placement, and the device cannot be checked for.

    `types` are the number types that tensors of each role may be stored in; `wide` names the device whose types single
    activations may have instead, at its pace and with its operators. `shifts`: the device rescales by shifting,
    so a tensor has one power-of-two scale and its zero point is the middle code. `recipe` is the preset that makes such
    models.

    `preparations` rewrite the float model into operators that the device has. `substitutions` do so after calibration,
    before `constraints` move scales; `corrections` come after that. `generation` is the chip, if one is named, and
    `software` the version that runs it.
    """

    name: str
    description: str
    accelerated: bool = True
    operators: frozenset[str] = frozenset()
    likely: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    disputed: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wide: str = ""
    shifts: bool = False
    recipe: str = ""
    preparations: Sequence[type[Pass]] = ()
    substitutions: Sequence[type[OperatorPass]] = ()
    corrections: Sequence[type[OperatorPass]] = ()
    constraints: Constraints = UNCONSTRAINED
    generation: Generation | None = None
    software: str = ""

    @property
    def rounding(self) -> DeviceRounding:
        """How the device rounds what it shifts; as the file says where that is not known."""
        return self.generation.rounding if self.generation is not None and self.shifts else "half-even"

    @property
    def clips(self) -> Sequence[tuple[float, float]]:
        """The bounds of Clips that the device computes as they are; of others a Relu is made, where that is exact."""
        left = {} if self.generation is None else self.generation.left_behind_depthwise
        return () if left.get(self.recipe) == ("Clip",) else DEVICE_CLIPS

    @property
    def all_or_nothing(self) -> bool:
        """Whether one node that is not taken may keep all others off the device."""
        return self.generation is not None and self.generation.whole

    @property
    def integers(self) -> bool:
        """Whether the device computes on codes, so that every tensor needs a scale."""
        return self.accelerated and "bfloat16" not in self.types.get("activations", ())

    @property
    def checkable(self) -> bool:
        """Whether enough is known to say which nodes the device takes."""
        return bool(self.operators) or not self.accelerated

    @property
    def steps(self) -> list[str]:
        """The names of all rewrites that the device asks for."""
        return [step.step() for step in (*self.preparations, *self.substitutions, *self.corrections)]

    def takes_models_of(self, recipe: Recipe) -> bool:
        """Return whether the published operators are about models such as a recipe makes; never for a CPU."""
        if not self.operators:
            return False
        if self.integers:
            return is_integer(recipe.activations)
        return dtype_of(recipe.activations) in self.types["activations"]

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the recipe has scales or types that a shifting device cannot compute with."""
        if not self.shifts:
            return
        for role, part, fmt in role_formats(recipe):
            has = instead_of_shifts(fmt)
            if has is not None:
                raise UsageError(
                    f"The target {recipe.target} computes with one power-of-two scale for each tensor, and the "
                    f"{role}{part} of recipe {recipe.name} {has}. Choose a recipe with such scales, such as "
                    f"{self.recipe}, or another target, such as npu-a8w8."
                )
            if dtype_of(fmt) not in self.types[role]:
                raise UsageError(
                    f"The target {recipe.target} stores {role} as {' or '.join(self.types[role])}, and the {role}{part}"
                    f" of recipe {recipe.name} are {dtype_of(fmt)}. Choose such a type, or another target: npu-a16w8 "
                    "for activations of 16 bits (recipe A16W8), cpu for any."
                )
        if recipe.widen is not None:
            raise UsageError(
                f"The target {recipe.target} stores activations as {' or '.join(self.types['activations'])}, and "
                f"recipe {recipe.name} gives some of them 16 bits (widen): leave that out, or choose another target, "
                "such as npu-a8w8."
            )


@dataclass(frozen=True, eq=False)
class Rules:
    """The constraints of a device on one model, except those that a recipe leaves out."""

    device: Device
    model: ir.Model
    without: Collection[str] = ()

    def __call__(self, plan: Plan) -> Plan:
        """Move the parameters of a plan until the rules hold, as far as they can."""
        return self.device.constraints.constrain(self.model, plan, self.without)

    def violations(self, plan: Plan) -> list[Violation]:
        """Return the rules that do not hold, node by node."""
        return self.device.constraints.violations(self.model, plan, self.without)

    def permit(self, node: ir.Node, plan: Plan) -> bool:
        """Return whether the parameters around one node satisfy the rules."""
        return self.device.constraints.permits(node, plan, self.without)


def role_formats(recipe: Recipe) -> Iterator[tuple[str, str, NumberFormat | None]]:
    """Yield each role, the words that name the part of the model (empty: all of it), and the format it has there."""
    for role, fmt in recipe.formats.items():
        yield role, "", fmt
    for override in recipe.overrides:
        given = {"activations": override.activations, "weights": override.weights, "biases": override.biases}
        yield from ((role, f" for {override.part}", fmt) for role, fmt in given.items() if fmt is not None)


def dtype_of(fmt: NumberFormat | None) -> str:
    """Return the number type that a format stores, or a word that no device has among its types."""
    if fmt is None:
        return "float"
    return "blocks" if fmt.in_blocks else fmt.dtype


def instead_of_shifts(fmt: NumberFormat | None) -> str | None:
    """Say what a format has instead of one power-of-two scale per tensor; return None if it has just that."""
    if not is_integer(fmt):
        return "stay float" if fmt is None else f"are {fmt.label}"
    if not fmt.power_of_two:
        return "have float scales" if fmt.scale == "float" else f"have {fmt.scale} scales"
    return None if fmt.granularity == "per_tensor" else "have a scale for each channel or group"
