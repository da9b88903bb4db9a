"""A graph in segments that each run as one: a value that only one node reads, and that has no codes, stays inside.

Each node whose results have no codes and one reader joins its reader's segment. So a segment is a tree that ends in one
node, and everything it reads from outside was computed by segments that end earlier: they can run in the order of
their last nodes. A Conv and the Relu fused behind it are one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from detent.errors import DataError
from detent.graph.save import serialize
from detent.graph.session import RUNTIME_ERRORS, Feeds, first_line, open_session, session_options
from detent.graph.values import captured_values, is_constant, read_values

Constants = Callable[[ir.Node, int], Any]
"""The array that a node reads at a constant input."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes in order, the values that they read from outside, and their results that are read outside or have codes."""

    nodes: Sequence[ir.Node]
    inputs: Sequence[ir.Value]
    outputs: Sequence[ir.Value]


def cut_segments(model: ir.Model, sites: Collection[str]) -> list[Segment]:
    """Cut the main graph into segments, in an order in which they can run."""
    readers: dict[ir.Value, set[ir.Node]] = {}
    for node in model.graph:
        for value in read_values(node):
            readers.setdefault(value, set()).add(node)
    inside: dict[ir.Node, list[ir.Node]] = {}
    segments = []
    for node in model.graph:
        nodes = [*inside.pop(node, []), node]
        following = {reader for value in node.outputs for reader in readers.get(value, ())}
        if len(following) == 1 and not any(value.name in sites for value in node.outputs):
            inside.setdefault(following.pop(), []).extend(nodes)
            continue
        made = {value for member in nodes for value in member.outputs}
        read = dict.fromkeys(value for member in nodes for value in read_values(member))
        inputs = [value for value in read if value not in made and not is_constant(value)]
        outputs = [value for value in node.outputs if value.name in sites or value in readers]
        segments.append(Segment(nodes, inputs, outputs))
    return segments


class Program:
    """Nodes that are ready to run on one sample after another, in any number of threads."""

    def __init__(
        self, model: ir.Model, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], like: Feeds, constants: Constants
    ) -> None:
        """Load the nodes. `like` is what goes in, for the types."""
        self._outputs = [str(value.name) for value in outputs]
        self._where = f"node '{nodes[-1].name}' ({nodes[-1].op_type})"
        held: dict[str, onnx.TensorProto] = {}
        protos = [_with_constants(node, constants, held) for node in nodes]
        inputs = [_info(name, array) for name, array in like.items()]
        graph = onnx.helper.make_graph(
            protos, "segment", inputs, [onnx.ValueInfoProto(name=name) for name in self._outputs], list(held.values())
        )
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
        proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=max(model.ir_version, 4))
        self._session = open_session(serialize(proto), session_options())

    def __call__(self, feeds: Feeds, origin: str) -> list[Any]:
        """Return the outputs. Raises DataError, naming the node and the sample."""
        try:
            results: list[Any] = self._session.run(self._outputs, dict(feeds))
        except RUNTIME_ERRORS as error:
            raise DataError(f"onnxruntime could not run {self._where} on {origin}: {first_line(str(error))}") from error
        return results


def _with_constants(node: ir.Node, constants: Constants, held: dict[str, onnx.TensorProto]) -> onnx.NodeProto:
    """Return the node with each constant under a name of its own: two readers may see different numbers of one."""
    proto: onnx.NodeProto = ir.serde.serialize_node(node)
    for index, value in enumerate(node.inputs):
        if is_constant(value):
            name = f"{node.name}/{index}/constant"
            held[name] = onnx.numpy_helper.from_array(np.asarray(constants(node, index)), name)
            proto.input[index] = name
    # A body knows it by its own name, also where the node has the same constant as an input.
    for value in captured_values(node):
        if is_constant(value) and value.const_value is not None:
            held[str(value.name)] = ir.to_proto(value.const_value)
            held[str(value.name)].name = str(value.name)
    return proto


def _info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        first = value[0] if value else np.zeros(0, np.float32)
        return onnx.helper.make_tensor_sequence_value_info(name, _element_type(first), None)
    return onnx.helper.make_tensor_value_info(name, _element_type(value), None)


def _element_type(array: Any) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype))
