"""Steps on quantizing operators: to another family of them, to float, to operators on codes, to another opset.

Families differ in names and in the types that they hold, never in arithmetic, so a node only changes its operator.
FixNeuron, which quantizes and dequantizes at once, is taken apart into a pair; a constant behind it is stored as codes.
Operators that ONNX does not have bring model-local functions along, so that the result runs on plain onnxruntime.

**To float.** Constant codes before a DequantizeLinear become the float numbers that they stand for: the weights stay
those that the quantized model computes with. A pair of QuantizeLinear and DequantizeLinear with the same parameters, or
a fused node, only rounds and saturates an activation: it is removed. So is a pair of Casts through bfloat16. An LSTM
with codes for weights, which rounds its data as it runs, becomes an LSTM with the numbers that they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from detent.convert.step import ConversionNotes, ConversionStep, GraphEdit, NodeStep, casts_to, readers_of
from detent.emit.qoperator_form import ToQOperator
from detent.errors import UsageError
from detent.graph.load import change_opset
from detent.graph.session import Runner
from detent.graph.values import Names, add_initializer, constant, cut_inputs, is_unused, made_by, take_over
from detent.prepare.base import main_opset
from detent.qdq import families
from detent.qdq.builder import FixNeuronWriter, GraphWriter, PairWriter, retarget
from detent.qdq.functions import add_functions, settle_domains, take_out_functions
from detent.qdq.reader import Array, Dequantized, LinearParams, code_range, dequantized, params_of

_BFLOAT16 = ir.DataType.BFLOAT16
_HALF = ("bfloat16", "float16")
_PER_AXIS_OPSET = 13  # the opset with which Q/DQ got an axis
_LEAST_OPSET = 7  # the oldest opset that onnxruntime takes
_LSTM_INPUTS = 8  # X, W, R, B, sequence_lens, initial_h, initial_c, P
_NOT_CONSTANT = "its scale or zero point is not constant"


def _family(node: ir.Node) -> families.Family | None:
    return families.quantize_family(node) or families.dequantize_family(node)


def _native(node: ir.Node, params: LinearParams, opset: int) -> families.Family | None:
    return families.native_family(params.dtype.name, opset, quantizes=families.quantize_family(node) is not None)


@dataclass(frozen=True)
class ToFamily(NodeStep):
    """Q/DQ of other domains and FixNeuron to the Q/DQ of one family; other operators of the tools are renamed."""

    family: families.Family
    nothing: ClassVar[str] = "it has no Q/DQ or FixNeuron of another kind."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        family, old = self.family, families.OperatorName.of(node)
        if families.is_fix_neuron(node):
            return _split_fix_neuron(edit, node, family)
        if _family(node) is None:
            if (name := families.twin_name(node, family)) is not None:
                edit.notes.changed(node, f"{old} became {family.domain}::{name}")
                node.op_type, node.domain, node.overload = name, family.domain, ""
            return None
        if node.domain == family.domain:
            return None
        params = params_of(node)
        if params is None:
            return _NOT_CONSTANT
        if not family.holds(params.dtype.name, edit.opset):
            return f"{family.quantize} does not hold {params.dtype.name}"
        if params.block_size and not family.has_blocks:
            return f"{family.quantize} has no blocks along an axis"
        retarget(edit.graph, node, family, params, edit.names)
        return edit.changed(node, f"{old} became {node.op_type}")


@dataclass(frozen=True)
class ToQdq(NodeStep):
    """Q/DQ of other families to Q/DQ of ONNX, and those of com.microsoft if ONNX's hold the type.

    The standard ones hold 16-bit codes since opset 21; before, their twins in com.microsoft do. No opset holds codes of
    bfloat16 or float16: with scale 1 and zero point 0 such a pair is equivalent to a pair of Casts, and becomes one.
    """

    nothing: ClassVar[str] = (
        "it has no FixNeuron, Vitis or Extended Q/DQ, nor Q/DQ in com.microsoft that the standard ones could replace."
    )

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        if families.is_fix_neuron(node):
            return _split_fix_neuron(edit, node, None)
        if families.is_block_format(node):
            return f"{node.op_type} has an exponent for each block, which Q/DQ cannot express"
        if _family(node) in (None, families.STANDARD):
            return None
        params, old = params_of(node), families.OperatorName.of(node)
        if params is None:
            return _NOT_CONSTANT
        if params.dtype.name in _HALF:
            return _to_cast(edit, node, params)
        family = _native(node, params, edit.opset)
        if family is None:
            return f"QuantizeLinear and DequantizeLinear of opset {edit.opset} do not hold {params.dtype.name}"
        if not params.per_tensor and edit.opset < _PER_AXIS_OPSET:
            return f"a scale for each channel needs opset 13 or newer, and the model has {edit.opset}"
        if family.domain == node.domain:
            return None
        retarget(edit.graph, node, family, params, edit.names)
        where = f" of {family.domain}" if family.domain else ""
        return edit.changed(node, f"{old} became {node.op_type}{where}")


def _to_cast(edit: GraphEdit, node: ir.Node, params: LinearParams) -> str | None:
    """Turn a Q or DQ of a 16-bit float into a Cast, if scale and zero point do nothing."""
    if (params.scale != 1).any() or np.asarray(params.zero_point, np.float32).any():
        return f"{params.dtype.name} with a scale or zero point is not a Cast, and Q/DQ do not hold it"
    target = ir.DataType.from_numpy(params.dtype if families.quantize_family(node) else params.scale.dtype)
    old = families.OperatorName.of(node)
    cut_inputs(node, 1)  # scale and zero point
    node.op_type, node.domain, node.overload = "Cast", "", ""
    node.attributes.clear()
    node.attributes["to"] = ir.AttrInt64("to", int(target))
    return edit.changed(node, f"{old} became Cast to {target}")


def _split_fix_neuron(edit: GraphEdit, node: ir.Node, family: families.Family | None) -> str | None:
    """Replace a FixNeuron by a Q/DQ pair, native unless a family is given, and a constant before it by its codes."""
    read, source = params_of(node), node.inputs[0]
    assert read is not None and source is not None
    params = LinearParams(read.scale.reshape(()), read.zero_point.reshape(()))
    writer, base = PairWriter(GraphWriter(edit.graph, edit.names), family, own_names=True), str(source.name)
    parameters, array = writer.parameters(base, params), constant(source)
    nodes: list[ir.Node] = []
    if array is None:
        nodes.append(writer.quantize(base, source, params, parameters))
        codes = nodes[0].outputs[0]
    else:
        codes = add_initializer(edit.graph, edit.names.fresh(f"{base}_quantized"), params.encode(array))
    nodes.append(writer.dequantize(base, codes, params, parameters))
    edit.replace(node, nodes, like=source)
    written = family or families.STANDARD
    return edit.changed(node, f"FixNeuron became {written.quantize} and {written.dequantize}")


@dataclass(frozen=True)
class ToFixNeuron(NodeStep):
    """Q/DQ pairs with one scale and 8 or 16 bits to FixNeuron, one node that rounds to codes and back.

    FixNeuron has a zero point of int8. Unsigned codes are shifted by half their range, which keeps the numbers that
    they stand for. Constant codes become the float numbers that they stand for, before a FixNeuron: rounding them again
    changes nothing.
    """

    nothing: ClassVar[str] = "it has no Q/DQ pair of 8 or 16 bits with one scale."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        read = dequantized(node)
        if read is None or read.params is None:
            return None if read is None else _NOT_CONSTANT
        params = read.params
        if params.dtype.name not in ("int8", "uint8", "int16", "uint16"):
            return f"FixNeuron has no codes of type {params.dtype.name}"
        if not params.per_tensor:
            return "FixNeuron has one scale, not one for each channel"
        bits = 8 * params.dtype.itemsize
        half = 0 if params.dtype.kind == "i" else 1 << (bits - 1)
        zero_point = int(params.zero_point.reshape(-1)[0]) - half
        if abs(zero_point) > code_range(np.dtype(np.int8))[1]:
            return "its zero point does not fit int8"
        if read.stored is not None:
            name = edit.original_name(str(read.codes.name))
            source = add_initializer(edit.graph, name, params.decode(read.stored))
        elif read.source is not None and read.only_rounds:
            source = read.source
        else:
            return "its codes do not come from a QuantizeLinear with the same parameters"
        signed = LinearParams(params.scale.reshape(()), np.array(zero_point, np.int8))
        fused = FixNeuronWriter(GraphWriter(edit.graph, edit.names)).node(str(source.name), source, signed, bits)
        edit.replace(node, [fused], like=node.outputs[0])
        return edit.changed(node, "became FixNeuron")

    def _clean_up(self, edit: GraphEdit) -> None:
        for node in tuple(edit.graph):
            if families.quantize_family(node) and is_unused(node.outputs[0]):
                edit.remove(node)


@dataclass(frozen=True)
class ToIntegerOperators(ConversionStep):
    """Q/DQ around an operator to one operator on codes (QLinearConv and the like), wherever there is one.

    The others keep their Q/DQ, and the notes say why.
    """

    nothing: ClassVar[str] = "it has no operator between standard Q/DQ that computes on codes as well."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        notes.run(ToQOperator(), model)
        settle_domains(model)


@dataclass(frozen=True)
class OpsetVersion(ConversionStep):
    """Another version of the standard operators, up or down as far as onnx's version converter goes.

    Q/DQ whose type needs a newer opset go to com.microsoft, and `qdq` brings them back. Functions of quantizing
    operators are written for an opset, so they are taken out before and written again after.
    """

    version: int = 0
    nothing: ClassVar[str] = "it has that opset already."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        newest = onnx.defs.onnx_opset_version()
        if not _LEAST_OPSET <= self.version <= newest:
            raise UsageError(
                f"Give a version from {_LEAST_OPSET} to {newest}, such as opset:version=21; not {self.version}."
            )
        before = main_opset(model)
        if before == self.version:
            return model
        self._move_to_microsoft(model, notes)
        take_out_functions(model)
        model = change_opset(model, self.version, "The model")
        settle_domains(model)
        notes.changed("model", f"opset {before} became {self.version}")
        return model

    def _move_to_microsoft(self, model: ir.Model, notes: ConversionNotes) -> None:
        names = Names(model)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                params = params_of(node) if _family(node) is families.STANDARD else None
                if params is not None and _native(node, params, self.version) is families.MICROSOFT:
                    retarget(graph, node, families.MICROSOFT, params, names)
                    notes.changed(node, f"{node.op_type} of {params.dtype.name} moved to com.microsoft")
        settle_domains(model)


@dataclass(frozen=True)
class ToFloat(NodeStep):
    """Remove quantization. Operators on codes (QLinearConv and the like) are declined."""

    nothing: ClassVar[str] = (
        "it is not quantized in a way that this step takes out (Q/DQ, FixNeuron, block format, bfloat16 Cast pair, "
        "DynamicQuantizeLSTM)."
    )

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        read = dequantized(node)
        if read is not None:
            return self._dequantize(edit, node, read)
        source = node.inputs[0] if node.inputs else None
        if source is not None and (families.is_fix_neuron(node) or families.is_block_format(node)):
            rounded = None if constant(source) is None else _evaluate(edit.model, node)
            return _take_out(edit, node, source, rounded, f"{node.op_type} removed")
        if source is not None and casts_to(node, ir.DataType.FLOAT):
            return self._cast(edit, node, source)
        if node.op_type == families.DYNAMIC_LSTM:
            return _to_lstm(edit, node)
        if families.computes_on_codes(node):
            return f"{node.op_type} computes on codes; only Q/DQ models can be converted"
        return None

    def _clean_up(self, edit: GraphEdit) -> None:
        """Remove what nothing reads any more; a QuantizeLinear whose codes something else reads stays."""
        for node in tuple(edit.graph):
            quantizes, codes = families.quantize_family(node) is not None, node.outputs[0]
            if (quantizes or casts_to(node, _BFLOAT16)) and is_unused(codes):
                edit.remove(node)
            elif quantizes:
                edit.notes.decline(node, f"its codes are read by {', '.join(readers_of(codes))}")

    def _dequantize(self, edit: GraphEdit, node: ir.Node, read: Dequantized) -> str | None:
        params = read.params
        if params is None:
            return _NOT_CONSTANT
        if read.stored is not None:
            return _store(edit, node, str(read.codes.name), params.decode(read.stored))
        if read.quantize is None:
            producer = read.codes.producer()
            return f"its codes are {'a graph input' if producer is None else f'computed by {producer.op_type}'}"
        if read.source is None or not read.only_rounds:
            return f"it and '{read.quantize.name}' have different scales or zero points: they rescale"
        array = constant(read.source)
        rounded = None if array is None else params.decode(params.encode(array))
        absorbed = params.per_tensor and _begins_at_zero(params) and made_by(read.source, *_ABSORBING) is not None
        if rounded is None and absorbed:
            return _write_activation(edit, node, read.source, params)
        return _take_out(edit, node, read.source, rounded, "Q/DQ pair removed")

    def _cast(self, edit: GraphEdit, node: ir.Node, inner: ir.Value) -> str | None:
        """Take out a Cast to float: of a bfloat16 constant, or the second of a pair."""
        array, first = constant(inner), inner.producer()
        if array is not None and array.dtype == _BFLOAT16.numpy():
            return _store(edit, node, str(inner.name), array.astype(np.float32))
        source = first.inputs[0] if first is not None and casts_to(first, _BFLOAT16) else None
        if source is None:
            return None
        if source.dtype != ir.DataType.FLOAT:
            return f"'{source.name}' is not known to be float32"
        array = constant(source)
        rounded = None if array is None else array.astype(_BFLOAT16.numpy()).astype(np.float32)
        return _take_out(edit, node, source, rounded, "Cast pair removed")


# Operators behind which other quantizers leave out the Relu: if the zero point is the lowest code, saturation does it.
_ABSORBING = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "BatchNormalization")


def _begins_at_zero(params: LinearParams | None) -> bool:
    """Return whether the lowest code stands for zero: saturation then acts like a Relu."""
    if params is None or params.dtype.kind not in "iu":
        return False
    return bool((params.zero_point == code_range(params.dtype)[0]).all())


def _write_activation(edit: GraphEdit, node: ir.Node, source: ir.Value, params: LinearParams) -> str | None:
    """Replace a pair that acts like a Relu by one, or like a Relu6 (its highest code is 6) by a Clip."""
    highest = float(params.decode(np.array(np.iinfo(params.dtype).max, params.dtype)))
    operands: list[ir.Value | None] = [source]
    if math.isclose(highest, 6.0, rel_tol=1e-4):
        bounds = {"low": 0.0, "high": 6.0}
        operands += [
            add_initializer(edit.graph, edit.names.fresh(f"{source.name}_{end}"), np.array(bound, np.float32))
            for end, bound in bounds.items()
        ]
    op_type = "Relu" if len(operands) == 1 else "Clip"
    activation = ir.node(op_type, operands, name=edit.names.fresh(f"{source.name}_{op_type}"))
    activation.outputs[0].name = edit.names.fresh(f"{source.name}_{op_type}_Output")
    edit.replace(node, [activation], like=source)
    return edit.changed(str(source.name), f"no longer rounded; the zero point that cut below 0 is a {op_type} again")


def _take_out(edit: GraphEdit, node: ir.Node, source: ir.Value, rounded: Array | None, how: str) -> str | None:
    """Let readers of a rounded value read its source, or the constant that it was `rounded` to."""
    if rounded is not None:
        return _store(edit, node, str(source.name), rounded)
    edit.substitute(node, source)
    return edit.changed(str(source.name), f"no longer rounded ({how})")


def _store(edit: GraphEdit, node: ir.Node, name: str, array: Array) -> str | None:
    value = add_initializer(edit.graph, edit.original_name(name), array)
    edit.substitute(node, value)
    return edit.changed(name, f"constant stored as {value.dtype}")


def _to_lstm(edit: GraphEdit, node: ir.Node) -> str | None:
    """Replace a DynamicQuantizeLSTM: W and R are codes of the transposed weights, their parameters are at the end."""
    inputs = list(node.inputs[:_LSTM_INPUTS])
    for at, scale_at in ((1, _LSTM_INPUTS), (2, _LSTM_INPUTS + 2)):
        stored = node.inputs[at]
        codes, scale, zero_point = (constant(each) for each in (stored, *node.inputs[scale_at : scale_at + 2]))
        if stored is None or codes is None or scale is None or zero_point is None:
            return "its weights, or their scales or zero points, are not constant"
        # One scale for each direction, or for each of its channels, which come last.
        scales, zeros = (array.reshape(len(codes), 1, -1).astype(np.float32) for array in (scale, zero_point))
        weights = ((codes.astype(np.float32) - zeros) * scales).transpose(0, 2, 1)
        inputs[at] = add_initializer(edit.graph, edit.original_name(str(stored.name)), weights)
    lstm = ir.node("LSTM", inputs, dict(node.attributes), num_outputs=len(node.outputs), name=node.name)
    edit.graph.insert_before(node, [lstm])
    for old, new in zip(node.outputs, lstm.outputs, strict=True):
        take_over(old, new)
    edit.remove(node)
    return edit.changed(lstm, "DynamicQuantizeLSTM became LSTM; what it reads is no longer rounded")


def _evaluate(model: ir.Model, node: ir.Node) -> Array:
    """Return what a fused node makes of its constant input. A block format is computed by its function."""
    source = constant(node.inputs[0])
    assert source is not None
    params = params_of(node) if families.is_fix_neuron(node) else None
    if params is not None:
        return params.decode(params.encode(source))
    feed = ir.Value(
        name=Names(model).fresh("fused_input"), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(source.shape)
    )
    alone = ir.Node(node.domain, node.op_type, [feed], list(node.attributes.values()), overload=node.overload)
    result = alone.outputs[0]
    result.name, result.type, result.shape = "fused_output", feed.type, feed.shape
    graph = ir.Graph([feed], [result], nodes=[alone], opset_imports=dict(model.opset_imports), name="alone")
    single = ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))
    add_functions(single)
    return Runner(single)({str(feed.name): source.astype(np.float32)})[0]


@dataclass(frozen=True)
class WithoutQdqBetween(NodeStep):
    """Remove Q/DQ between operators that a device computes as one: `pairs` as `Conv/Relu+Mul/Add`.

    On a path A -> QuantizeLinear -> DequantizeLinear -> B, B reads the result of A without rounding. Other readers of
    the rounded value keep it.
    """

    pairs: str = ""
    nothing: ClassVar[str] = "no Q/DQ stands between such operators."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        pairs = set(_parse_pairs(self.pairs))
        for index, value in enumerate(node.inputs):
            source = _unrounded(value)
            producer = None if source is None else source.producer()
            if source is None or producer is None or (producer.op_type, node.op_type) not in pairs:
                continue
            node.replace_input_with(index, source)
            edit.notes.changed(source, f"not rounded between {producer.op_type} and {node.op_type}")
        return None

    def _clean_up(self, edit: GraphEdit) -> None:
        remove_unread(edit)


def remove_unread(edit: GraphEdit) -> None:
    """Remove quantizing operators that nothing reads: backwards, because one may be the only reader of another."""
    for node in reversed(tuple(edit.graph)):
        if (_family(node) or families.is_fix_neuron(node)) and is_unused(node.outputs[0]):
            edit.remove(node)


@dataclass(frozen=True)
class WithoutOutputQdq(NodeStep):
    """Remove Q/DQ from the outputs of operators, where no quantized operator reads them: `op_types` as `MatMul+Gemm`.

    A value that a quantized operator reads has to be rounded. `nodes` are single nodes, by name.
    """

    op_types: str = ""
    nodes: tuple[str, ...] = ()
    nothing: ClassVar[str] = "no output of such operators is rounded for float readers alone."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        source = _unrounded(node.outputs[0]) if _family(node) or families.is_fix_neuron(node) else None
        producer = None if source is None else source.producer()
        if source is None or producer is None:
            return None
        if producer.op_type not in self.op_types.split("+") and producer.name not in self.nodes:
            return None
        if any(_is_quantized(use.node) for use in node.outputs[0].uses()):
            return "a quantized operator reads it"
        edit.substitute(node, source)
        return edit.changed(source, f"not rounded behind {producer.op_type}")

    def _clean_up(self, edit: GraphEdit) -> None:
        remove_unread(edit)


@dataclass(frozen=True)
class WithoutClippedRelu(NodeStep):
    """Remove a Relu whose result is only rounded to codes that begin at zero: saturation does the same."""

    nothing: ClassVar[str] = "no Relu is before codes that begin at zero."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        source = node.inputs[0] if node.op_type == "Relu" else None
        if source is None or node.outputs[0].is_graph_output():
            return None
        readers = node.outputs[0].consumers()
        clip = [bool(families.quantize_family(each)) and _begins_at_zero(params_of(each)) for each in readers]
        if not clip or not all(clip):
            return "its result is not only rounded to codes that begin at zero"
        edit.changed(node, "clipped by the rounding behind it")
        if source.producer() is None or len(source.uses()) > 1 or source.is_graph_output():
            edit.substitute(node, source)
        else:
            take_over(node.outputs[0], source)  # under its name, by which scripts know the tensor
            edit.graph.remove(node, safe=True)
        return None


def _is_quantized(node: ir.Node) -> bool:
    """Return whether an operator has codes for weights, or its result is rounded."""
    read = [dequantized(value.producer()) for value in node.inputs if value is not None]
    readers = [use.node for value in node.outputs for use in value.uses()]
    weights = any(each is not None and each.stored is not None for each in read)
    return weights or any(families.quantize_family(reader) or families.is_fix_neuron(reader) for reader in readers)


def _parse_pairs(text: str) -> Iterator[tuple[str, str]]:
    if not text:
        raise UsageError("without-qdq-between needs pairs of operators: without-qdq-between:pairs=Conv/Relu+Mul/Add.")
    for pair in text.split("+"):
        producer, separator, consumer = pair.partition("/")
        if not producer or not separator or not consumer or "/" in consumer:
            raise UsageError(f"'{pair}' is not a pair of operators; expected PRODUCER/CONSUMER, such as Conv/Relu.")
        yield producer, consumer


def _unrounded(value: ir.Value | None) -> ir.Value | None:
    """Return the value before rounding; None if it is not rounded, or rescaled on the way."""
    node = None if value is None else value.producer()
    if node is not None and families.is_fix_neuron(node):
        return node.inputs[0]
    read = dequantized(node)
    return read.source if read is not None and read.only_rounds else None
