"""Which nodes run together on the device, and how much each of them multiplies.

The device computes a region without waiting for the CPU, so no path between two nodes of a region may leave it: the
region would wait for a result that itself waits for the region. Regions are found in two steps, both linear except for
the few merges.

1. Nodes get levels in topological order. A CPU node has the highest level of its inputs (-1 without any). A device node
   has the highest level of its inputs too, where an input from the CPU counts one more. Connected device nodes of one
   level make a region: a path through the CPU comes back at a higher level, so never into the same region.
2. Two regions with an edge between them are joined if no other path leads from one to the other.

The multiplications of a node are the products that it sums up, for one sample. A batch that is not fixed counts as one
sample; if any other size is unknown, so is the number.

    Conv            output elements * (input channels / groups) * window
    ConvTranspose   input elements * (output channels / groups) * window
    MatMul, Gemm    output elements * length of the sums
    LSTM, GRU, RNN  steps * samples * elements of both weights
    Einsum          product of all sizes that its equation names
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from detent.graph.values import bodies_of, input_at, is_standard, shape_of

Edges = Mapping[str, Collection[str]]


def partition(order: Sequence[str], inputs: Edges, on_device: Collection[str]) -> list[list[str]]:
    """Return the nodes of each region of `on_device`. `order` is topological; `inputs` names what each node reads."""
    regions = _Groups(order)
    levels = _levels(order, inputs, on_device)
    for node in order:
        for source in inputs.get(node, ()):
            if node in on_device and source in on_device and levels[node] == levels[source]:
                regions.join(node, source)
    _merge(regions, order, inputs, on_device)
    found: dict[str, list[str]] = {}
    for node in order:
        if node in on_device:
            found.setdefault(regions.of(node), []).append(node)
    return list(found.values())


def _levels(order: Sequence[str], inputs: Edges, on_device: Collection[str]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for node in order:
        sources = inputs.get(node, ())
        if node in on_device:
            levels[node] = max((levels[source] + (source not in on_device) for source in sources), default=0)
        else:
            levels[node] = max((levels[source] for source in sources), default=-1)
    return levels


def _merge(regions: _Groups, order: Sequence[str], inputs: Edges, on_device: Collection[str]) -> None:
    """Join neighboring regions as long as that closes no cycle."""
    readers: dict[str, set[str]] = {}
    for node in order:
        for source in inputs.get(node, ()):
            if regions.of(node) != regions.of(source):
                readers.setdefault(regions.of(source), set()).add(regions.of(node))
    for node in order:
        for source in inputs.get(node, ()):
            ahead, behind = regions.of(source), regions.of(node)
            if ahead == behind or node not in on_device or source not in on_device:
                continue
            if _another_way(readers, ahead, behind):
                continue
            kept = regions.join(ahead, behind)
            merged = (readers.pop(ahead, set()) | readers.pop(behind, set())) - {ahead, behind}
            readers[kept] = merged
            for others in readers.values():
                if ahead in others or behind in others:
                    others -= {ahead, behind}
                    others.add(kept)


def _another_way(readers: Mapping[str, Collection[str]], start: str, end: str) -> bool:
    """Return whether a path other than the direct edge leads from `start` to `end`."""
    pending = [each for each in readers.get(start, ()) if each != end]
    seen = set(pending)
    while pending:
        for reader in readers.get(pending.pop(), ()):
            if reader == end:
                return True
            if reader not in seen:
                seen.add(reader)
                pending.append(reader)
    return False


class _Groups:
    """Disjoint sets of names; each set is named after its first member."""

    def __init__(self, names: Sequence[str]) -> None:
        self._parents = {name: name for name in names}
        self._rank = {name: index for index, name in enumerate(names)}

    def of(self, name: str) -> str:
        root = name
        while self._parents[root] != root:
            root = self._parents[root]
        while self._parents[name] != root:
            self._parents[name], name = root, self._parents[name]
        return root

    def join(self, one: str, other: str) -> str:
        first, second = sorted((self.of(one), self.of(other)), key=self._rank.__getitem__)
        self._parents[second] = first
        return first


LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
RECURRENT = ("LSTM", "GRU", "RNN")


def macs_of(node: ir.Node) -> int | None:
    """Return the multiplications of a node: 0 unless it is a layer or holds some, None if they are not known.

    Of an If they are those of the branch that has more; nobody knows how often a Loop runs.
    """
    if bodies := bodies_of(node):
        inside = [[macs_of(each) for each in body] for body in bodies]
        known = [sum(each for each in body if each is not None) for body in inside if None not in body]
        return max(known) if len(known) == len(inside) and (node.op_type == "If" or not any(known)) else None
    if is_standard(node, *RECURRENT):
        return _recurrent_macs(node)
    if is_standard(node, "Einsum"):
        return _einsum_macs(node)
    if not is_standard(node, *LAYERS):
        return 0
    source, weight = _sizes(input_at(node, 0)), _sizes(input_at(node, 1))
    result = _sizes(node.outputs[0])
    if not source or not weight:
        return None
    if node.op_type == "ConvTranspose":
        return math.prod(source) * math.prod(weight[1:])
    if result is None:
        return None
    if node.op_type == "Conv":
        return math.prod(result) * math.prod(weight[1:])
    return math.prod(result) * source[0 if node.attributes.get_int("transA", 0) != 0 else -1]


def _recurrent_macs(node: ir.Node) -> int | None:
    source, weight, recurrent = (_sizes(input_at(node, at)) for at in range(3))
    if not source or not weight or not recurrent or len(source) != 3:
        return None
    return source[0] * source[1] * (math.prod(weight) + math.prod(recurrent))


def _einsum_macs(node: ir.Node) -> int | None:
    terms = (node.attributes.get_string("equation", "") or "").replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, value in zip(terms, node.inputs, strict=False):
        shape = _sizes(value)
        if shape is None or len(shape) != len(term):
            return None
        sizes.update(zip(term, shape, strict=True))
    return math.prod(sizes.values())


def _sizes(value: ir.Value | None) -> list[int] | None:
    """Return the shape as numbers, with 1 for an unknown batch."""
    shape = shape_of(value)
    if shape is None:
        return None
    if shape and shape[0] is None:
        shape = [1, *shape[1:]]
    sizes = [size for size in shape if size is not None]
    return sizes if len(sizes) == len(shape) else None
