"""Small questions about values, and the few edits that all passes are made of.

Names: `repair_names` gives everything in a model a unique one, `Names` makes new ones that collide with none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common as common_passes


def is_standard(node: ir.Node, *op_types: str) -> bool:
    """Return whether the node is one of these operators of the standard domain."""
    return node.domain == "" and node.op_type in op_types


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes a value; with `op_types`, only if it is one of these standard operators."""
    node = None if value is None else value.producer()
    return node if node is not None and (not op_types or is_standard(node, *op_types)) else None


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor that a value always has: that of an initializer, or of a Constant node with a tensor.

    An initializer that is also a graph input is only a default, which the caller may override: not a constant.
    """
    if value is None:
        return None
    # Exporters of old opsets list every weight as a graph input too; load removes those that nobody feeds.
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = made_by(value, "Constant")
    attribute = None if node is None else node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.as_tensor()


def constant(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return the array that a value always holds, or None. It belongs to the model: read it, never write to it."""
    tensor = tensor_of(value)
    return None if tensor is None else tensor.numpy()


def values_of(graph: ir.Graph) -> list[ir.Value]:
    """Return all values of a graph: its inputs, its initializers and what its nodes compute."""
    return [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]


def constant_ints(value: ir.Value | None) -> list[int] | None:
    """Return a constant as a flat list of integers, or None."""
    array = constant(value)
    return None if array is None else [int(item) for item in array.reshape(-1)]


def constant_scalar(node: ir.Node, index: int) -> float | None:
    """Return the single constant number at an input, or None."""
    return scalar_of(input_at(node, index))


