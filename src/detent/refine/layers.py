"""The layers that can be refined: a product with a constant, quantized weight that no other node reads.

Whatever the operator, a layer's input and output are looked at as maps: (batch, channels, positions). The rows of a
Gemm or MatMul are a batch of maps with one position.

The rows of a layer's matrix are its input as each sampled output position sees it. For an output position o and a
kernel offset k, with stride s, dilation d and padding p at the start of an axis,

    Conv reads the input at             o * s - p + k * d
    ConvTranspose reads it at           (o + p - k * d) / s          if that is a whole number

and outside of the input both read zero. A Gemm's row has one position and one offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.execute.quantized_walk import PRODUCTS
from detent.graph.values import constant, constant_scalar, is_constant
from detent.numerics.compiled import compiled
from detent.numerics.formats import Array, QuantParams, holds_integers
from detent.numerics.interface import Params
from detent.plan.layout import Layout, Role, bias_input
from detent.plan.plan import Plan
from detent.refinements.activations import Activation, Curve, Gate, TwoGates
from detent.refinements.layer_problem import Floats

Indices = npt.NDArray[np.int64]
OUTSIDE = -1  # in the padding
_GATES = ("Sigmoid", "HardSigmoid", "HardSwish")
SCALE_RULE = "rounding"  # how the plan's moves name a scale of weights that was changed here


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    `before` and `after` are errors of its output, after its activation and on samples that were held out, relative to
    the mean square of the float output. None if the layer was left as it was and not measured.
    """

    name: str
    op_type: str
    method: str
    before: float | None = None
    after: float | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class MatrixLayer:
    """A layer: its node, its weight, and its bias if that is one number per channel and may be changed.

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
    def constants(self) -> list[str]:
        """The names of the constants that may be changed."""
        return [str(value.name) for value in (self.weight, self.bias) if value is not None]

    @property
    def convolves(self) -> bool:
        """Whether it is a convolution of either kind."""
        return self.node.op_type in ("Conv", "ConvTranspose")

    @property
    def groups(self) -> int:
        """The number of groups; 1 for all but convolutions."""
        return self.node.attributes.get_int("group", 1) if self.convolves else 1

    @property
    def channels(self) -> int:
        """The number of output channels, of all groups."""
        groups, channels, _ = self.shape
        return groups * channels

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the matrix: groups, channels of each, inputs of each channel."""
        assert self.weight.const_value is not None, f"layer '{self.name}' has a constant weight"
        sizes, groups = self.weight.const_value.shape.numpy(), self.groups
        if self.node.op_type == "Conv":
            return groups, sizes[0] // groups, math.prod(sizes[1:])
        if self.node.op_type == "ConvTranspose":
            return groups, sizes[1], sizes[0] // groups * math.prod(sizes[2:])
        return (1, sizes[0], sizes[1]) if self._transposed else (1, sizes[1], sizes[0])

    def maps(self, array: Array) -> Array:
        """Return an input or output of the layer as (batch, channels, positions)."""
        if self.convolves:
            return array.reshape(*array.shape[:2], -1)
        return array.reshape(-1, array.shape[-1], 1)

    def matrix(self) -> Floats:
        """Return the weight as (groups, channels, inputs)."""
        return self.as_matrix(np.asarray(constant(self.weight)))

    def as_matrix(self, tensor: Array) -> Floats:
        """Return an array in the shape of the weight as (groups, channels, inputs)."""
        weight = np.asarray(tensor, np.float64)
        if self.node.op_type == "Conv":
            return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)
        if self.node.op_type == "ConvTranspose":
            split = weight.reshape(self.groups, weight.shape[0] // self.groups, weight.shape[1], -1)
            return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(self.groups, weight.shape[1], -1)
        return np.ascontiguousarray(weight if self._transposed else weight.T)[None]

    def tensor(self, matrix: Floats) -> npt.NDArray[np.float32]:
        """Return a matrix (groups, channels, inputs) in the shape of the weight."""
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


@dataclass(frozen=True, eq=False)
class LayerChange:
    """What a refinement made of a layer, as a value: its report, the numbers that replace those of its weight and bias,
    and the scale of its weights if that is another one.

    A change is complete: applied to the same plan by another run, it gives the same bytes.
    """

    report: LayerReport
    refined: Mapping[str, npt.NDArray[np.float32]]
    scale: Floats | None = None

    @classmethod
    def since(cls, before: Params, layer: MatrixLayer, plan: Plan, report: LayerReport) -> LayerChange:
        """Return what changed in a plan, in which the layer's weight had the parameters `before`."""
        after = plan.of(str(layer.weight.name))
        refined = {name: plan.refined[name] for name in layer.constants if name in plan.refined}
        return cls(report, refined, after.scale if holds_integers(after) and after is not before else None)

    def apply(self, layer: MatrixLayer, plan: Plan) -> Plan:
        """Return the plan with the change."""
        if self.scale is not None:
            plan = adopt_scale(replace(plan.integers(str(layer.weight.name)), scale=self.scale), layer, plan)
        return plan.with_refined(self.refined)


def adopt_scale(other: QuantParams, layer: MatrixLayer, plan: Plan) -> Plan:
    """Return the plan with another scale for the weights of a layer."""
    name = str(layer.weight.name)
    if other.format.power_of_two and other.axis is None:
        return plan.with_position(name, other.position, SCALE_RULE, layer.name)
    return plan.with_params(name, other, SCALE_RULE, layer.name)


def find_layers(model: ir.Model, layout: Layout) -> tuple[dict[ir.Node, MatrixLayer], list[LayerReport]]:
    """Find the layers of the main graph, and why the other products with a quantized weight are left as they are."""
    layers: dict[ir.Node, MatrixLayer] = {}
    left: list[LayerReport] = []
    for node in model.graph:
        if node.op_type not in PRODUCTS or not layout.quantizes(node):
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
        layers[node] = MatrixLayer(node, weight, None if note else bias, note)
    return layers, left


def activation_of(layer: MatrixLayer, layout: Layout) -> Activation:
    """Return what is fused behind a layer. A function that is not an `Activation`, such as PRelu, is ignored."""
    value = layer.node.outputs[0]
    readers = value.consumers()
    # An own site means that the value is rounded before the function behind it: nothing is fused.
    if value.name in layout.sites or len(readers) != 1:
        return Activation()
    reader = readers[0]
    if reader.op_type == "Relu":
        return Activation(0.0)
    if reader.op_type == "LeakyRelu":
        return Activation(0.0, slope=reader.attributes.get_float("alpha", 0.01))
    if reader.op_type == "Clip":
        # A Clip without a bound does not clip on that side.
        low, high = constant_scalar(reader, 1), constant_scalar(reader, 2)
        return Activation(-np.inf if low is None else low, np.inf if high is None else high)
    return Activation()


def curves_of(layer: MatrixLayer, layout: Layout, reference: Mapping[str, ir.Node]) -> tuple[Curve, Curve]:
    """Return the activations behind a layer in the float model and in the quantized one."""
    fused = activation_of(layer, layout)
    return gates_of(layer, layout, reference) or (fused, fused)


def gates_of(layer: MatrixLayer, layout: Layout, reference: Mapping[str, ir.Node]) -> tuple[Curve, Curve] | None:
    """Return the gates behind a layer in the float model and in the quantized one; None if there are none.

    They differ if the device has no Sigmoid. `reference` are the nodes of the float model, by name.
    """
    readers = layer.node.outputs[0].consumers()
    pair = _two_gates(readers, reference)
    if pair is not None:
        return Gate(gated=True), pair
    gates = [reader for reader in readers if reader.op_type in _GATES]
    # With two gates the layer's answers have two meanings, and one correction cannot serve both.
    if not activation_of(layer, layout).changes_nothing or len(gates) != 1:
        return None
    (gate,) = gates
    others = [reader for reader in readers if reader is not gate]
    if others and not (len(others) == 1 and others[0].op_type == "Mul" and _result_of(gate) in others[0].inputs):
        return None
    # A rewrite for the device keeps the node's name, so the float curve is found by it.
    origin = reference.get(str(gate.name), gate)
    return _gate(origin, bool(others)), _gate(gate, bool(others))


def _two_gates(readers: Sequence[ir.Node], reference: Mapping[str, ir.Node]) -> TwoGates | None:
    """Return the two gates that a SiLU of the float model became (see `devices.two_gates`); None if there are none."""
    gates = [
        (factor, gate)
        for reader in readers
        if reader.op_type == "Mul" and (factor := constant_scalar(reader, 1)) is not None
        for gate in reader.outputs[0].consumers()
        if gate.op_type == "HardSigmoid"
    ]
    origins = [reference[str(gate.name)] for _, gate in gates if str(gate.name) in reference]
    if len(gates) != 2 or len(readers) != 3 or [origin.op_type for origin in origins] != ["Sigmoid"]:
        return None
    return TwoGates(gates[0][0], gates[1][0])


def _gate(node: ir.Node, gated: bool) -> Gate:
    if node.op_type == "HardSigmoid":
        alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        return Gate(gated, hard=True, alpha=alpha, beta=beta)
    return Gate(gated or node.op_type == "HardSwish", hard=node.op_type == "HardSwish")


def _result_of(gate: ir.Node) -> ir.Value:
    """Return what a gate answers, after the factor that stands for the device's own arithmetic."""
    readers = gate.outputs[0].consumers()
    factors = [reader for reader in readers if reader.op_type == "Mul" and any(map(is_constant, reader.inputs))]
    return factors[0].outputs[0] if len(factors) == len(readers) == 1 else gate.outputs[0]


def _unusual(node: ir.Node, weight: ir.Value) -> str | None:
    """Say why a product is not one of rows with a matrix of its own, or return None."""
    # Codes that suit one layer's inputs may harm the other's.
    if len(weight.uses()) > 1:
        return f"its weight '{weight.name}' is read by other nodes too"
    if weight.is_graph_output():
        return f"its weight '{weight.name}' is a graph output"
    # A stack of matrices meets other inputs in each of them.
    if node.op_type == "MatMul" and (array := constant(weight)) is not None and array.ndim != 2:
        return "its weight is not a matrix"
    if node.op_type != "Gemm":
        return None
    # Preparation folds these where it can; what is left is rare, and a factor would enter every formula.
    plain = node.attributes.get_float("alpha", 1.0) == 1.0 and node.attributes.get_float("beta", 1.0) == 1.0
    return None if plain and not node.attributes.get_int("transA", 0) else "a Gemm with alpha, beta or transA"


def _fixed_bias(node: ir.Node, bias: ir.Value | None, weight: ir.Value, layout: Layout) -> str:
    """Say why the layer's bias cannot take a correction, or return an empty text."""
    if bias is None:
        return "no bias"
    site = layout.sites.get(str(bias.name))
    if not is_constant(bias) or (site is not None and site.role is not Role.BIAS):
        return "its bias is not a constant"
    if len(bias.uses()) > 1:
        return f"its bias '{bias.name}' is read by other nodes too"
    if site is None and bias.is_graph_output():
        return f"its bias '{bias.name}' is a graph output"
    array = np.asarray(constant(bias))
    return "" if array.size == MatrixLayer(node, weight, bias).channels else "its bias is not one number per channel"


def sample_positions(count: int, wanted: int, seed: Sequence[int], hot: Indices | None = None) -> Indices:
    """Draw some of `count` positions, in order; all of them if no more are wanted. Half of them are from `hot` ones."""
    if count <= wanted:
        return np.arange(count)
    # Sorted, so that memory is read forwards; the seed is fixed, so that a run can be repeated to the byte.
    random = np.random.default_rng(seed)
    if hot is None or not hot.size:
        return np.sort(random.choice(count, wanted, replace=False))
    chosen = np.sort(random.choice(hot, min(hot.size, wanted // 2), replace=False))
    # The others by their number among those not chosen: before each of them are as many chosen ones as it has to skip.
    others = random.choice(count - chosen.size, wanted - chosen.size, replace=False)
    return np.sort(np.append(chosen, others + np.searchsorted(chosen - np.arange(chosen.size), others, side="right")))


def positions_inside(boxes: Sequence[npt.NDArray[np.floating]], shape: Sequence[int]) -> Indices | None:
    """Return the positions of a map that lie in boxes; None if it is not a map over images.

    `boxes` has the corners x1, y1, x2, y2 of all objects of each image of the batch, as shares of its sides.
    """
    if len(shape) != 4 or len(boxes) != shape[0]:
        return None
    inside = np.zeros((shape[0], *shape[2:]), np.bool_)
    for image, corners in zip(inside, boxes, strict=True):
        height, width = image.shape
        ends = np.clip(corners * np.array([width, height] * 2), 0, [width, height] * 2)
        for left, top, right, bottom in ends.tolist():
            image[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))] = True
    return np.flatnonzero(inside)


def take_rows(maps: Array, positions: Indices) -> npt.NDArray[np.float32]:
    """Return the channels of (batch, channels, positions) at positions that are counted over the whole batch."""
    image, where = np.divmod(positions, maps.shape[2])
    return np.asarray(maps[image, :, where], np.float32)


def why_no_rows(layer: MatrixLayer) -> str | None:
    """Say why the input positions of a layer are not known, or return None."""
    attributes = layer.node.attributes
    if layer.node.op_type != "ConvTranspose":
        return None
    if attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in attributes:
        return "a ConvTranspose with automatic padding"
    return None


def input_indices(
    layer: MatrixLayer, source: Sequence[int], result: Sequence[int], positions: Indices
) -> tuple[Indices, Indices]:
    """Return for each position the image of the batch, and for each kernel offset the input position, or OUTSIDE.

    `source` and `result` are the shapes of the layer's input and output.
    """
    if not layer.convolves:
        return positions, np.zeros((len(positions), 1), np.int64)
    sizes, spatial = source[2:], result[2:]
    image, where = np.divmod(positions, int(np.prod(spatial)))
    at = np.array(np.unravel_index(where, spatial)).reshape(len(spatial), -1)
    kernel = np.asarray(constant(layer.weight)).shape[2:]
    offsets = np.indices(kernel).reshape(len(kernel), -1)
    strides, dilations = (_per_axis(layer, name, [1] * len(kernel)) for name in ("strides", "dilations"))
    pads = _first_pads(layer, sizes, spatial, [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)])
    flat = np.zeros((len(positions), offsets.shape[1]), np.int64)
    inside = np.ones(flat.shape, bool)
    for axis, size in enumerate(sizes):
        offset = offsets[axis] * dilations[axis]
        if layer.node.op_type == "Conv":
            index = at[axis][:, None] * strides[axis] - pads[axis] + offset
        else:
            index, rest = np.divmod(at[axis][:, None] + pads[axis] - offset, strides[axis])
            # Between two strides a ConvTranspose reads the zeros that it inserts.
            inside &= rest == 0
        inside &= (index >= 0) & (index < size)
        flat = flat * size + index
    return image, np.where(inside, flat, OUTSIDE)


def _per_axis(layer: MatrixLayer, name: str, default: list[int]) -> Sequence[int]:
    return layer.node.attributes.get_ints(name, default) or default


def _first_pads(
    layer: MatrixLayer, sizes: Sequence[int], spatial: Sequence[int], windows: Sequence[int]
) -> Sequence[int]:
    """Return the padding at the start of each axis; for SAME it follows from the number of outputs."""
    mode = layer.node.attributes.get_string("auto_pad", "NOTSET")
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return [0] * len(sizes) if mode == "VALID" else _per_axis(layer, "pads", [0] * 2 * len(sizes))
    strides = _per_axis(layer, "strides", [1] * len(sizes))
    zipped = zip(sizes, spatial, strides, windows, strict=True)
    totals = [max((outputs - 1) * stride + window - size, 0) for size, outputs, stride, window in zipped]
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]


