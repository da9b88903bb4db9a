"""Count nodes as the execution provider's own report does, and say where each of them runs.

The report counts every node of the file but Constants, and each reader of a DequantizeLinear has its own. A clean
network leaves one QuantizeLinear per input and one DequantizeLinear per output off the device: what stands between a
node on the device and one on the CPU runs on the CPU, and so do the two of a node on the CPU itself.

| node                | on the device if                                                     |
| ------------------- | -------------------------------------------------------------------- |
| QuantizeLinear      | the node whose result it rounds is                                   |
| DequantizeLinear    | its reader is; never if that is the model's output                   |
| one that was merged | the node before it is: a factor of the device, an Identity           |
| any other           | the prediction says so                                               |
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from detent.graph.values import is_constant
from detent.qdq.families import is_native_dequantize, is_native_quantize


@dataclass(frozen=True)
class CountedNode:
    """A node as a report has it: by what it computes."""

    output: str
    op_type: str
    on_device: bool


def counted_nodes(model: ir.Model, on_device: Collection[str], known: Collection[str]) -> list[CountedNode]:
    """Return every node that a report counts. `on_device` are names of `known` nodes, those that compute something."""
    placed: dict[ir.Node, bool] = {}
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    for node in nodes:
        if node.name in known:
            placed[node] = node.name in on_device
        elif not is_native_dequantize(node):
            source = next((value.producer() for value in node.inputs if value is not None and value.producer()), None)
            # A weight that is rounded in the file itself belongs to the layer that reads it.
            first = node.inputs[0] if node.inputs else None
            of_weight = is_native_quantize(node) and first is not None and is_constant(first) and bool(on_device)
            placed[node] = of_weight if source is None else placed.get(source, False)
    found: list[CountedNode] = []
    for node in nodes:
        output = str(node.outputs[0].name)
        if not is_native_dequantize(node):
            found.append(CountedNode(output, node.op_type, placed[node]))
            continue
        value = node.outputs[0]
        readers = [placed.get(use.node, False) for use in value.uses()] + [False] * value.is_graph_output()
        found += [CountedNode(output, node.op_type, reader) for reader in readers or [False]]
    return found
