"""What every pass shares: a base class that keeps notes and makes fresh names.

A pass takes a float model and leaves a float model that computes the same function. It works on the nodes of the main
graph only. Bodies of If, Loop and Scan are left alone, but what they capture counts as a use, because `onnx_ir` records
a captured value's uses like any other.
"""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph import values
from detent.graph.values import Names


@dataclasses.dataclass(frozen=True)
class Change:
    """One note of a pass: the node it is about, what was done (or why not), and the pass that wrote it."""

    node: str
    what: str
    by: str = ""


@dataclasses.dataclass(frozen=True)
class Successor:
    """What became of a node: the names of those that compute its result now, none if it is a constant or unused.

    With `merged` it was taken in by a node that does something else as well, as a Conv takes in what follows it.
    """

    nodes: tuple[str, ...]
    merged: bool = False


class RewriteNotes:
    """What a rewrite did, and what it looked at and left alone, with the reason."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.changes: list[Change] = []
        self.declined: list[Change] = []

    def changed(self, node: ir.Node | ir.Value | str, what: str) -> None:
        """Note a change of a node, or of a value."""
        self.changes.append(Change(label_of(node), what, self.by))

    def decline(self, node: ir.Node | ir.Value | str, why: str) -> None:
        """Note that something was left as it was, and why."""
        self.declined.append(Change(label_of(node), why, self.by))


class Pass(RewriteNotes, ir.passes.InPlacePass):
    """A float-to-float rewrite that says what it did and what it declined to do.

    A subclass implements `run`, and calls `changed` or `decline` once per node that it rewrote or looked at and left.
    The notes of the latest run are in `changes` and `declined`; `moved` says where nodes went, in order.
    """

    def __init__(self) -> None:
        super().__init__(type(self).__name__)
        self.moved: list[tuple[str, Successor]] = []
        self._names: Names | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run on a model in place, with fresh notes."""
        Pass.__init__(self)
        self.run(model)
        return ir.passes.PassResult(model, modified=bool(self.changes))

    @classmethod
    def step(cls) -> str:
        """Return the name by which a recipe leaves the pass out or asks for it: SplitToSlice is `split_to_slice`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @abc.abstractmethod
    def run(self, model: ir.Model) -> None:
        """Rewrite the model in place."""

    def replaced(self, node: ir.Node, *by: ir.Node) -> None:
        """Note that other nodes compute what a node did; none if a constant does, or nothing has to."""
        self.moved.append((label_of(node), Successor(tuple(map(label_of, by)))))

    def merged(self, node: ir.Node, into: ir.Node) -> None:
        """Note that another node took a node in."""
        self.moved.append((label_of(node), Successor((label_of(into),), merged=True)))

    def absorbed(self, model: ir.Model, node: ir.Node, layer: ir.Node, what: str) -> None:
        """Remove a node whose work the layer before it does now: its result takes over the name of the node's."""
        values.take_over(node.outputs[0], layer.outputs[0])
        values.remove_node(model.graph, node)
        self.merged(node, layer)
        self.changed(node, what)

    def fresh(self, model: ir.Model, node: ir.Node, role: str) -> str:
        """Return a value name that nothing in the model has, derived from the node: `<node>/<role>`."""
        # Not before one is needed: to collect the names of a large model takes a while.
        if self._names is None:
            self._names = Names(model)
        return self._names.fresh(f"{label_of(node)}/{role}")

    def forget_names(self) -> None:
        """Collect the names of the model anew when a fresh one is needed: nodes came from elsewhere."""
        self._names = None

    def initializer(self, model: ir.Model, node: ir.Node, role: str, array: npt.NDArray[Any]) -> ir.Value:
        """Return a new initializer of the main graph that holds the array, named after the node and its role."""
        return values.add_initializer(model.graph, self.fresh(model, node, role), array)


class OperatorPass(Pass):
    """A pass that looks at the nodes of some `operators` one by one: at all, or at those that `only` accepts."""

    operators: ClassVar[tuple[str, ...]]

    def __init__(self, only: Callable[[ir.Node], bool] | None = None) -> None:
        super().__init__()
        self._only = only

    def run(self, model: ir.Model) -> None:
        """Visit every such node of the main graph, and note why it was left as it was."""
        for node in model.graph:
            if values.is_standard(node, *self.operators) and (self._only is None or self._only(node)):
                reason = self.visit(model, node)
                if reason is not None:
                    self.decline(node, reason)

    @abc.abstractmethod
    def visit(self, model: ir.Model, node: ir.Node) -> str | None:
        """Rewrite the node and return None, or return why it stays. None without a change: not what is looked for."""


def main_opset(model: ir.Model) -> int:
    """Return the version of the standard operators that the model imports."""
    return model.opset_imports.get("", 1)


def ints_attribute(node: ir.Node, name: str) -> list[int] | None:
    """Return an attribute that is a list of integers, or None if the node does not have it."""
    found = node.attributes.get_ints(name)
    return None if found is None else list(found)


def axes_of(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction, from the attribute or a constant input; None: all, or they are computed."""
    given = values.input_at(node, 1)
    return ints_attribute(node, "axes") if given is None else values.constant_ints(given)


def as_float64(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return cast("npt.NDArray[np.float64]", array.astype(np.float64))


def label_of(subject: ir.Node | ir.Value | str) -> str:
    """Return what a note calls its subject: its name, or of a node without one that of its first named output."""
    if isinstance(subject, str):
        return subject
    if isinstance(subject, ir.Value):
        return str(subject.name)
    return subject.name or next((value.name for value in subject.outputs if value.name), subject.op_type)
