"""onnxruntime's blocked layout, in the model that onnxruntime writes after its own optimization.

Convolutions are computed with channels in blocks of 8 or 16. ReorderInput puts a value into blocks, ReorderOutput puts
it in order again; the operators between two convolutions that onnxruntime does not know in blocks stand between the
two. In a quantized model those are all quantizers, and reordering takes as long as half of the convolutions:

    Conv > ReorderOutput > QuantizeLinear > DequantizeLinear > ReorderInput > Conv

But what computes each element by itself can do so in any order. The functions here edit the written model accordingly;
it runs the same kernels on the same numbers.

Where the channels do not fill the last block, a blocked value has elements that the tensor has not: they may be
computed along, as no convolution takes notice of them, but not be fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import onnx

BLOCKED = "com.microsoft.nchwc"
MOST_LANES = 16  # of a block, on any CPU; the others have 8 or 4
ELEMENTWISE = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Add", "Mul", "Relu", "LeakyRelu", "Clip", "HardSigmoid"}
)
"""What is carried into the blocked layout: the operators that stand between the convolutions of quantized models."""


class BlockedValue(NamedTuple):
    """The name of a value in blocks, and how many channels it has in order."""

    name: str
    channels: int


def carry_blocks(model: onnx.ModelProto) -> None:
    """Let elementwise nodes between blocked values compute on these as they are, in place.

    Nodes are in the order of computation, as onnxruntime writes them.
    """
    graph = model.graph
    shapes = {value.name: value.type.tensor_type.shape for value in (*graph.value_info, *graph.input)}
    scalars = {tensor.name for tensor in graph.initializer if all(size == 1 for size in tensor.dims)}
    blocked: dict[str, BlockedValue] = {}
    renamed: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        if _is_reorder(node, "ReorderOutput"):
            blocked[node.output[0]] = BlockedValue(node.input[0], _channels(node))
        elif _is_reorder(node, "ReorderInput") and node.input[0] in blocked:
            renamed[node.output[0]] = blocked[node.input[0]].name
            continue
        elif _is_elementwise(node, blocked, scalars, shapes):
            twin, value = _in_blocks(node, blocked)
            blocked[node.output[0]] = value
            # Codes cannot be put in order: whoever needs them so computes them from values in order.
            nodes += [twin, node if node.op_type == "QuantizeLinear" else _reorder(value, node.output[0])]
            continue
        nodes.append(node)
    kept = _needed(nodes, {value.name for value in graph.output})
    del graph.node[:]
    graph.node.extend(kept)


def fetchable_in_blocks(model: onnx.ModelProto, outputs: Sequence[str]) -> dict[str, BlockedValue]:
    """The graph outputs among `outputs` that are put in order from a value in blocks which holds nothing else."""
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    found: dict[str, BlockedValue] = {}
    taken: set[str] = set()  # two outputs cannot have one name
    for name in outputs:
        node = producers.get(name)
        if node is None or not (node.domain == BLOCKED and node.op_type == "ReorderOutput"):
            continue
        value = BlockedValue(node.input[0], _channels(node))
        if value.name not in taken and _fills_blocks(value.channels, producers.get(value.name), shapes):
            taken.add(value.name)
            found[name] = value
    return found


def fetch_in_blocks(model: onnx.ModelProto, values: Mapping[str, BlockedValue]) -> None:
    """Let graph outputs be the blocked values that stand for them, in place. Reorders that nothing reads go."""
    graph = model.graph
    for output in graph.output:
        if output.name in values:
            output.name = values[output.name].name
            output.type.tensor_type.ClearField("shape")
    kept = _needed(graph.node, {output.name for output in graph.output})
    del graph.node[:]
    graph.node.extend(kept)


def _is_reorder(node: onnx.NodeProto, op_type: str) -> bool:
    """Whether it is the reorder between blocks and channels that come first."""
    channels_last = any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
    return node.domain == BLOCKED and node.op_type == op_type and not channels_last


def _channels(node: onnx.NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "channels"), 0)


def _is_elementwise(
    node: onnx.NodeProto,
    blocked: Mapping[str, BlockedValue],
    scalars: set[str],
    shapes: Mapping[str, onnx.TensorShapeProto],
) -> bool:
    """Whether it computes each element from those at its place in blocked values of one shape, and from scalars."""
    tensors = [name for name in node.input if name and name not in scalars]
    return (
        node.domain != BLOCKED
        and node.op_type in ELEMENTWISE
        and len(node.output) == 1
        and len(tensors) > 0
        and all(name in blocked for name in tensors)
        and (len(tensors) == 1 or all(_known_equal(shapes, tensors[0], name) for name in tensors[1:]))
    )


def _known_equal(shapes: Mapping[str, onnx.TensorShapeProto], one: str, other: str) -> bool:
    """Whether two values certainly have one shape: what is broadcast would be so along other axes in blocks."""
    first, second = shapes.get(one), shapes.get(other)
    if first is None or second is None or not first.dim or any(not _is_known(dim) for dim in first.dim):
        return False
    return list(first.dim) == list(second.dim)


def _is_known(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return bool(dim.WhichOneof("value"))


def _in_blocks(node: onnx.NodeProto, blocked: Mapping[str, BlockedValue]) -> tuple[onnx.NodeProto, BlockedValue]:
    """The node on blocked values, and its result."""
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    twin.input[:] = [blocked[name].name if name in blocked else name for name in node.input]
    twin.output[:] = [f"{node.output[0]}_in_blocks"]
    twin.name = f"{node.name}_in_blocks"
    channels = next(blocked[name].channels for name in node.input if name in blocked)
    return twin, BlockedValue(twin.output[0], channels)


def _reorder(value: BlockedValue, result: str) -> onnx.NodeProto:
    return onnx.helper.make_node(
        "ReorderOutput", [value.name], [result], f"{result}_in_order", domain=BLOCKED, channels=value.channels
    )


def _needed(nodes: Iterable[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """The nodes that lead to `outputs`, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            wanted.update(name for attribute in node.attribute for name in _captured(attribute))
            kept.append(node)
    return kept[::-1]


def _captured(attribute: onnx.AttributeProto) -> list[str]:
    """What nested graphs may read of their surroundings: whatever they read."""
    graphs = [attribute.g, *attribute.graphs]
    return [
        name
        for graph in graphs
        for node in graph.node
        for name in (*node.input, *(inner for each in node.attribute for inner in _captured(each)))
    ] + [output.name for graph in graphs for output in graph.output]


def _fills_blocks(channels: int, producer: onnx.NodeProto | None, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether a blocked value of that many channels holds nothing else. A convolution's weight has a row for each."""
    if producer is not None and producer.domain == BLOCKED and producer.op_type == "Conv":
        return bool(channels) and shapes.get(producer.input[1], [0])[0] == channels
    return bool(channels) and channels % MOST_LANES == 0