def scalar_of(value: ir.Value | None) -> float | None:
    """Return the single number that a value always holds, or None."""
    array = constant(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is an initializer that nobody can override."""
    return value is not None and value.is_initializer() and not value.is_graph_input()


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether a float array holds neither NaN nor infinity."""
    return bool(np.isfinite(array).all())


def rank(value: ir.Value | None) -> int | None:
    """Return the number of dimensions, or None if it is unknown."""
    if value is None:
        return None
    if value.shape is not None:
        return len(value.shape)
    tensor = tensor_of(value)
    return None if tensor is None else len(tensor.shape)


def static_shape(value: ir.Value | None) -> list[int | None] | None:
    """Return the shape with None for every dimension that is not a number, or None if the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return [dim if isinstance(dim, int) else None for dim in value.shape]


def shape_of(value: ir.Value | None) -> list[int | None] | None:
    """Return the shape of a constant's tensor, which is always known, or else the static shape."""
    tensor = tensor_of(value)
    return static_shape(value) if tensor is None else [*tensor.shape.numpy()]


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input at an index, or None if it is absent or left empty."""
    return node.inputs[index] if index < len(node.inputs) else None


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs that a node holds: the branches of If, the body of Loop."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found += attribute.as_graphs()
    return found


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the graph, of the functions, and of all bodies in them."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def read_values(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node reads: its inputs, and what the graphs inside it take from outside."""
    return list(dict.fromkeys([*(value for value in node.inputs if value is not None), *captured_values(node)]))


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Return what the graphs inside a node take from outside by name; that it may read as an input as well."""
    found: dict[ir.Value, None] = {}
    for body in bodies_of(node):
        # A body reads outer values by name, without listing them as inputs, so its nodes have to be looked at.
        inner = list(body.all_nodes())
        own = {body, *(each.graph for each in inner)}
        read = (value for each in inner for value in each.inputs)
        found |= {value: None for value in read if value is not None and value.graph not in own}
    return list(found)


def is_square(node: ir.Node) -> bool:
    """Return whether a node computes the square of its first input, as x * x or x ^ 2."""
    if is_standard(node, "Mul"):
        return node.inputs[0] is node.inputs[1]
    return is_standard(node, "Pow") and constant_scalar(node, 1) == 2.0


def is_unused(value: ir.Value) -> bool:
    """Return whether nothing reads the value: no node, and no graph output."""
    return not value.is_graph_output() and not value.uses()


def sole_use(value: ir.Value, graph: ir.Graph) -> tuple[ir.Node, int] | None:
    """Return the one node and input that read the value; None if others do, in a subgraph or as a graph output too."""
    if value.is_graph_output():
        return None
    uses = value.uses()
    if len(uses) != 1:
        return None
    ((node, index),) = uses
    # A reader inside an If or Loop may run any number of times, and passes that move a node next to its reader would
    # move it into the body.
    return (node, index) if node.graph is graph else None


def why_not_sole(value: ir.Value) -> str:
    """Return the reason to show when `sole_use` found none."""
    if value.is_graph_output():
        return f"'{value.name}' is a graph output"
    count = len(value.uses())
    return f"'{value.name}' has {count} uses" if count != 1 else f"'{value.name}' is captured by a subgraph"


def add_initializer(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """Register a new initializer with a tensor of its own."""
    # ascontiguousarray makes a scalar one-dimensional; the reshape takes that back.
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def drop_if_unused(value: ir.Value | None) -> None:
    """Take an initializer out of its graph once nothing reads it."""
    if value is None or not value.is_initializer() or value.is_graph_input() or not is_unused(value):
        return
    if value.graph is not None and value.name is not None:
        del value.graph.initializers[value.name]


def set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    """Put a value at an input, which may be one past the last, and drop the initializer that was there if unused."""
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    old = node.inputs[index]
    node.replace_input_with(index, value)
    drop_if_unused(old)


def cut_inputs(node: ir.Node, count: int) -> None:
    """Keep the first inputs only."""
    old = node.inputs[count:]
    node.resize_inputs(count)
    for value in old:
        drop_if_unused(value)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let a value replace another everywhere, graph outputs included, under the other's name, type and shape."""
    # What shape inference found, or the file declared, is worth more than what a new node guesses.
    if old.type is not None:
        new.type = old.type
    if old.shape is not None:
        new.shape = old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    # After the replacement: two values of one name in a graph would be an error.
    new.name = old.name


def remove_node(graph: ir.Graph, node: ir.Node) -> None:
    """Take a node out of the graph, and the initializers that only it read."""
    inputs = tuple(node.inputs)
    graph.remove(node, safe=True)
    for value in inputs:
        drop_if_unused(value)


def bypass(graph: ir.Graph, node: ir.Node) -> str | None:
    """Remove a node whose first output always equals its first input; return the reason if it has to stay.

    Where the output is a graph output its producer takes over the name. That is impossible when the input's own name is
    fixed too (a graph input, an initializer, another graph output), and then the node stays.
    """
    source, output = node.inputs[0], node.outputs[0]
    if source is None:
        return "its input is empty"
    if not output.is_graph_output():
        output.replace_all_uses_with(source)
        remove_node(graph, node)
        return None
    if source.is_graph_input() or source.is_initializer() or source.is_graph_output():
        return f"it joins '{source.name}' to the graph output '{output.name}', and both names are fixed"
    take_over(output, source)
    remove_node(graph, node)
    return None


def repair_names(model: ir.Model) -> None:
    """Give every node and value a name of its own; deterministic, and those that are unique already stay.

    An optional output without a name is one that nobody asked for: it must not get one, or it would be computed.
    """
    unwanted = [value for node in model.graph.all_nodes() for value in node.outputs if not value.name]
    # The pass names every output, also the empty ones of optional results.
    common_passes.NameFixPass()(model)
    for value in unwanted:
        value.name = ""


class Names:
    """The names of all values and nodes of a model, and new ones that collide with none of them.

    `apart_from` are graphs inside it whose own names may be given anew.
    """

    def __init__(self, model: ir.Model, apart_from: Sequence[ir.Graph] = ()) -> None:
        self._used: set[str] = set()
        for graph in model.graphs():
            if graph in apart_from:
                continue
            self._used.update(value.name for value in graph.inputs if value.name)
            self._used.update(graph.initializers)
            for node in graph:
                self._used.update(value.name for value in node.outputs if value.name)
                if node.name:
                    self._used.add(node.name)
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """Return the base itself, or the base with the first free number after it."""
        name = base
        while name in self._used:
            # The counter is kept for each base: a large model asks for thousands of names that begin alike.
            self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{self._next[base]}"
        self._used.add(name)
        return name
