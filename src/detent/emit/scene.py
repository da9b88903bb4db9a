"""Where nodes are written: the graph, fresh names in it, and its operator set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from detent.graph.names import Names
from detent.graph.values import add_initializer


@dataclass(frozen=True, eq=False)
class Scene:
    """A graph that is written into."""

    graph: ir.Graph
    names: Names

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.graph.opset_imports.get("", 1)

    def node(self, op_type: str, inputs: Sequence[ir.Value], name: str, domain: str = "", **attributes: Any) -> ir.Node:
        """A node with a fresh name, and one output that is named after it."""
        node = ir.node(op_type, list(inputs), attributes, domain=domain, name=self.names.fresh(name))
        node.outputs[0].name = self.names.fresh(f"{name}_Output")
        return node

    def constant(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """An initializer with a fresh name."""
        return add_initializer(self.graph, self.names.fresh(name), array)
