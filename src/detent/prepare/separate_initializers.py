"""An initializer that several inputs read gets one copy for each of them.

The copies hold the same numbers, so the function is unchanged. It lets each use have its own scale later, and lets a
pass rewrite one layer's weight without touching another layer. Copies share their memory until something replaces them.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import add_initializer
from detent.prepare.base import Pass


class SeparateInitializers(Pass):
    """One float initializer per use.

    Cases:
    - FLOAT initializers only: integers are shapes, axes and indices, and have no scale, nor have the bounds of a Clip;
    - the first use in graph order keeps the original and its name, the others get `<node>/<name>`;
    - uses in bodies of If and Loop, and a graph output, keep the original; then all uses in the main graph get copies;
    - declined: an initializer that is a graph input too, since the caller may replace it.
    """

    def run(self, model: ir.Model) -> None:
        """Walk all inputs of the main graph once."""
        shared = self._shared(model.graph)
        taken = {value for value in shared if _has_fixed_use(value, model.graph)}
        copies: dict[ir.Value, int] = {}
        for node in model.graph:
            for index, value in enumerate(node.inputs):
                if value is None or value not in shared or node.op_type == "Clip":
                    continue
                if value not in taken:
                    taken.add(value)
                    continue
                if value.const_value is None:
                    continue
                name = self.fresh(model, node, str(value.name).lstrip("/"))
                copy = add_initializer(model.graph, name, value.const_value.numpy())
                node.replace_input_with(index, copy)
                copies[value] = copies.get(value, 0) + 1
        for value, count in copies.items():
            self.changed(str(value.name), f"{count} more uses got copies of it")

    def _shared(self, graph: ir.Graph) -> set[ir.Value]:
        """The float initializers with more than one use."""
        shared = set()
        for value in graph.initializers.values():
            if value.dtype != ir.DataType.FLOAT or sum(use.node.op_type != "Clip" for use in value.uses()) < 2:
                continue
            if value.is_graph_input():
                self.decline(str(value.name), "it is a graph input too, so the caller may replace it")
            else:
                shared.add(value)
        return shared


def _has_fixed_use(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether the original is needed where this pass does not look."""
    return value.is_graph_output() or any(use.node.graph is not graph for use in value.uses())
