"""Which nodes an override of the recipe is about."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from detent.errors import UsageError, nearest
from detent.plan.select import Selection, names_matching
from detent.recipe import Override, Recipe

_SHORT = 60
"""Characters of an override's part that are told as a reason; a proposal may name dozens of nodes."""


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
        try:
            left = Selection(start=start, end=end).reasons_to_leave(graph)
        except UsageError as error:
            raise UsageError(f"The override of {override.part}: {error}") from error
        found.update(name for name in names if name not in left)
    return found


def check_operator_types(recipe: Recipe) -> None:
    """Raise UsageError where a recipe names an operator type that ONNX does not have."""
    named = [("operators", recipe.operators), ("more_operators", recipe.more_operators)]
    named += [(f"the override of {override.part}", override.op_types) for override in recipe.overrides]
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    for where, op_types in named:
        for op_type in op_types:
            if op_type not in known:
                raise UsageError(
                    f"Recipe {recipe.name}, {where}: ONNX has no operator '{op_type}'.{nearest(op_type, known)}"
                )


def left_float(recipe: Recipe, graph: ir.Graph) -> dict[str, str]:
    """For each node that an override leaves float, the reason."""
    found: dict[str, str] = {}
    for number, override in enumerate(recipe.overrides, 1):
        names = nodes_of(override, graph) if override.leave_float else set()
        short = len(override.part) <= _SHORT
        by = f"the override of {override.part}" if short else f"override {number} ({len(names)} nodes)"
        found |= dict.fromkeys(names, f"left float by {by}")
    return found
