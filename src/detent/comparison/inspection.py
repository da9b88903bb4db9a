"""What is in a model, float or quantized: operators, types, and for every quantized tensor its scale and position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from detent.graph.load import ModelLike, read, stored_bytes
from detent.graph.values import constant, is_constant
from detent.numerics.power_of_two import position_of


@dataclass(frozen=True)
class QuantizedTensor:
    """One tensor with integer codes. `position` is None where the scale is no power of two (or not one number)."""

    name: str
    constant: bool
    dtype: str
    scale: float | None
    zero_point: int | None
    position: int | None
    channels: int


@dataclass(frozen=True)
class NodeEntry:
    """One node; `quantized_inputs` counts those that come from integer codes, of `inputs` in all."""

    name: str
    op_type: str
    inputs: int
    quantized_inputs: int


@dataclass(frozen=True)
class Inspection:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


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
    )


def _typed(value: ir.Value) -> str:
    shape = "" if value.shape is None else "[" + ", ".join(str(dim) for dim in value.shape) + "]"
    return f"{value.dtype if value.dtype is not None else 'unknown'} {shape}".strip()


def _entry(node: ir.Node) -> NodeEntry:
    present = [value for value in node.inputs if value is not None]
    producers = (value.producer() for value in present)
    quantized = sum(producer is not None and producer.op_type == "DequantizeLinear" for producer in producers)
    return NodeEntry(str(node.name), node.op_type, len(present), quantized)


def _quantized_tensors(nodes: Sequence[ir.Node]) -> Iterator[QuantizedTensor]:
    """One entry for each DequantizeLinear: the tensor that its codes stand for."""
    for node in nodes:
        if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
            continue
        codes = node.inputs[0]
        quantize = codes.producer()
        original = quantize.inputs[0] if quantize is not None and quantize.op_type == "QuantizeLinear" else codes
        scale = constant(node.inputs[1])
        zero_point = constant(node.inputs[2]) if len(node.inputs) > 2 else None
        single = scale is not None and scale.size == 1
        number = float(scale.reshape(-1)[0]) if scale is not None and single else None
        yield QuantizedTensor(
            name=str(original.name if original is not None else codes.name),
            constant=is_constant(codes),
            dtype=str(codes.dtype if codes.dtype is not None else zero_point.dtype if zero_point is not None else "?"),
            scale=number,
            zero_point=int(zero_point.reshape(-1)[0]) if zero_point is not None and zero_point.size == 1 else None,
            position=None if number is None else position_of(number),
            channels=int(np.size(scale)) if scale is not None else 1,
        )
