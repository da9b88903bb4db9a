"""Quantized models written by hand, node by node, and the comparison of all their codes with onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from detent.emulator import Emulator
from tests.models import values_of

ZERO_POINTS = {"int8": 0, "uint8": 128}


class Qdq:
    """A model in QDQ form. Names of values are those that `op`, `pair`, `codes` and `input` return."""

    def __init__(self, dtype: str = "int8", opset: int = 17) -> None:
        self.dtype, self.opset = dtype, opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, *shape: int | str, position: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return self.pair(name, position)

    def constant(self, array: np.ndarray) -> str:
        name = f"constant{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def codes(self, integers: np.ndarray, position: int, dtype: str = "int8") -> str:
        """A constant, stored as codes."""
        stored = self.constant(np.asarray(integers).astype(dtype))
        return self.op("DequantizeLinear", [stored, *self._grid(position, dtype)])

    def pair(self, value: str, position: int, dtype: str | None = None) -> str:
        grid = self._grid(position, dtype or self.dtype)
        codes = self.op("QuantizeLinear", [value, *grid])
        return self.op("DequantizeLinear", [codes, *grid])

    def _grid(self, position: int, dtype: str) -> list[str]:
        zero_point = np.array(ZERO_POINTS.get(dtype, 0), dtype)
        return [self.constant(np.array(2.0**-position, np.float32)), self.constant(zero_point)]

    def op(self, op_type: str, inputs: Sequence[str], **attributes: object) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def build(self, *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "qdq",
            self.inputs,
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def feeds_of(model: onnx.ModelProto, seed: int = 0, spread: float = 3.0) -> dict[str, np.ndarray]:
    """Numbers in 256ths: many of them lie halfway between two codes."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in model.graph.input:
        shape = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
        found[value.name] = (np.rint(rng.standard_normal(shape) * spread * 256) / 256).astype(np.float32)
    return found


def code_names(model: onnx.ModelProto) -> list[str]:
    return [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]


def assert_same_codes(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray] | None = None) -> Emulator:
    """Every code and every output as onnxruntime computes it from the file, in float, as it is written."""
    given = feeds or feeds_of(model)
    emulator = Emulator(model)
    outputs = [value.name for value in model.graph.output]
    expected = values_of(model, [*code_names(model), *outputs], given)
    found = emulator.codes(given)
    constant_codes = set(emulator.constants)
    assert set(found) | constant_codes >= set(code_names(model))
    for name, codes in found.items():
        assert codes.dtype == expected[name].dtype
        np.testing.assert_array_equal(codes, expected[name], err_msg=name)
    for name, array in zip(outputs, emulator(given), strict=True):
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    return emulator
