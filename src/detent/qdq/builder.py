"""Nodes of a family, written into a graph with fresh names.

integers     a pair of Quantize- and DequantizeLinear, or a FixNeuron
small floats a pair of Casts in standard operators, divided and multiplied by a scale if it is not 1; or a pair of
             linear operators that hold them. float8 could be a QuantizeLinear too, but onnxruntime would fuse that
             with a Conv to an operator that has no float8, and then not load its own result
blocks       one node for both directions

A constant behind linear operators and Casts is stored as codes. Before a FixNeuron it is stored as rounded floats. In a
block format it is stored as float and not rounded, because rounding twice differs from rounding once: if an element of
MXINT8 becomes -2, its block gets another exponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import Names, add_initializer, input_at
from detent.numerics.blocks import BlockParams
from detent.numerics.floats import FloatParams
from detent.numerics.formats import QuantParams
from detent.numerics.interface import Params
from detent.qdq.families import FIX_NEURON, STANDARD, Family, native_family, quantize_family
from detent.qdq.reader import LinearParams


@dataclass(frozen=True, eq=False)
class GraphWriter:
    """A graph that is written into, and fresh names in it."""

    graph: ir.Graph
    names: Names

    @property
    def opset(self) -> int:
        return self.graph.opset_imports.get("", 1)

    def node(self, op_type: str, inputs: Sequence[ir.Value], name: str, domain: str = "", **attributes: Any) -> ir.Node:
        """Make a node with a fresh name, and one output that is named after it. It is in no graph yet."""
        node = ir.node(op_type, list(inputs), attributes, domain=domain, name=self.names.fresh(name))
        node.outputs[0].name = self.names.fresh(f"{name}_Output")
        return node

    def constant(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """Add an initializer with a fresh name."""
        return add_initializer(self.graph, self.names.fresh(name), array)


class RoundingWriter(Protocol):
    """Writes the nodes that round values of one kind of format in one family."""

    def activation(self, name: str, value: ir.Value, params: Any) -> list[ir.Node]:
        """Make the nodes that round `value`; readers read the output of the last one."""

    def constant(self, name: str, array: npt.NDArray[np.float32], params: Any) -> list[ir.Node]:
        """Store a constant in its format, and make the nodes behind it."""


@dataclass(frozen=True, eq=False)
class PairWriter:
    """Writes pairs of linear operators. Without a family, the native one that holds the type of the codes is used.

    Nodes are named after the standard operators, or with `own_names` after the operators of the family.
    """

    writer: GraphWriter
    family: Family | None = None
    own_names: bool = False

    def activation(self, name: str, value: ir.Value, params: Params) -> list[ir.Node]:
        linear = stored_params(params)
        parameters = self.parameters(name, linear)
        quantize = self.quantize(name, value, linear, parameters)
        return [quantize, self.dequantize(name, quantize.outputs[0], linear, parameters)]

    def constant(self, name: str, array: npt.NDArray[np.float32], params: Params) -> list[ir.Node]:
        linear = stored_params(params)
        codes = self.writer.constant(f"{name}_quantized", params.codes(array))
        return [self.dequantize(name, codes, linear, self.parameters(name, linear))]

    def parameters(self, name: str, params: LinearParams) -> list[ir.Value]:
        """Add the scale and the zero point as initializers."""
        scale = self.writer.constant(f"{name}_scale", params.scale)
        return [scale, self.writer.constant(f"{name}_zero_point", params.zero_point)]

    def quantize(self, name: str, value: ir.Value, params: LinearParams, parameters: Sequence[ir.Value]) -> ir.Node:
        """Make the node from float to codes."""
        node = self._node(name, "quantize", value, params, parameters)
        codes = node.outputs[0]
        codes.type, codes.shape = parameters[1].type, value.shape
        return node

    def dequantize(self, name: str, codes: ir.Value, params: LinearParams, parameters: Sequence[ir.Value]) -> ir.Node:
        """Make the node from codes to float."""
        return self._node(name, "dequantize", codes, params, parameters)

    def _node(
        self, name: str, direction: str, value: ir.Value, params: LinearParams, parameters: Sequence[ir.Value]
    ) -> ir.Node:
        family = self.family or native_family(params.dtype.name, self.writer.opset, quantizes=False) or STANDARD
        op_type = getattr(family, direction)
        called = op_type if self.own_names else getattr(STANDARD, direction)
        attributes: dict[str, int] = {}
        if params.scale.ndim:
            attributes["axis"] = params.axis % len(value.shape or (0,))
            if params.block_size:
                attributes["block_size"] = params.block_size
        return self.writer.node(op_type, [value, *parameters], f"{name}_{called}", family.domain, **attributes)


@dataclass(frozen=True, eq=False)
class CastWriter:
    """Writes pairs of Casts."""

    writer: GraphWriter

    def activation(self, name: str, value: ir.Value, params: FloatParams) -> list[ir.Node]:
        """Divide, clip if the format does, cast, cast back, multiply."""
        nodes: list[ir.Node] = []
        result = value
        scale = self._scale(name, params)
        if scale is not None:
            nodes.append(self.writer.node("Div", [result, scale], f"{name}_Div"))
            result = _shaped(nodes[-1], value, value.dtype)
        if params.format.clip:
            largest = params.format.largest
            low, high = (
                self.writer.constant(f"{name}_{end}", np.array(bound, np.float32))
                for end, bound in (("lowest", -largest), ("highest", largest))
            )
            nodes.append(self.writer.node("Clip", [result, low, high], f"{name}_Clip"))
            result = _shaped(nodes[-1], value, value.dtype)
        small = ir.DataType.from_numpy(params.format.storage)
        nodes.append(self.writer.node("Cast", [result], f"{name}_Round", to=int(small)))
        return [*nodes, *self._back(name, _shaped(nodes[-1], value, small), scale)]

    def constant(self, name: str, array: npt.NDArray[np.float32], params: FloatParams) -> list[ir.Node]:
        stored = self.writer.constant(f"{name}_rounded", params.codes(array))
        return self._back(name, stored, self._scale(name, params))

    def _back(self, name: str, small: ir.Value, scale: ir.Value | None) -> list[ir.Node]:
        cast = self.writer.node("Cast", [small], f"{name}_Cast", to=int(ir.DataType.FLOAT))
        if scale is None:
            return [cast]
        return [cast, self.writer.node("Mul", [_shaped(cast, small, ir.DataType.FLOAT), scale], f"{name}_Mul")]

    def _scale(self, name: str, params: FloatParams) -> ir.Value | None:
        if params.scale == 1.0:
            return None
        return self.writer.constant(f"{name}_scale", np.array(params.scale, np.float32))


@dataclass(frozen=True, eq=False)
class BlockWriter:
    """Writes one node for each value in a block format."""

    writer: GraphWriter
    family: Family

    def activation(self, name: str, value: ir.Value, params: BlockParams) -> list[ir.Node]:
        op_type: str = getattr(self.family, params.format.kind)
        attributes = params.format.attributes(params.axis)
        return [self.writer.node(op_type, [value], f"{name}_{op_type}", self.family.domain, **attributes)]

    def constant(self, name: str, array: npt.NDArray[np.float32], params: BlockParams) -> list[ir.Node]:
        """Store the constant as it is, and make the node that rounds it."""
        return self.activation(name, self.writer.constant(f"{name}_float", array), params)


@dataclass(frozen=True, eq=False)
class FixNeuronWriter:
    """Writes one FixNeuron for each value of integers with a power-of-two scale."""

    writer: GraphWriter

    def activation(self, name: str, value: ir.Value, params: QuantParams) -> list[ir.Node]:
        return [self.node(name, value, stored_params(params), params.format.bits, pos=str(params.position))]

    def constant(self, name: str, array: npt.NDArray[np.float32], params: QuantParams) -> list[ir.Node]:
        """Store the constant rounded, and make the node."""
        rounded = params.snap(array).astype(np.float32)
        return self.activation(name, self.writer.constant(f"{name}_rounded", rounded), params)

    def node(self, name: str, value: ir.Value, params: LinearParams, bits: int, **attributes: str) -> ir.Node:
        """Make a FixNeuron with parameters of its own."""
        scale = self.writer.constant(f"{name}_scale", params.scale)
        inputs = [value, scale, self.writer.constant(f"{name}_zero_point", params.zero_point)]
        called, domain = FIX_NEURON.fix_neuron, FIX_NEURON.domain
        return self.writer.node(called, inputs, f"{name}_{called}", domain, bit_width=str(bits), **attributes)


def stored_params(params: Params) -> LinearParams:
    """Return parameters of the plan as a file holds them: a float32 scale, and a zero point of the codes' type."""
    zero_point = np.asarray(params.zero_point).astype(params.format.storage)
    axis = 1 if params.axis is None else params.axis
    return LinearParams(np.asarray(params.scale, np.float32), zero_point, axis, params.block)


def retarget(graph: ir.Graph, node: ir.Node, family: Family, params: LinearParams, names: Names) -> None:
    """Make a Q or DQ node one of another family, in place; names of values stay."""
    node.op_type = family.quantize if quantize_family(node) is not None else family.dequantize
    node.domain, node.overload = family.domain, ""
    if params.per_tensor:
        node.attributes.pop("axis", None)  # it means nothing here, and operators of old opsets do not have it
    if input_at(node, 2) is None and family is not STANDARD:  # only the standard operators have a default
        node.resize_inputs(3)
        zeros = np.zeros_like(params.zero_point)
        node.replace_input_with(2, add_initializer(graph, names.fresh(f"{node.outputs[0].name}_zero_point"), zeros))


def _shaped(node: ir.Node, like: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """Return the node's output, with the shape of another value and a type."""
    output = node.outputs[0]
    output.shape = like.shape
    if dtype is not None:
        output.type = ir.TensorType(dtype)
    return output