def float_rows(
    layer: MatrixLayer, source: npt.NDArray[np.float32], result: Sequence[int], positions: Indices
) -> npt.NDArray[np.float32]:
    """Return the rows (groups, positions, inputs) of an input that is not encoded."""
    image, indices = input_indices(layer, source.shape, result, positions)
    rows = np.empty((layer.groups, len(positions), layer.shape[2]), np.float32)
    gather(layer.maps(source), np.float32(1.0), np.float32(0.0), image, indices, rows, 0)
    return rows


@compiled
def gather(
    maps: npt.NDArray[Any],
    scale: np.float32,
    zero_point: np.float32,
    image: Indices,
    indices: Indices,
    rows: npt.NDArray[np.float32],
    first: int,
) -> None:
    """Decode the input (batch, channels, positions) at `indices` into rows (groups, positions, inputs) from `first`."""
    groups, _, inputs = rows.shape
    count, offsets = indices.shape
    channels = inputs // offsets
    for g in range(groups):
        for p in range(count):
            for c in range(channels):
                for k in range(offsets):
                    at = indices[p, k]
                    if at < 0:
                        rows[g, first + p, c * offsets + k] = 0.0
                    else:
                        code = np.float32(maps[image[p], g * channels + c, at])
                        rows[g, first + p, c * offsets + k] = (code - zero_point) * scale
