"""The float network inside a quantized model, whoever wrote it, and the codes that each of its values has.

Pairs of quantizing nodes disappear: readers of a rounded value read the value itself, and its codes are recorded. A
weight that is stored as codes becomes a float constant of the same name. What remains is the network as its author knew
it, and questions about a node (is its result quantized, at which position?) become questions about its values.

| in the file                                              | becomes                                          |
| -------------------------------------------------------- | ------------------------------------------------ |
| x -> Quantize -> Dequantize -> readers (any family)      | x -> readers, x has codes                        |
| integer constant -> Dequantize -> readers                | a float constant with codes -> readers           |
| x -> FixNeuron, BFP- or MXQuantizeDequantize -> readers  | x -> readers, x has codes                        |
| Cast from one float type to another                      | nothing; x has codes of a 16-bit float           |
| a second pair with another scale                         | an Identity, whose output has the second codes   |
| QLinearConv and the like, and what moves their codes     | the float operator; its values have codes        |
| codes that anything else computes                        | left as it is                                    |

Operators on codes are written out first: each is the float operator between DequantizeLinear (DQ) and QuantizeLinear
(Q) that it stands for.

    QLinearConv(x, s_x, z_x, w, s_w, z_w, s_y, z_y, b)
        = Q(Conv(DQ(x, s_x, z_x), DQ(w, s_w, z_w), DQ(b, s_x s_w)), s_y, z_y)

Operators that only move values (Reshape, MaxPool, Concat with one scale, Clip between two codes) may read codes too:
they are put between DQ and Q as well, with the scale and zero point of their input. So all scales are where they are in
a Q/DQ file. Operators without a form in `ON_CODES`, or with scales that are computed, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import Names, add_initializer, constant, input_at, is_standard, take_over, tensor_of
from detent.qdq import families
from detent.qdq.reader import LinearParams, dequantized, params_of

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True, eq=False)
class ValueCodes:
    """How one value is stored: the type of its codes, scale and zero point if any, and the operator that rounds it."""

    dtype: str
    linear: LinearParams | None
    operator: str
    domain: str

    @property
    def per_tensor(self) -> bool:
        """Whether there is at most one scale."""
        return self.linear is None or self.linear.per_tensor

    @property
    def position(self) -> int | None:
        """The p of the one power-of-two scale 2^-p; None for any other scale."""
        return None if self.linear is None else self.linear.position

    @property
    def zero_points(self) -> npt.NDArray[np.int64]:
        return np.zeros(1, np.int64) if self.linear is None else self.linear.zero_point.reshape(-1).astype(np.int64)

    def same_as(self, other: ValueCodes) -> bool:
        """Return whether both codes hold the same numbers."""
        if self.linear is None or other.linear is None:
            return self.linear is other.linear and self.dtype == other.dtype
        return self.linear.same_as(other.linear)


@dataclass(frozen=True, eq=False)
class QuantizedNetwork:
    """A float network, and the codes of its values by name.

    `written` maps the name of a float node to the operator on codes that it replaces.
    """

    model: ir.Model
    codes: Mapping[str, ValueCodes]
    written: Mapping[str, families.OperatorName] = field(default_factory=dict)

    @property
    def quantized(self) -> bool:
        return bool(self.codes)


def read_codes(model: ir.Model) -> QuantizedNetwork:
    """Take the quantizing nodes out of a copy of `model`."""
    reader = _Reader(model.clone())
    written = _write_out(reader.model)
    for node in tuple(reader.graph):
        reader.visit(node)
    reader.drop_unread()
    return QuantizedNetwork(reader.model, reader.codes, written)


class _Reader:
    """Takes quantizing nodes out of a model, in topological order."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.codes: dict[str, ValueCodes] = {}

    def visit(self, node: ir.Node) -> None:
        """Take one node out if it quantizes."""
        source = node.inputs[0] if node.inputs else None
        if source is None:
            return
        if families.dequantize_family(node) is not None:
            self._dequantize(node)
        elif families.is_fix_neuron(node):
            linear = params_of(node)
            dtype = "" if linear is None else linear.dtype.name
            self._join(node, source, ValueCodes(dtype, linear, node.op_type, node.domain))
        elif families.is_block_format(node):
            self._join(node, source, ValueCodes("blocks", None, node.op_type, node.domain))
        elif is_standard(node, "Cast"):
            self._cast(node, source)

    def drop_unread(self) -> None:
        """Remove quantizing nodes whose codes nothing reads any more."""
        # Backwards, so that a node is looked at after all its readers are gone.
        for node in reversed(tuple(self.graph)):
            output = node.outputs[0]
            if families.quantize_family(node) is not None and not output.uses() and not output.is_graph_output():
                self.graph.remove(node, safe=True)

    def _dequantize(self, node: ir.Node) -> None:
        read = dequantized(node)
        # A scale that is computed (dynamic quantization) is part of the network, not a description of it.
        if read is None or read.params is None:
            return
        params = read.params
        if read.quantize is not None and read.source is not None:
            codes = ValueCodes(params.dtype.name, params, read.quantize.op_type, node.domain)
            self._join(node, read.source, codes)
        elif tensor_of(read.codes) is not None:
            self._store(node, read.codes, params)

    def _cast(self, node: ir.Node, source: ir.Value) -> None:
        """Take out a Cast between float types, which does nothing but round."""
        target = ir.DataType(node.attributes.get_int("to", 0))
        before = source.dtype
        if target not in _FLOATS or before not in _FLOATS:
            return
        half = target if target in _HALVES else before if before in _HALVES else None
        codes = None if half is None else ValueCodes(half.name.lower(), None, "Cast", "")
        self._join(node, source, codes or self.codes.get(str(source.name)))

    def _store(self, node: ir.Node, stored: ir.Value, linear: LinearParams) -> None:
        """Replace codes and the node that decodes them by a float constant, which is decoded on its first use."""
        tensor, output = tensor_of(stored), node.outputs[0]
        assert tensor is not None
        name, held, shape = str(output.name), tensor, ir.Shape(tensor.shape.numpy())

        def decode() -> ir.TensorProtocol:
            return ir.tensor(linear.decode(held.numpy()).astype(np.float32))

        # Decoded lazily: the device check reads types and shapes alone, and decoding all weights of a large model
        # would cost seconds and four times its memory.
        decoded = ir.LazyTensor(decode, dtype=ir.DataType.FLOAT, shape=shape, name=name)
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=decoded)
        output.replace_all_uses_with(value, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        self.graph.register_initializer(value)
        self.codes[name] = ValueCodes(linear.dtype.name, linear, node.op_type, node.domain)

    def _join(self, node: ir.Node, source: ir.Value, codes: ValueCodes | None) -> None:
        """Let the readers of a rounded value read the value itself."""
        output, known = node.outputs[0], self.codes.get(str(source.name))
        named = source.is_graph_input() or source.is_initializer() or source.is_graph_output()
        changed = known is not None and codes is not None and not known.same_as(codes)
        # One value can have neither two names that users see nor two kinds of codes.
        if changed or (output.is_graph_output() and named):
            self._convert(node, source, codes)
            return
        if output.is_graph_output():
            self.codes.pop(str(source.name), None)
            output.replace_all_uses_with(source, replace_graph_outputs=True)
            source.name = output.name
        else:
            output.replace_all_uses_with(source)
        self.graph.remove(node, safe=True)
        self._note(source, codes)

    def _note(self, value: ir.Value, codes: ValueCodes | None) -> None:
        if codes is not None:
            self.codes[str(value.name)] = codes

    def _convert(self, node: ir.Node, source: ir.Value, codes: ValueCodes | None) -> None:
        """Leave an Identity, which stands for the change from one kind of codes to another."""
        identity = ir.node("Identity", [source], name=node.name)
        self.graph.insert_before(node, identity)
        take_over(node.outputs[0], identity.outputs[0])
        self.graph.remove(node, safe=True)
        self._note(identity.outputs[0], codes)


# Suffixes that other tools add to the name of a float value to name its codes.
_SUFFIXES = ("_QuantizeLinear_Output", "_quantized")

_CODED_NUMBERS = {"Clip": (1, 2), "Pad": (2,)}  # inputs that are codes without a scale of their own

_MOVING = (*families.MOVES_CODES, "MaxPool", "Resize", "Concat", *_CODED_NUMBERS)
_NOT_THEIRS = ("opset", "channels_last")  # attributes that float operators do not have


@dataclass(frozen=True, eq=False)
class _Scale:
    scale: ir.Value | None
    zero_point: ir.Value | None

    @property
    def linear(self) -> LinearParams | None:
        scale, zero_point = constant(self.scale), constant(self.zero_point)
        return None if scale is None or zero_point is None else LinearParams(scale, zero_point)


def _write_out(model: ir.Model) -> dict[str, families.OperatorName]:
    """Replace operators on codes in the main graph, in place; return the replaced operators by the name of the node."""
    work = _WriteOut(model)
    for node in tuple(model.graph):
        work.visit(node)
    return work.written


class _WriteOut:
    """Replaces operators on codes by float operators between Q and DQ, in topological order."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.written: dict[str, families.OperatorName] = {}
        self._names = Names(model)
        self._scales: dict[ir.Value, _Scale] = {}

    def visit(self, node: ir.Node) -> None:
        """Replace one node if it works on codes."""
        form = families.on_codes(node)
        if form is not None:
            self._compute(node, form)
        elif is_standard(node, *_MOVING):
            self._move(node)
        elif families.quantize_family(node) is not None:
            self._scales[node.outputs[0]] = _scale_at(node, 1)

    def _compute(self, node: ir.Node, form: families.OnCodes) -> None:
        operands = form.operands or tuple(range(2, len(node.inputs), 3))
        grids, result = [_scale_at(node, index + 1) for index in operands], _scale_at(node, form.result)
        scales = [constant(grid.scale) for grid in (*grids, result)]
        known = [scale for scale in scales if scale is not None]
        # Scales that are computed, or the layout of onnxruntime's optimizer: the operator stays, and the device check
        # reports it.
        if len(known) < len(scales) or node.attributes.get_int("channels_last", 0) != 0:
            return
        inputs: list[ir.Value | None] = [input_at(node, index) for index in form.plain]
        for number, (index, grid) in enumerate(zip(operands, grids, strict=True)):
            inputs.append(self._decoded(node, input_at(node, index), grid, _channel_axis(node) if number else 1))
        bias = None if form.bias is None else input_at(node, form.bias)
        if bias is not None:
            # The bias of QGemm and QLinearConv has no scale of its own: by definition it has the scale of the products.
            unit = np.float32(node.attributes.get_float("alpha", 1.0)) * known[0] * known[1]
            scale = add_initializer(self.graph, self._names.fresh(f"{bias.name}_scale"), np.asarray(unit, np.float32))
            inputs.append(self._decoded(node, bias, _Scale(scale, None), axis=0))
        self.written[str(node.name)] = families.OperatorName.of(node)
        self._replace(node, form.op_type, inputs, result)

    def _move(self, node: ir.Node) -> None:
        grid = next((self._scales[value] for value in node.inputs if value is not None and value in self._scales), None)
        linear = None if grid is None else grid.linear
        if grid is None or linear is None or not linear.per_tensor:
            return
        inputs = list(node.inputs)
        for index, value in enumerate(node.inputs):
            codes = constant(value) if index in _CODED_NUMBERS.get(node.op_type, ()) else None
            if codes is not None:
                name = self._names.fresh(f"{node.name}/number")
                inputs[index] = add_initializer(self.graph, name, linear.decode(codes))
            # A Concat may join codes with a constant of codes, which has no node that names a scale.
            elif value is not None and (value in self._scales or node.op_type == "Concat"):
                inputs[index] = self._decoded(node, value, grid)
        self._replace(node, node.op_type, inputs, grid)

    def _decoded(self, node: ir.Node, codes: ir.Value | None, grid: _Scale, axis: int = 1) -> ir.Value | None:
        if codes is None:
            return None
        decode = ir.node("DequantizeLinear", [codes, grid.scale, grid.zero_point], {"axis": axis})
        self.graph.insert_before(node, decode)
        return self._float(decode.outputs[0], codes)

    def _replace(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], grid: _Scale) -> None:
        """Replace a node by the float operator on these inputs, and quantize its results to the node's codes."""
        attributes = [each for name, each in node.attributes.items() if name not in _NOT_THEIRS]
        floats = ir.Node("", op_type, inputs, attributes, name=node.name, num_outputs=len(node.outputs))
        self.graph.insert_before(node, floats)
        for codes, result in zip(node.outputs, floats.outputs, strict=True):
            if codes.dtype == ir.DataType.INT64:  # the indices that MaxPool gives
                take_over(codes, result)
                continue
            self._float(result, codes)
            encode = ir.node("QuantizeLinear", [result, grid.scale, grid.zero_point])
            self.graph.insert_before(node, encode)
            take_over(codes, encode.outputs[0])
            self._scales[encode.outputs[0]] = grid
        self.graph.remove(node, safe=True)

    def _float(self, value: ir.Value, codes: ir.Value) -> ir.Value:
        """Give a value the name and type of the float tensor that these codes stand for."""
        name = str(codes.name)
        # onnxruntime's quantizer names codes after the float tensor, which is the name that users know.
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        value.name, value.type, value.shape = self._names.fresh(name), ir.TensorType(ir.DataType.FLOAT), codes.shape
        return value


def _scale_at(node: ir.Node, index: int) -> _Scale:
    return _Scale(input_at(node, index), input_at(node, index + 1))


def _channel_axis(node: ir.Node) -> int:
    """Return the axis of a layer's second factor along which a scale for each channel lies."""
    if node.op_type == "QGemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return 0 if node.op_type == "QLinearConv" else -1
