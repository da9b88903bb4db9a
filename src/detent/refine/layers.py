"""The layers that can be refined: a product with a constant, quantized weight that no other node reads.

Whatever the operator, a layer's input and output are looked at as maps: (batch, channels, positions). The rows of a
Gemm or MatMul are a batch of maps with one position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, constant_scalar, is_constant
from detent.plan.layout import Layout, Role, bias_input
from detent.refine.codes import Array
from detent.refine.problem import Activation

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PRODUCTS = (*_CONVOLUTIONS, "Gemm", "MatMul")


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    `before` and `after` are errors of its output relative to the mean square of the float output: of the channel means
    for bias correction, else of the output after its activation on samples that were held out. None where the layer
    was left as it was and not measured.
    """

    name: str
    op_type: str
    method: str
    before: float | None = None
    after: float | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer: its node, its weight, and its bias where it has one of a number per channel that may be changed.

    `note` says why the bias may not.
    """

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    note: str = ""

    @property
    def name(self) -> str:
        """The name of the node."""
        return str(self.node.name)

    @property
    def output(self) -> str:
        """The value before any activation."""
        return str(self.node.outputs[0].name)

    @property
    def input(self) -> str:
        """The value that is multiplied with the weight."""
        assert self.node.inputs[0] is not None, f"layer '{self.name}' has no input"
        return str(self.node.inputs[0].name)

    @property
    def convolves(self) -> bool:
        """Whether it is a convolution of either kind."""
        return self.node.op_type in _CONVOLUTIONS

    @property
    def groups(self) -> int:
        """The number of groups; 1 for all but convolutions."""
        return self.node.attributes.get_int("group", 1) if self.convolves else 1

    @property
    def channels(self) -> int:
        """The number of output channels, of all groups."""
        groups, channels, _ = self.matrix().shape
        return int(groups * channels)

    def maps(self, array: Array) -> Array:
        """An input or output of the layer as (batch, channels, positions)."""
        if self.convolves:
            return array.reshape(*array.shape[:2], -1)
        return array.reshape(-1, array.shape[-1], 1)

    def matrix(self) -> npt.NDArray[np.float64]:
        """The weight as (groups, channels, inputs)."""
        return self.as_matrix(np.asarray(constant(self.weight)))

    def as_matrix(self, tensor: Array) -> npt.NDArray[np.float64]:
        """An array in the shape of the weight as (groups, channels, inputs)."""
        weight = np.asarray(tensor, np.float64)
        if self.node.op_type == "Conv":
            return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)
        if self.node.op_type == "ConvTranspose":
            split = weight.reshape(self.groups, weight.shape[0] // self.groups, weight.shape[1], -1)
            return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(self.groups, weight.shape[1], -1)
        return np.ascontiguousarray(weight if self._transposed else weight.T)[None]

    def tensor(self, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """A matrix (groups, channels, inputs) in the shape of the weight."""
        shape = np.asarray(constant(self.weight)).shape
        if self.node.op_type == "ConvTranspose":
            split = matrix.reshape(self.groups, shape[1], shape[0] // self.groups, -1)
            matrix = split.transpose(0, 2, 1, 3)
        elif not self.convolves and not self._transposed:
            matrix = matrix[0].T
        return np.ascontiguousarray(matrix, np.float32).reshape(shape)

    @property
    def _transposed(self) -> bool:
        return self.node.op_type == "Gemm" and bool(self.node.attributes.get_int("transB", 0))


def find_layers(model: ir.Model, layout: Layout) -> tuple[dict[ir.Node, Layer], list[LayerReport]]:
    """The layers of the main graph, and why the other products with a quantized weight are left as they are."""
    layers: dict[ir.Node, Layer] = {}
    left: list[LayerReport] = []
    for node in model.graph:
        if node.op_type not in _PRODUCTS or not layout.quantizes(node):
            continue
        weight = node.inputs[1]
        if weight is None or not is_constant(weight) or weight.name not in layout.sites:
            continue
        reason = _unusual(node, weight)
        if reason is not None:
            left.append(LayerReport(str(node.name), node.op_type, "as it was", note=reason))
            continue
        bias = bias_input(node)
        note = _fixed_bias(node, bias, weight, layout)
        layers[node] = Layer(node, weight, None if note else bias, note)
    return layers, left


def activation_of(layer: Layer, layout: Layout) -> Activation:
    """What is fused behind a layer. A function that is no `Activation`, such as PRelu, counts as none."""
    value = layer.node.outputs[0]
    readers = value.consumers()
    if value.name in layout.sites or len(readers) != 1:
        return Activation()
    reader = readers[0]
    if reader.op_type == "Relu":
        return Activation(0.0)
    if reader.op_type == "LeakyRelu":
        return Activation(0.0, slope=reader.attributes.get_float("alpha", 0.01))
    if reader.op_type == "Clip":
        low, high = constant_scalar(reader, 1), constant_scalar(reader, 2)
        return Activation(-np.inf if low is None else low, np.inf if high is None else high)
    return Activation()


def _unusual(node: ir.Node, weight: ir.Value) -> str | None:
    """Why a product is not one of rows with a matrix of its own, or None."""
    if len(weight.uses()) > 1:
        return f"its weight '{weight.name}' is read by other nodes too"
    if weight.is_graph_output():
        return f"its weight '{weight.name}' is a graph output"
    if node.op_type == "MatMul" and (array := constant(weight)) is not None and array.ndim != 2:
        return "its weight is not a matrix"
    if node.op_type != "Gemm":
        return None
    plain = node.attributes.get_float("alpha", 1.0) == 1.0 and node.attributes.get_float("beta", 1.0) == 1.0
    return None if plain and not node.attributes.get_int("transA", 0) else "a Gemm with alpha, beta or transA"


def _fixed_bias(node: ir.Node, bias: ir.Value | None, weight: ir.Value, layout: Layout) -> str:
    """Why the layer's bias cannot take a correction, or nothing."""
    if bias is None:
        return "no bias"
    site = layout.sites.get(str(bias.name))
    if not is_constant(bias) or (site is not None and site.role is not Role.BIAS):
        return "its bias is no constant"
    if len(bias.uses()) > 1:
        return f"its bias '{bias.name}' is read by other nodes too"
    if site is None and bias.is_graph_output():
        return f"its bias '{bias.name}' is a graph output"
    array = np.asarray(constant(bias))
    return "" if array.size == Layer(node, weight, bias).channels else "its bias is not one number per channel"
