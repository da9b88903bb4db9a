"""Rewrites that are done only on request (`also` in a recipe), and the names of all steps that a recipe may leave out.

| step         | what it does                                                                                |
| ------------ | ------------------------------------------------------------------------------------------- |
| clip_to_relu | a Clip from 0 becomes a Relu: what its upper bound cut off, the range of the codes cuts off |
| whole_clip   | the bounds of a Clip become whole numbers in -128..127, as the DPU has them                 |

Both change what the model computes, so they come after calibration, and only where the recipe says so. What another
target asks for can be asked for by name as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.graph.values import constant_scalar, cut_inputs, input_at, set_input
from detent.prepare import LEAVABLE, Pass
from detent.recipe import Recipe
from detent.targets.dpu import NodePass
from detent.targets.shifts import RULES
from detent.targets.target import TARGETS, Target

Step = TypeVar("Step", bound=Pass)


class ClipToRelu(NodePass):
    """A Clip whose lower bound is 0 loses its upper one."""

    op_types = ("Clip",)

    def rewrite(self, model: ir.Model, node: ir.Node) -> None:  # noqa: ARG002 - the common signature
        """Make the node a Relu, under the same names."""
        low, high = constant_scalar(node, 1), constant_scalar(node, 2)
        if low != 0.0:
            self.decline(node, f"its lower bound is {'none' if low is None else f'{low:g}'}, not 0")
            return
        cut_inputs(node, 1)
        node.op_type = "Relu"
        self.changed(node, "Clip became Relu" if high is None else f"Clip became Relu: {high:g} is no bound any more")


class WholeClip(NodePass):
    """A Clip whose bounds are whole numbers of 8 bits."""

    op_types = ("Clip",)

    def rewrite(self, model: ir.Model, node: ir.Node) -> None:
        """Round the bounds; one that is missing becomes the end of the range."""
        if any(input_at(node, index) is not None and constant_scalar(node, index) is None for index in (1, 2)):
            self.decline(node, "a bound of it is no constant")
            return
        for index, (role, end) in enumerate((("low", -128.0), ("high", 127.0)), start=1):
            bound = constant_scalar(node, index)
            whole = end if bound is None else min(max(float(np.rint(bound)), -128.0), 127.0)
            if whole != bound:
                set_input(node, index, self.initializer(model, node, role, np.array(whole, np.float32)))
                before = "none" if bound is None else f"{bound:g}"
                self.changed(node, f"its {role} bound, {before}, became {whole:g}")


OPTIONAL: Mapping[str, type[NodePass]] = {step.step(): step for step in (ClipToRelu, WholeClip)}


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
