"""What a model is for, with what its file says of that: all that is needed to read its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.observe.sources import Shape
from detent.tasks import Task, answer_heads, class_count, find_task, image_size, number_confidences, takes_tokens
from detent.tasks.endings import HeadKind, classes_beside_boxes, passed_on

SURE = 0.5  # the confidence below which a number may be anything, as the pitch of silence

Outputs = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Purpose:
    """What a model is for, how that is known, and what its file says about its classes and its image.

    `passed_on` are outputs that are inputs, and no answers; `tokens` says that each step is of an input's token;
    `heads` are the outputs that hold scores, numbers or objects, if they are known; `confidences` are the outputs that
    say how sure the numbers of another are, by the name of that one.
    """

    task: Task
    why: str
    classes: int | None = None
    image: tuple[int, int] | None = None
    passed_on: frozenset[str] = frozenset()
    tokens: bool = False
    heads: Mapping[str, HeadKind] = field(default_factory=dict)
    confidences: Mapping[str, str] = field(default_factory=dict)

    @property
    def usual_kind(self) -> HeadKind:
        """Return what a row of scores is if `heads` does not say."""
        return "tags" if self.task is Task.TAG else "classes"

    @property
    def numbers(self) -> list[str]:
        """Return the outputs that hold a number beside the classes or tags, such as an age."""
        return [name for name, kind in self.heads.items() if kind == "number"]

    def is_beside(self, output: str) -> bool:
        """Tell whether an output is not read as the answer, such as the features that it is computed from."""
        known = bool(self.heads) and output not in self.passed_on
        return known and self.heads.get(output, "number") == "number"

    def answers(self, outputs: Outputs) -> Outputs:
        """Return the outputs that are answers."""
        return {name: array for name, array in outputs.items() if name not in self.passed_on}

    def unsure(self, outputs: Outputs) -> dict[str, npt.NDArray[np.bool_]]:
        """Return where the numbers of each output are that the model itself is not sure of, if it says so.

        Scores of four classes have the shape of the boxes beside them, but are not of single numbers.
        """
        numbers = {
            name: sure
            for name, sure in self.confidences.items()
            if self.task is Task.REGRESS or self.heads.get(name) == "number"
        }
        pairs = {name: sure for name, sure in numbers.items() if name in outputs and sure in outputs}
        return {
            name: outputs[sure] < SURE for name, sure in pairs.items() if outputs[sure].shape == outputs[name].shape
        }


def purpose_of(model: ir.Model, named: str | None, shapes: Mapping[str, Shape] | None = None) -> Purpose:
    """Return what a model is for. Raise UsageError for a task that it cannot have."""
    graph, metadata = model.graph, dict(model.metadata_props)
    task, why = find_task(named, graph, metadata, shapes)
    heads, sure = answer_heads(task, graph, shapes), number_confidences(graph, shapes)
    image, given, tokens = image_size(graph), passed_on(graph), takes_tokens(graph)
    classes = class_count(metadata) or (classes_beside_boxes(graph) if task is Task.DETECT else None)
    return Purpose(task, why, classes, image, given, tokens, heads, sure)


def where_sure(purpose: Purpose, expected: Outputs, found: Outputs) -> tuple[Outputs, Outputs]:
    """Return both with 0 for the numbers that the float model is not sure of: what they are says nothing."""
    unsure = {name: where for name, where in purpose.unsure(expected).items() if found[name].shape == where.shape}
    if not unsure:
        return expected, found
    one, other = (
        outputs | {name: np.where(where, outputs[name].dtype.type(0), outputs[name]) for name, where in unsure.items()}
        for outputs in (dict(expected), dict(found))
    )
    return one, other
