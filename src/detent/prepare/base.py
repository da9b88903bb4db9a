"""What every pass of this room shares: a base class that keeps notes, and fresh names.

A pass takes a float model and leaves a float model that computes the same function. It works on the nodes of the main
graph only. Bodies of If, Loop and Scan are left alone, but what they capture counts as a use, because `onnx_ir` records
a captured value's uses like any other.
"""

from __future__ import annotations

import abc
import dataclasses
import re
from typing import Any, cast

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


class Pass(ir.passes.InPlacePass):
    """A float-to-float rewrite that says what it did and what it declined to do.

    A subclass implements `run`, and calls `changed` or `decline` once per node that it rewrote or looked at and left.
    The notes of the latest run are in `changes` and `declined`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.declined: list[Change] = []
        self._names: Names | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run on a model in place, with fresh notes."""
        self.changes = []
        self.declined = []
        self._names = None
        self.run(model)
        return ir.passes.PassResult(model, modified=bool(self.changes))

    @classmethod
    def step(cls) -> str:
        """The name by which a recipe leaves the pass out or asks for it: SplitToSlice is `split_to_slice`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @abc.abstractmethod
    def run(self, model: ir.Model) -> None:
        """Rewrite the model in place."""

    def changed(self, node: ir.Node | str, what: str) -> None:
        """Note a change."""
        self.changes.append(Change(_label(node), what, type(self).__name__))

    def decline(self, node: ir.Node | str, why: str) -> None:
        """Note that something was left as it was, and why."""
        self.declined.append(Change(_label(node), why, type(self).__name__))

    def fresh(self, model: ir.Model, node: ir.Node, role: str) -> str:
        """A value name that nothing in the model has, derived from the node: `<node>/<role>`."""
        if self._names is None:
            self._names = Names(model)
        return self._names.fresh(f"{_stem(node)}/{role}")

    def initializer(self, model: ir.Model, node: ir.Node, role: str, array: npt.NDArray[Any]) -> ir.Value:
        """A new initializer of the main graph that holds the array, named after the node and its role."""
        return values.add_initializer(model.graph, self.fresh(model, node, role), array)


def main_opset(model: ir.Model) -> int:
    """The version of the standard operators that the model imports."""
    return model.opset_imports.get("", 1)


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute, or its default."""
    return node.attributes.get_int(name, default)


def ints_attribute(node: ir.Node, name: str) -> list[int] | None:
    """An attribute that is a list of integers, or None where the node does not have it."""
    found = node.attributes.get_ints(name)
    return None if found is None else list(found)


def as_float64(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The array in double precision."""
    return cast("npt.NDArray[np.float64]", array.astype(np.float64))


def _stem(node: ir.Node) -> str:
    """What names are derived from: the node's name, or that of its first named output where it has none."""
    if node.name:
        return node.name
    return next((value.name for value in node.outputs if value.name), node.op_type)


def _label(node: ir.Node | str) -> str:
    """How a note calls a node."""
    return node if isinstance(node, str) else _stem(node)
