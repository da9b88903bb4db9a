"""Steps on quantizing operators: to another family of them, to float, to operators on codes, to another opset.

Families differ in names and in the types that they hold, never in arithmetic, so a node only changes its operator.
FixNeuron, which quantizes and dequantizes at once, is taken apart into a pair; a constant behind it is stored as codes.
Operators that ONNX does not have bring model-local functions along, so that the result runs on plain onnxruntime.

**To float.** A constant behind a DequantizeLinear becomes the float numbers that its codes stand for: the weights stay
those that the quantized model computes with. A pair of QuantizeLinear and DequantizeLinear with the same parameters, or
a fused node, is only rounding and saturation of an activation: it is removed. So is a pair of Casts through bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from detent.convert.step import ConversionNotes, ConversionStep, GraphEdit, NodeStep, casts_to
from detent.emit.qoperator_form import ToQOperator
from detent.errors import UsageError
from detent.graph.opset import change_opset
from detent.graph.session import Runner
from detent.graph.values import Names, add_initializer, constant, cut_inputs, is_unused
from detent.prepare.base import main_opset
from detent.qdq.builder import FixNeuronWriter, GraphWriter, PairWriter, retarget
from detent.qdq.families import (
    MICROSOFT,
    STANDARD,
    Family,
    OperatorName,
    computes_on_codes,
    dequantize_family,
    is_block_format,
    is_fix_neuron,
    native_family,
    quantize_family,
    twin_name,
)
from detent.qdq.functions import add_functions, settle_domains, take_out_functions
from detent.qdq.reader import Dequantized, LinearParams, code_range, dequantized, params_of

Array = npt.NDArray[Any]
_BFLOAT16 = ir.DataType.BFLOAT16
_HALF = ("bfloat16", "float16")
_PER_AXIS_OPSET = 13
_LEAST_OPSET = 7
"""The oldest opset that onnxruntime takes."""

_NOT_CONSTANT = "its scale or zero point is not constant"


@dataclass(frozen=True)
class ToFamily(NodeStep):
    """Q/DQ of other domains and FixNeuron to the Q/DQ of one family; other operators of the tools are renamed."""

    family: Family
    nothing: ClassVar[str] = "it has no Q/DQ or FixNeuron of another kind."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> None:
        if is_fix_neuron(node):
            _split_fix_neuron(edit, node, self.family)
        elif quantize_family(node) or dequantize_family(node):
            if node.domain != self.family.domain:
                self._convert(edit, node)
        elif (name := twin_name(node, self.family)) is not None:
            edit.notes.changed(node, f"{OperatorName.of(node)} became {self.family.domain}::{name}")
            node.op_type, node.domain, node.overload = name, self.family.domain, ""

    def _convert(self, edit: GraphEdit, node: ir.Node) -> None:
        params, notes = params_of(node), edit.notes
        if params is None:
            notes.decline(node, _NOT_CONSTANT)
        elif not self.family.holds(params.dtype.name, edit.opset):
            notes.decline(node, f"{self.family.quantize} does not hold {params.dtype.name}")
        elif params.block_size and not self.family.has_blocks:
            notes.decline(node, f"{self.family.quantize} has no blocks along an axis")
        else:
            old = OperatorName.of(node)
            retarget(edit.graph, node, self.family, params, edit.names)
            notes.changed(node, f"{old} became {node.op_type}")


@dataclass(frozen=True)
class ToQdq(NodeStep):
    """Q/DQ of other families to Q/DQ of ONNX, and those of com.microsoft if ONNX's hold the type.

    16-bit codes came to them with opset 21; below it their twins in com.microsoft hold these. Codes of bfloat16 or
    float16 they do not hold at all: with scale 1 and zero point 0 such a pair is a pair of Casts, and becomes one.
    """

    nothing: ClassVar[str] = (
        "it has no FixNeuron, Vitis or Extended Q/DQ, nor Q/DQ in com.microsoft that the standard ones could replace."
    )

    def _visit(self, edit: GraphEdit, node: ir.Node) -> None:
        if is_fix_neuron(node):
            _split_fix_neuron(edit, node, None)
        elif is_block_format(node):
            edit.notes.decline(node, f"{node.op_type} has an exponent for each block, which Q/DQ cannot express")
        elif (quantize_family(node) or dequantize_family(node)) not in (None, STANDARD):
            self._convert(edit, node)

    def _convert(self, edit: GraphEdit, node: ir.Node) -> None:
        params, notes, opset = params_of(node), edit.notes, edit.opset
        if params is None:
            notes.decline(node, _NOT_CONSTANT)
            return
        if params.dtype.name in _HALF:
            _to_cast(node, params, notes)
            return
        old, family = OperatorName.of(node), native_family(params.dtype.name, opset, quantizes=_quantizes(node))
        if family is None:
            notes.decline(node, f"QuantizeLinear and DequantizeLinear of opset {opset} do not hold {params.dtype.name}")
        elif not params.per_tensor and opset < _PER_AXIS_OPSET:
            notes.decline(node, f"a scale for each channel needs opset 13 or newer, and the model has {opset}")
        elif family.domain != node.domain:
            retarget(edit.graph, node, family, params, edit.names)
            notes.changed(node, f"{old} became {node.op_type}" + (f" of {family.domain}" if family.domain else ""))


@dataclass(frozen=True)
class ToFixNeuron(NodeStep):
    """Q/DQ pairs with one scale and 8 or 16 bits to FixNeuron, one node that rounds to codes and back.

    FixNeuron has a zero point of int8. Unsigned codes are shifted by half their range, which leaves the numbers that
    they stand for. A constant behind DQ becomes the float numbers of its codes behind a FixNeuron: rounding them again
    changes nothing.
    """

    nothing: ClassVar[str] = "it has no Q/DQ pair of 8 or 16 bits with one scale."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> None:
        read = dequantized(node)
        if read is None:
            return
        reason = _NOT_CONSTANT if read.params is None else _why_not_fix_neuron(read.params)
        if reason is not None or read.params is None:
            edit.notes.decline(node, str(reason))
            return
        if read.stored is not None:
            name = edit.original_name(str(read.codes.name))
            source = add_initializer(edit.graph, name, read.params.decode(read.stored))
        elif read.source is not None and read.only_rounds:
            source = read.source
        else:
            edit.notes.decline(node, "its codes do not come from a QuantizeLinear with the same parameters")
            return
        params = LinearParams(read.params.scale.reshape(()), np.array(_signed_zero_point(read.params), np.int8))
        writer = FixNeuronWriter(GraphWriter(edit.graph, edit.names))
        fused = writer.node(str(source.name), source, params, 8 * read.params.dtype.itemsize)
        result = fused.outputs[0]
        result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
        edit.graph.insert_before(node, [fused])
        edit.substitute(node, result)
        edit.notes.changed(node, "became FixNeuron")

    def _clean_up(self, edit: GraphEdit) -> None:
        for node in tuple(edit.graph):
            if quantize_family(node) and is_unused(node.outputs[0]):
                edit.remove(node)


@dataclass(frozen=True)
class ToIntegerOperators(ConversionStep):
    """Q/DQ around an operator to one operator on codes (QLinearConv and the like), wherever there is one.

    The others keep their Q/DQ, and the notes say why.
    """

    nothing: ClassVar[str] = "it has no operator between standard Q/DQ that computes on codes as well."

    def apply(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        """Convert the main graph."""
        notes.run(ToQOperator(), model)
        settle_domains(model)
        return model


@dataclass(frozen=True)
class OpsetVersion(ConversionStep):
    """Another version of the standard operators, up or down as far as onnx's version converter goes.

    Q/DQ whose type needs a newer opset go to com.microsoft, and `qdq` brings them back. Functions of quantizing
    operators are written for an opset, so they are taken out before and written again after.
    """

    version: int = 0
    nothing: ClassVar[str] = "it has that opset already."

    def apply(self, model: ir.Model, notes: ConversionNotes) -> ir.Model:
        """Convert the model."""
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
                standard = STANDARD in (quantize_family(node), dequantize_family(node))
                params = params_of(node) if standard else None
                if params is None:
                    continue
                if native_family(params.dtype.name, self.version, quantizes=_quantizes(node)) is MICROSOFT:
                    retarget(graph, node, MICROSOFT, params, names)
                    notes.changed(node, f"{node.op_type} of {params.dtype.name} moved to com.microsoft")
        settle_domains(model)


def _quantizes(node: ir.Node) -> bool:
    return quantize_family(node) is not None


def _split_fix_neuron(edit: GraphEdit, node: ir.Node, family: Family | None) -> None:
    """Replace a FixNeuron by a pair of a family, native without one, and a constant behind it by its codes."""
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
    result = nodes[-1].outputs[0]
    result.type, result.shape = source.type, source.shape
    edit.graph.insert_before(node, nodes)
    edit.substitute(node, result)
    edit.notes.changed(node, f"FixNeuron became {(family or STANDARD).quantize} and {(family or STANDARD).dequantize}")


def _to_cast(node: ir.Node, params: LinearParams, notes: ConversionNotes) -> None:
    """Make a Cast of a Q or DQ through a half type that has neither scale nor zero point."""
    if (params.scale != 1).any() or np.asarray(params.zero_point, np.float32).any():
        notes.decline(node, f"{params.dtype.name} with a scale or zero point is not a Cast, and Q/DQ do not hold it")
        return
    target = ir.DataType.from_numpy(params.dtype if _quantizes(node) else params.scale.dtype)
    old = OperatorName.of(node)
    cut_inputs(node, 1)
    node.op_type, node.domain, node.overload = "Cast", "", ""
    node.attributes.clear()
    node.attributes["to"] = ir.AttrInt64("to", int(target))
    notes.changed(node, f"{old} became Cast to {target}")


def _why_not_fix_neuron(params: LinearParams) -> str | None:
    if params.dtype.name not in ("int8", "uint8", "int16", "uint16"):
        return f"FixNeuron has no codes of type {params.dtype.name}"
    if not params.per_tensor:
        return "FixNeuron has one scale, not one for each channel"
    fits = abs(_signed_zero_point(params)) <= code_range(np.dtype(np.int8))[1]
    return None if fits else "its zero point does not fit int8"


def _signed_zero_point(params: LinearParams) -> int:
    """Return the zero point of the same numbers in signed codes."""
    half = 1 << (8 * params.dtype.itemsize - 1)
    return int(params.zero_point.reshape(-1)[0]) - (0 if params.dtype.kind == "i" else half)


@dataclass(frozen=True)
class ToFloat(NodeStep):
    """Remove quantization. Operators on codes (QLinearConv and the like) are declined."""

    nothing: ClassVar[str] = "it is not quantized (no Q/DQ, FixNeuron, block format or bfloat16 Cast pair)."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> None:
        read = dequantized(node)
        if read is not None:
            self._dequantize(edit, node, read)
        elif is_fix_neuron(node) or is_block_format(node):
            source = node.inputs[0]
            if source is not None:
                rounded = None if constant(source) is None else _evaluate(edit.model, node)
                _take_out(edit, node, source, rounded, f"{node.op_type} removed")
        elif casts_to(node, ir.DataType.FLOAT):
            self._cast(edit, node)
        elif computes_on_codes(node):
            edit.notes.decline(node, f"{node.op_type} computes on codes; only Q/DQ models can be converted")

    def _clean_up(self, edit: GraphEdit) -> None:
        """Remove what nothing reads any more; a QuantizeLinear whose codes something else reads stays."""
        for node in tuple(edit.graph):
            quantizes = quantize_family(node) is not None
            if (quantizes or casts_to(node, _BFLOAT16)) and is_unused(node.outputs[0]):
                edit.remove(node)
            elif quantizes:
                edit.notes.decline(node, f"its codes are read by {_readers(node.outputs[0])}")

    def _dequantize(self, edit: GraphEdit, node: ir.Node, read: Dequantized) -> None:
        params, notes = read.params, edit.notes
        if params is None:
            notes.decline(node, "its scale or zero point is not constant")
        elif read.stored is not None:
            _store(edit, node, str(read.codes.name), params.decode(read.stored))
        elif read.quantize is None:
            producer = read.codes.producer()
            kind = "are a graph input" if producer is None else f"are computed by {producer.op_type}"
            notes.decline(node, f"its codes {kind}")
        elif read.source is None or not read.only_rounds:
            notes.decline(node, f"it and '{read.quantize.name}' have different scales or zero points: they rescale")
        else:
            array = constant(read.source)
            rounded = None if array is None else params.decode(params.encode(array))
            _take_out(edit, node, read.source, rounded, "Q/DQ pair removed")

    def _cast(self, edit: GraphEdit, node: ir.Node) -> None:
        """Take out a Cast to float: of a bfloat16 constant, or the second of a pair."""
        inner = node.inputs[0]
        array = constant(inner)
        if inner is not None and array is not None and array.dtype == _BFLOAT16.numpy():
            _store(edit, node, str(inner.name), array.astype(np.float32))
            return
        first = None if inner is None else inner.producer()
        if first is None or not casts_to(first, _BFLOAT16) or first.inputs[0] is None:
            return
        source = first.inputs[0]
        if source.dtype != ir.DataType.FLOAT:
            edit.notes.decline(node, f"'{source.name}' is not known to be float32")
            return
        array = constant(source)
        rounded = None if array is None else array.astype(_BFLOAT16.numpy()).astype(np.float32)
        _take_out(edit, node, source, rounded, "Cast pair removed")


def _take_out(edit: GraphEdit, node: ir.Node, source: ir.Value, rounded: Array | None, how: str) -> None:
    """Let readers of a rounded value read its source, or what that was rounded to if it is constant."""
    if rounded is not None:
        _store(edit, node, str(source.name), rounded)
        return
    edit.substitute(node, source)
    edit.notes.changed(str(source.name), f"no longer rounded ({how})")


def _store(edit: GraphEdit, node: ir.Node, name: str, array: Array) -> None:
    value = add_initializer(edit.graph, edit.original_name(name), array)
    edit.substitute(node, value)
    edit.notes.changed(name, f"constant stored as {value.dtype}")


def _readers(value: ir.Value) -> str:
    kinds = {use.node.op_type for use in value.uses()} | ({"a graph output"} if value.is_graph_output() else set())
    return ", ".join(sorted(kinds))


def _evaluate(model: ir.Model, node: ir.Node) -> Array:
    """Return what a fused node makes of its constant input. A block format is computed by its function."""
    source = constant(node.inputs[0])
    assert source is not None
    params = params_of(node) if is_fix_neuron(node) else None
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

    On a path A -> QuantizeLinear -> DequantizeLinear -> B, B reads what A makes, without rounding in between. Others
    that read the rounded value still do.
    """

    pairs: str = ""
    nothing: ClassVar[str] = "no Q/DQ stands between such operators."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> None:
        pairs = set(_parse_pairs(self.pairs))
        for index, value in enumerate(node.inputs):
            source = _unrounded(value)
            producer = None if source is None else source.producer()
            if source is None or producer is None or (producer.op_type, node.op_type) not in pairs:
                continue
            node.replace_input_with(index, source)
            edit.notes.changed(source, f"not rounded between {producer.op_type} and {node.op_type}")

    def _clean_up(self, edit: GraphEdit) -> None:
        """Remove rounding that nothing reads any more."""
        for node in reversed(tuple(edit.graph)):
            rounds = quantize_family(node) or dequantize_family(node) or is_fix_neuron(node)
            if rounds and is_unused(node.outputs[0]):
                edit.remove(node)


def _parse_pairs(text: str) -> Iterator[tuple[str, str]]:
    if not text:
        raise UsageError("without-qdq-between needs pairs of operators: without-qdq-between:pairs=Conv/Relu+Mul/Add.")
    for pair in text.split("+"):
        producer, separator, consumer = pair.partition("/")
        if not producer or not separator or not consumer or "/" in consumer:
            raise UsageError(f"'{pair}' is not a pair of operators; expected PRODUCER/CONSUMER, such as Conv/Relu.")
        yield producer, consumer


def _unrounded(value: ir.Value | None) -> ir.Value | None:
    """Return what a value was before it was rounded; None if it is not rounded, or rescaled on the way."""
    node = None if value is None else value.producer()
    if node is not None and is_fix_neuron(node):
        return node.inputs[0]
    read = dequantized(node)
    return read.source if read is not None and read.only_rounds else None
