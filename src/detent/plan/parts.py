"""Which nodes an override of the recipe is about."""

from __future__ import annotations

import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.plan.select import Selection, names_matching
from detent.recipe import Override, Recipe


def nodes_of(override: Override, graph: ir.Graph) -> set[str]:
    """The names of the nodes that an override is about. Raises UsageError where a part of it matches nothing."""
    names = [str(node.name) for node in graph]
    found: set[str] = set()
    for pattern in override.nodes:
        matches = names_matching(pattern, names)
        if not matches:
            raise UsageError(f"The override of '{pattern}' matches no node.{nearest(pattern, names)}")
        found.update(matches)
    types = {node.op_type for node in graph}
    if override.op_types and not types & set(override.op_types) and not override.nodes:
        raise UsageError(f"The override of {', '.join(override.op_types)}: the model has no such operators.")
    found.update(str(node.name) for node in graph if node.op_type in override.op_types)
    if any(override.between):
        start, end = override.between
        left = Selection(start=start, end=end).reasons_to_leave(graph)
        found.update(name for name in names if name not in left)
    return found


def left_float(recipe: Recipe, graph: ir.Graph) -> dict[str, str]:
    """For each node that an override leaves float, the reason."""
    return {
        name: f"left float by the override of {override.part}"
        for override in recipe.overrides
        if override.leave_float
        for name in nodes_of(override, graph)
    }
