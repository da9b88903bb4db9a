"""A plan written into a graph, once, to be judged, measured and brought into its final form.

Writing and opening a quantized model takes as long as running it on a dozen samples. So the stage that judges a plan
hands on the opened model, and its answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from detent.emit import emit, emit_dynamic
from detent.emulator import EmulatedValues
from detent.graph.session import Runner
from detent.observe.samples import PendingSample
from detent.plan.plan import Plan
from detent.recipe import Recipe

ANSWER_BYTES = 64 << 20  # of answers that a candidate keeps

Answers = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class FirstForm:
    """A quantized model in its first form.

    `rounded` names the rounded value of each activation site. `unrounded` is the float model, if the last form is made
    from that.
    """

    model: ir.Model
    rounded: Mapping[str, str]
    unrounded: ir.Model | None = None

    @property
    def warnings(self) -> list[str]:
        """What a user of the file has to know."""
        overloaded = sorted({node.op_type for node in self.model.graph if node.overload})
        if not overloaded:
            return []
        return [
            f"The file has several formats under the name {overloaded[0]}, as overloads of one function. Old versions "
            "of onnxruntime (1.23 and before) run the first for all of them: use a newer one."
        ]


def write_plan(model: ir.Model, plan: Plan, recipe: Recipe) -> FirstForm:
    """Write the plan into the graph, in place."""
    # Emission edits the graph in place, and the pure bfloat16 form is made from the graph without its Casts.
    unrounded = model.clone() if recipe.format == "bfloat16" else None
    if recipe.dynamic:
        emit_dynamic(model, plan)
        return FirstForm(model, {}, unrounded)
    pairs = {"weight_pairs": recipe.weight_pairs, "dedicated_pairs": recipe.dedicated_pairs}
    return FirstForm(model, emit(model, plan, recipe.format, **pairs), unrounded)


@dataclass(frozen=True, eq=False)
class OpenedForm:
    """A quantized model that is ready to answer samples, in any number of threads. Each is answered once."""

    form: FirstForm
    run: Runner | EmulatedValues
    outputs: Sequence[str]
    answers: dict[int, Answers] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, plan: Plan, recipe: Recipe) -> OpenedForm:
        """Write the plan into a copy of the model, which shares its weights, and open it in exact arithmetic."""
        form = write_plan(model.clone(), plan, recipe)
        outputs = [str(value.name) for value in form.model.graph.outputs]
        if recipe.emulated is not None:
            return cls(form, EmulatedValues(form.model, recipe.emulated), outputs)
        return cls(form, Runner(form.model, outputs, exact=True), outputs)

    def __call__(self, pending: PendingSample) -> Answers:
        """Return all outputs by name."""
        known = self.answers.get(pending.index)
        if known is None:
            sample = pending.load()
            known = dict(zip(self.outputs, self.run(sample.feeds, sample.origin, self.outputs), strict=True))
            kept = sum(array.nbytes for answers in list(self.answers.values()) for array in answers.values())
            if kept + sum(array.nbytes for array in known.values()) <= ANSWER_BYTES:
                # A copy: an array of onnxruntime's keeps the whole region of memory that it is in.
                self.answers[pending.index] = {name: array.copy() for name, array in known.items()}
        return dict(known)
