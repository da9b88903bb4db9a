"""List what is in a model, float or quantized: operators, types, and the scale and position of quantized tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from detent.graph.load import ModelLike, name_of, read, stored_bytes
from detent.graph.values import input_at, is_constant
from detent.qdq.families import dequantize_family
from detent.qdq.reader import dequantized
from detent.results import Result, for_people


@dataclass(frozen=True)
class QuantizedTensor:
    """One tensor with integer codes. `position` is None unless the scale is one power of two."""

    name: str
    constant: bool
    dtype: str
    scale: float | None
    zero_point: int | None
    position: int | None
    channels: int


@dataclass(frozen=True)
class NodeEntry:
    """One node. Of its `inputs`, `quantized_inputs` come from integer codes."""

    name: str
    op_type: str
    inputs: int
    quantized_inputs: int


@dataclass(frozen=True)
class Inspection(Result):
    """The contents of a model."""

    producer: str
    opset: Mapping[str, int]
    bytes: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    operators: Mapping[str, int]
    constants: Mapping[str, int]
    quantized: Sequence[QuantizedTensor]
    nodes: Sequence[NodeEntry]
    source: str = for_people("")


def inspect_model(model: ModelLike) -> Inspection:
    """Read a model and list what is in it. Nothing is run."""
    graph_model = read(model)
    graph = graph_model.graph
    nodes = list(graph)
    operators = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes)
    constants: Counter[str] = Counter()
    for value in graph.initializers.values():
        if value.const_value is not None:
            constants[str(value.const_value.dtype)] += value.const_value.nbytes
    return Inspection(
        producer=f"{graph_model.producer_name or ''} {graph_model.producer_version or ''}".strip(),
        opset={domain or "ai.onnx": version for domain, version in graph_model.opset_imports.items()},
        bytes=stored_bytes(model),
        inputs={str(value.name): _typed(value) for value in graph.inputs},
        outputs={str(value.name): _typed(value) for value in graph.outputs},
        operators=dict(operators.most_common()),
        constants=dict(constants.most_common()),
        quantized=list(_quantized_tensors(nodes)),
        nodes=[_entry(node) for node in nodes],
        source=name_of(model),
    )


def _typed(value: ir.Value) -> str:
    shape = "" if value.shape is None else "[" + ", ".join(str(dim) for dim in value.shape) + "]"
    return f"{value.dtype if value.dtype is not None else 'unknown'} {shape}".strip()


def _entry(node: ir.Node) -> NodeEntry:
    present = [value for value in node.inputs if value is not None]
    quantized = sum(dequantize_family(value.producer()) is not None for value in present)
    return NodeEntry(str(node.name), node.op_type, len(present), quantized)


def _quantized_tensors(nodes: Sequence[ir.Node]) -> Iterator[QuantizedTensor]:
    """Yield one entry for each dequantizing node: the tensor that its codes stand for."""
    for entry in filter(None, map(dequantized, nodes)):
        params, dtype = entry.params, entry.codes.dtype
        single = params if params is not None and params.per_tensor else None
        if dtype is None and params is not None:
            dtype = ir.DataType.from_numpy(params.dtype)
        has_zero_point = single is not None and input_at(entry.node, 2) is not None
        yield QuantizedTensor(
            name=str(entry.tensor.name),
            constant=is_constant(entry.codes),
            dtype="?" if dtype is None else str(dtype),
            scale=None if single is None else float(single.scale.reshape(-1)[0]),
            zero_point=int(single.zero_point.reshape(-1)[0]) if single is not None and has_zero_point else None,
            position=None if params is None else params.position,
            channels=1 if params is None else params.scale.size,
        )
