"""Which nodes the user wants quantized: names, patterns, operator types and a range between two nodes.

A pattern is a node name in which `*` and `?` stand for other characters. A pattern that matches nothing is an error:
a misspelt exclusion that is ignored is the kind of thing that costs a day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from detent.errors import UsageError, nearest


@dataclass(frozen=True)
class Selection:
    """What the user asked for. Empty means everything."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()

    def reasons_to_leave(self, graph: ir.Graph, folded: Collection[str] = ()) -> Mapping[str, str]:
        """For each node (by name) that is not to be quantized, the reason. Raises UsageError on an empty match.

        `folded` are names that the model had before it was prepared: a pattern that fits only these gets told so.
        """
        nodes = list(graph)
        names = [str(node.name) for node in nodes]
        self._refuse_folded(names, folded)
        reasons: dict[str, str] = {}
        if self.start or self.end:
            inside = self._between(nodes)
            reasons.update({name: "outside the range of --from and --to" for name in names if name not in inside})
        if self.include:
            kept = _matching(self.include, names, "--include")
            reasons.update({name: "not matched by --include" for name in names if name not in kept})
        if self.op_types:
            self._check_types(nodes)
            other = (str(node.name) for node in nodes if node.op_type not in self.op_types)
            reasons.update(dict.fromkeys(other, "operator type not in --op-types"))
        reasons.update(
            {name: f"excluded by '{by}'" for name, by in _matching(self.exclude, names, "--exclude").items()}
        )
        return reasons

    def _refuse_folded(self, names: Sequence[str], folded: Collection[str]) -> None:
        for pattern in (*self.include, *self.exclude, *self.start, *self.end):
            gone = names_matching(pattern, folded)
            if gone and not names_matching(pattern, names):
                raise UsageError(
                    f"'{pattern}': the node '{gone[0]}' was folded into a neighbour, as constants, BatchNormalization "
                    "and the like are. Name the layer that it belongs to; --dry-run --json lists what is left."
                )

    def _check_types(self, nodes: Sequence[ir.Node]) -> None:
        present = {node.op_type for node in nodes}
        for op_type in self.op_types:
            if op_type not in present:
                raise UsageError(f"--op-types {op_type}: the model has no such operator.{nearest(op_type, present)}")

    def _between(self, nodes: Sequence[ir.Node]) -> set[str]:
        """The names of nodes that lie on a path from a start node to an end node, both included."""
        names = [str(node.name) for node in nodes]
        starts = _matching(self.start, names, "--from")
        ends = _matching(self.end, names, "--to")
        after = _reach(nodes, starts, lambda node: node.predecessors()) if starts else set(names)
        before = _reach(list(reversed(nodes)), ends, lambda node: node.successors()) if ends else set(names)
        inside = after & before
        if not inside:
            raise UsageError(
                f"No node lies between --from {', '.join(self.start)} and --to {', '.join(self.end)}. "
                "Check their order: `detent inspect MODEL --nodes` lists them."
            )
        return inside


def _reach(
    nodes: Sequence[ir.Node], seeds: Iterable[str], neighbours: Callable[[ir.Node], Iterable[ir.Node]]
) -> set[str]:
    """The seeds and everything that depends on them through `neighbours`; `nodes` in an order that fits."""
    reached = set(seeds)
    for node in nodes:
        if any(neighbour.name in reached for neighbour in neighbours(node)):
            reached.add(str(node.name))
    return reached


def names_matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern matches; brackets in it are just brackets."""
    literal_brackets = pattern.replace("[", "[[]")
    return [name for name in names if name == pattern or fnmatchcase(name, literal_brackets)]


def _matching(patterns: Sequence[str], names: Sequence[str], option: str) -> dict[str, str]:
    """Each matched name with the pattern that matched it."""
    matched: dict[str, str] = {}
    for pattern in patterns:
        hits = names_matching(pattern, names)
        if not hits:
            raise UsageError(
                f"{option} '{pattern}' matches no node.{nearest(pattern, names)} "
                "`detent inspect MODEL --nodes` lists them."
            )
        matched.update(dict.fromkeys(hits, pattern))
    return matched
