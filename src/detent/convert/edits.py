"""The edits of quantized graphs that several converters are made of."""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.names import Names
from detent.graph.values import is_standard, is_unused, remove_node, take_over


def substitute(graph: ir.Graph, node: ir.Node, source: ir.Value, names: Names) -> None:
    """Let `source` replace the first output of a node, and remove the node with what only it read.

    The name of a graph output stays: the source takes it, or where its own name is fixed an Identity joins the two.
    """
    output = node.outputs[0]
    if output.is_graph_output():
        producer = source.producer()
        if producer is None or producer.graph is not graph or source.is_graph_output():
            identity = ir.node("Identity", [source], name=names.fresh(f"{output.name}_Identity"))
            graph.insert_before(node, [identity])
            source = identity.outputs[0]
        take_over(output, source)
    else:
        output.replace_all_uses_with(source)
    remove_with_sources(graph, node)


def remove_with_sources(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a node, and the Constant nodes and initializers that only it read."""
    inputs = [value for value in node.inputs if value is not None]
    remove_node(graph, node)
    for value in inputs:
        producer = value.producer()
        if producer is not None and is_standard(producer, "Constant") and is_unused(value) and producer.graph is graph:
            remove_node(graph, producer)


def original_name(codes: str, names: Names) -> str:
    """A name for a float constant whose codes were called `codes`: what it was called before, where that is free."""
    return names.fresh(codes.removesuffix("_quantized") if codes.endswith("_quantized") else f"{codes}_float")
