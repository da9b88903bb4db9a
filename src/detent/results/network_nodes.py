"""The network that a report is about: its nodes, what each of them reads, and the shapes of what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from detent.graph.values import read_values


@dataclass(frozen=True)
class NetworkNode:
    """A node, an input or an output of a network. `sources` are the places of the nodes that it reads.

    `shape` is that of its first result, as it is written, or empty if it is not known.
    """

    name: str
    op_type: str
    sources: tuple[int, ...]
    shape: str = ""
    kind: Literal["node", "input", "output"] = "node"


def network_of(model: ir.Model) -> tuple[NetworkNode, ...]:
    """Return the nodes of a model's main graph, each after what it reads. Constants are not among them."""
    graph = model.graph
    found: list[NetworkNode] = []
    place: dict[ir.Value, int] = {}

    def add(name: object, op_type: str, read: Sequence[ir.Value], made: Sequence[ir.Value], **more: str) -> None:
        sources = tuple(dict.fromkeys(place[value] for value in read if value in place))
        shape = next((_shape(value) for value in (*made, *read) if value.shape is not None), "")
        place.update(dict.fromkeys(made, len(found)))
        found.append(NetworkNode(str(name), op_type, sources, shape, **more))  # type: ignore[arg-type]  # its kind

    for value in graph.inputs:
        if not value.is_initializer():
            add(value.name, "Input", (), (value,), kind="input")
    for node in graph:
        if node.op_type != "Constant":
            add(node.name, node.op_type, read_values(node), node.outputs)
    for value in graph.outputs:
        add(value.name, "Output", (value,), (), kind="output")
    return tuple(found)


def _shape(value: ir.Value) -> str:
    return "×".join("?" if not isinstance(size, int) else str(size) for size in value.shape or ())
