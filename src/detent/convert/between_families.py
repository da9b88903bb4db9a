"""From one family of quantizing operators to another, and from one opset to another.

Families differ in names and in the types that they hold, never in arithmetic, so a node only changes its operator.
FixNeuron, which quantizes and dequantizes at once, is taken apart into a pair; a constant behind it is stored as codes.
Operators that ONNX does not have bring model-local functions along, so that the result runs on plain onnxruntime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from detent.convert.step import ConversionNotes, ConversionStep, GraphEdit, NodeStep
from detent.emit.qoperator_form import ToQOperator
from detent.errors import UsageError
from detent.graph.opset import change_opset
from detent.graph.values import Names, add_initializer, constant, cut_inputs, is_unused
from detent.prepare.base import main_opset
from detent.qdq.builder import FixNeuronWriter, GraphWriter, PairWriter, retarget
from detent.qdq.families import (
    EXTENDED,
    MICROSOFT,
    STANDARD,
    Family,
    OperatorName,
    dequantize_family,
    is_block_format,
    is_fix_neuron,
    native_family,
    quantize_family,
    twin_name,
)
from detent.qdq.functions import settle_domains, take_out_functions
from detent.qdq.reader import LinearParams, code_range, dequantized, params_of

_HALF = ("bfloat16", "float16")
_PER_AXIS_OPSET = 13
_LEAST_OPSET = 7
"""The oldest opset that onnxruntime takes."""

_NOT_CONSTANT = "its scale or zero point is not constant"


@dataclass(frozen=True)
class ToQdq(NodeStep):
    """Extended, Vitis and Vai Q/DQ and FixNeuron to Q/DQ of ONNX, and those of com.microsoft if ONNX's hold the type.

    16-bit codes came to them with opset 21; below it their twins in com.microsoft hold these. Codes of bfloat16 or
    float16 they do not hold at all: with scale 1 and zero point 0 such a pair is a pair of Casts, and becomes one.
    """

    nothing: ClassVar[str] = (
        "it has no FixNeuron, Vitis or Extended Q/DQ, nor Q/DQ in com.microsoft that the standard ones could replace."
    )

    def visit(self, edit: GraphEdit, node: ir.Node) -> None:
        """Convert a node of any other family."""
        if is_fix_neuron(node):
            _split_fix_neuron(edit, node, None)
            edit.notes.changed(node, "FixNeuron became QuantizeLinear and DequantizeLinear")
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
class ToGeneration(NodeStep):
    """Q/DQ of any domain and FixNeuron become the Q/DQ of one generation; other operators of the tools are renamed."""

    family: Family = EXTENDED
    nothing: ClassVar[str] = "it has no Q/DQ or FixNeuron of another kind."

    def visit(self, edit: GraphEdit, node: ir.Node) -> None:
        """Convert a quantizing node of another family."""
        if is_fix_neuron(node):
            _split_fix_neuron(edit, node, self.family)
            edit.notes.changed(node, f"FixNeuron became {self.family.quantize} and {self.family.dequantize}")
        elif quantize_family(node) or dequantize_family(node):
            self._convert(edit, node)
        elif (name := twin_name(node, self.family)) is not None:
            edit.notes.changed(node, f"{OperatorName.of(node)} became {self.family.domain}::{name}")
            node.op_type, node.domain, node.overload = name, self.family.domain, ""

    def _convert(self, edit: GraphEdit, node: ir.Node) -> None:
        if node.domain == self.family.domain:
            return
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
class ToFixNeuron(NodeStep):
    """Q/DQ pairs with one scale and 8 or 16 bits to FixNeuron, one node that rounds to codes and back.

    FixNeuron has a zero point of int8. Unsigned codes are shifted by half their range, which leaves the numbers that
    they stand for. A constant behind DQ becomes the float numbers of its codes behind a FixNeuron: rounding them again
    changes nothing.
    """

    nothing: ClassVar[str] = "it has no Q/DQ pair of 8 or 16 bits with one scale."

    def visit(self, edit: GraphEdit, node: ir.Node) -> None:
        """Convert a node from codes to float, with the node before it."""
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

    def clean_up(self, edit: GraphEdit) -> None:
        """Remove quantizing nodes whose codes nothing reads any more."""
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
    """Replace a FixNeuron by a pair, and a constant behind it by its codes; without a family, by a native pair."""
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
