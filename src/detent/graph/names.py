"""Names: unique ones for everything in a model that should have one, and new ones that collide with none of them."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common as common_passes


def repair_names(model: ir.Model) -> None:
    """Give every node and value a name of its own; deterministic, and those that are unique already stay.

    An optional output without a name is one that nobody asked for: it must not get one, or it would be computed.
    """
    unwanted = [value for node in model.graph.all_nodes() for value in node.outputs if not value.name]
    common_passes.NameFixPass()(model)
    for value in unwanted:
        value.name = ""


class Names:
    """The names of all values and nodes of a model, and new ones that collide with none of them."""

    def __init__(self, model: ir.Model) -> None:
        self._used: set[str] = set()
        for graph in model.graphs():
            self._used.update(value.name for value in graph.inputs if value.name)
            self._used.update(graph.initializers)
            for node in graph:
                self._used.update(value.name for value in node.outputs if value.name)
                if node.name:
                    self._used.add(node.name)
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """The base itself, or the base with the first free number after it."""
        name = base
        while name in self._used:
            self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{self._next[base]}"
        self._used.add(name)
        return name
