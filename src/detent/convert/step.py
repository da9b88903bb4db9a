"""What all converters share: a step is a frozen value with settings, and writes notes of what it did and left alone."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import onnx_ir as ir

from detent.prepare.base import Change, Pass


class Notes:
    """What one step did, and what it looked at and left, with the reason."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.changes: list[Change] = []
        self.declined: list[Change] = []

    def changed(self, where: ir.Node | ir.Value | str, what: str) -> None:
        """Note a change."""
        self.changes.append(Change(_label(where), what, self.by))

    def decline(self, where: ir.Node | ir.Value | str, why: str) -> None:
        """Note that something was left as it was, and why."""
        self.declined.append(Change(_label(where), why, self.by))

    def run(self, step: Pass, model: ir.Model) -> None:
        """Run a pass of `prepare`, and take its notes over."""
        step(model)
        self.changes += [dataclasses.replace(change, by=self.by) for change in step.changes]
        self.declined += [dataclasses.replace(change, by=self.by) for change in step.declined]


class Step(abc.ABC):
    """One conversion. A subclass is a frozen dataclass whose fields are the settings after the colon.

    `nothing` completes the sentence "the model is left as it is: ..." for a model that has nothing of the kind.
    """

    nothing: ClassVar[str]

    @abc.abstractmethod
    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert the model, in place where that is possible, and return it."""


def _label(where: ir.Node | ir.Value | str) -> str:
    if isinstance(where, str):
        return where
    if isinstance(where, ir.Value):
        return str(where.name)
    return where.name or next((value.name for value in where.outputs if value.name), where.op_type)
