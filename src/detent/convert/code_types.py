"""Codes of another integer type that stand for the same numbers.

**Signedness.** With h half the range (128 or 32768), uint code c at zero point z and int code c - h at zero point z - h
stand for the same number, and saturate at the same numbers: all codes map one to one, the lowest included. So the
results are bit-identical.

**Biases of 32 bits to 16 bits**, with a scale of their own. The scale of a 32-bit bias is the product of its layer's
scales, which may be too fine for 16 bits. The new scale is the old one times the least power of two at which no element
clips:

    scale' = scale * 2^k        code' = round_half_even(code / 2^k)

So a power of two stays one, and a bias that fits is unchanged to the bit. With a scale per channel, each has its own k.

**Biases of any width to 32 bits**, with the scale of their layer's products, as CPUs have them.

**Activations of 16 bits to 8 bits** with the same range. 65535 = 257 * 255, so with l the lowest code

    scale' = 257 * scale        zero_point' = round((zero_point - l) / 257) + l'

and biases of 32 bits, whose scale is that of the products, are divided by 257.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.step import ConversionNotes, ConversionStep, GraphEdit, NodeStep, readers_of
from detent.graph.values import Names, add_initializer, constant, drop_if_unused, input_at, made_by, set_input
from detent.qdq.builder import retarget
from detent.qdq.families import dequantize_family, is_native_dequantize, native_family, quantize_family
from detent.qdq.reader import LinearParams, code_range, dequantized, params_of

_OTHER = {"int8": "uint8", "uint8": "int8", "int16": "uint16", "uint16": "int16"}


@dataclass(frozen=True)
class ToSignedness(ConversionStep):
    """Codes of the other signedness become `dtype`: activations, and with `weights` symmetric constants as well."""

    dtype: str = "int8"
    weights: bool = True
    nothing: ClassVar[str] = "it has no codes of the other signedness between QuantizeLinear and DequantizeLinear."

    def _convert(self, model: ir.Model, notes: ConversionNotes) -> None:
        work, left = _Shift(Names(model), notes, self.dtype), 0
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if quantize_family(node):
                    work.activation(graph, node)
            for value in tuple(graph.initializers.values()):
                if not _holds_codes(value, work.old):
                    continue
                if self.weights:
                    work.weight(graph, value)
                else:
                    left += 1
        if left:
            notes.decline("model", f"{left} constants stay {work.old.name.upper()}; weights=true converts them too")


def _holds_codes(value: ir.Value, dtype: np.dtype[Any]) -> bool:
    """Return whether a constant holds codes of a type. A zero point has another index at its reader."""
    if not value.uses() or value.const_value is None or value.const_value.dtype.numpy() != dtype:
        return False
    return all(dequantize_family(use.node) and use.idx == 0 for use in value.uses())


class _Shift:
    """Shifts codes and zero points of one signedness to the other, `dtype`."""

    def __init__(self, names: Names, notes: ConversionNotes, dtype: str) -> None:
        self._names, self._notes = names, notes
        self.old, self._new = np.dtype(_OTHER[dtype]), np.dtype(dtype)
        self._moved: dict[ir.Value, ir.Value] = {}

    def activation(self, graph: ir.Graph, quantize: ir.Node) -> None:
        """Convert what a QuantizeLinear writes, if only DequantizeLinear with constant zero points reads it."""
        codes, zero_point = quantize.outputs[0], constant(input_at(quantize, 2))
        readers = [use.node for use in codes.uses()]
        if zero_point is None and input_at(quantize, 2) is not None:
            self._notes.decline(quantize, "its zero point is not constant")
            return
        default = None if "output_dtype" in quantize.attributes else np.dtype(np.uint8)  # as ONNX prescribes
        if (default if zero_point is None else zero_point.dtype) != self.old:
            return
        others = set(readers_of(codes)) - {node.op_type for node in readers if dequantize_family(node)}
        points = [input_at(node, 2) for node in readers]
        if others:
            self._notes.decline(codes, f"its codes are read by {', '.join(sorted(others))} as well")
        elif any(point is not None and constant(point) is None for point in points):
            self._notes.decline(codes, "the zero point of its DequantizeLinear is not constant")
        else:
            for node in (quantize, *readers):
                self._shift_zero_point(graph, node)
            codes.type = ir.TensorType(ir.DataType.from_numpy(self._new))
            self._notes.changed(codes, f"codes are {self._new} now")

    def weight(self, graph: ir.Graph, value: ir.Value) -> None:
        """Convert constant codes that only DequantizeLinear reads, if zero is the middle code."""
        readers = [use.node for use in value.uses()]
        array, middle = constant(value), 0 if self.old.kind == "i" else 1 << (8 * self.old.itemsize - 1)
        points = [constant(input_at(node, 2)) for node in readers]
        if array is None or any(point is None or (point != middle).any() for point in points):
            self._notes.decline(value, f"its zero point is not {middle}: it is not symmetric")
            return
        shifted = self._shifted(graph, str(value.name), array)
        for node in readers:
            self._shift_zero_point(graph, node)
            node.replace_input_with(0, shifted)
        drop_if_unused(value)
        self._notes.changed(value, f"codes are {self._new} now")

    def _shift_zero_point(self, graph: ir.Graph, node: ir.Node) -> None:
        old = input_at(node, 2)
        if old is None:
            scale = constant(input_at(node, 1))
            zeros = np.zeros(() if scale is None else scale.shape, self.old)
            set_input(node, 2, self._initializer(graph, f"{node.outputs[0].name}_zero_point", zeros))
            return
        if old not in self._moved:
            array = constant(old)
            assert array is not None
            self._moved[old] = self._shifted(graph, str(old.name), array)
        node.replace_input_with(2, self._moved[old])
        drop_if_unused(old)

    def _shifted(self, graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
        return self._initializer(graph, f"{name}_{self._new}", array)

    def _initializer(self, graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """Add codes of the old type as codes of the new one."""
        offset = code_range(self._new)[0] or 1 << (8 * self._new.itemsize - 1)
        return add_initializer(graph, self._names.fresh(name), (array.astype(np.int64) + offset).astype(self._new))


_BIAS_INPUT = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}


@dataclass(frozen=True)
class Int16Bias(NodeStep):
    """Int32 biases of Conv, ConvTranspose, Gemm, and Add behind a MatMul, to int16."""

    nothing: ClassVar[str] = "it has no int32 bias behind a DequantizeLinear."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        read = dequantized(node)
        if read is None or read.params is None or read.stored is None or read.stored.dtype != np.int32:
            return None
        readers = [(use.node.op_type, use.idx) for use in node.outputs[0].uses()]
        only_bias = all(op_type == "Add" or _BIAS_INPUT.get(op_type) == index for op_type, index in readers)
        if read.params.zero_point.any() or not only_bias:
            return "it is int32, but not a bias with zero point 0"
        return _narrow_bias(edit, node, read.stored, read.params)


def shifts_needed(codes: npt.NDArray[Any], channels: int) -> npt.NDArray[np.int64]:
    """Return, for each scale, the least k with which all its codes fit 16 bits."""
    _, high = code_range(np.dtype(np.int16))
    largest = np.abs(codes.astype(np.int64).reshape(channels, -1)).max(axis=1)
    shifts = np.zeros(channels, np.int64)
    for k in range(1, 18):
        # rounded half to even, as the codes will be
        shifts[np.rint(largest / 2.0 ** (k - 1)) > high] = k
    return shifts


def _narrow_bias(edit: GraphEdit, node: ir.Node, codes: npt.NDArray[Any], params: LinearParams) -> str | None:
    shifts = shifts_needed(codes, params.scale.size)
    factor = np.ldexp(1.0, shifts)
    narrowed = np.rint(codes / (factor.reshape(()) if params.per_tensor else factor)).astype(np.int16)
    new_scale = (params.scale.astype(np.float64) * factor.reshape(params.scale.shape)).astype(params.scale.dtype)
    source, scale, zero_point = node.inputs[0], node.inputs[1], input_at(node, 2)
    assert source is not None and scale is not None
    zero_point_name = f"{node.outputs[0].name}_zero_point" if zero_point is None else f"{zero_point.name}_int16"
    zeros = np.zeros(params.scale.shape, np.int16)
    replaced = ((f"{source.name}_int16", narrowed), (f"{scale.name}_int16", new_scale), (zero_point_name, zeros))
    for index, (name, array) in enumerate(replaced):
        set_input(node, index, add_initializer(edit.graph, edit.names.fresh(name), array))
    family = native_family("int16", edit.opset, quantizes=False)
    if is_native_dequantize(node) and family is not None and family is not dequantize_family(node):
        retarget(edit.graph, node, family, params, edit.names)
    moved = int(shifts.max())
    grown = f", its scale up to 2^{moved} times as large" if moved else ", exactly"
    return edit.changed(node, f"bias is int16 now{grown}")


@dataclass(frozen=True)
class Int32Bias(NodeStep):
    """Biases of Conv, ConvTranspose and Gemm to int32, in units of the products of codes."""

    nothing: ClassVar[str] = "it has no bias of fewer than 32 bits behind a DequantizeLinear."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        index = _BIAS_INPUT.get(node.op_type)
        if index is None:
            return None
        data, weight, bias = (dequantized(made_by(input_at(node, each))) for each in (0, 1, index))
        if bias is None or bias.params is None or bias.stored is None or bias.stored.dtype == np.int32:
            return None
        if data is None or weight is None or data.params is None or weight.params is None:
            return "its input or its weights are not dequantized with constant scales"
        if len(bias.node.outputs[0].uses()) > 1:
            return "its bias is shared"
        scale = (data.params.scale.astype(np.float64) * weight.params.scale).astype(np.float32)
        codes = np.rint(bias.params.decode(bias.stored) / scale.astype(np.float64)).clip(
            *code_range(np.dtype(np.int32))
        )
        _store_codes(edit, bias.node, codes.astype(np.int32), scale)
        return edit.changed(node, "its bias is int32 now")


def _store_codes(edit: GraphEdit, node: ir.Node, codes: npt.NDArray[Any], scale: npt.NDArray[Any]) -> None:
    """Let a DequantizeLinear read other codes, with this scale and the zero point 0."""
    named = ((f"{codes.dtype}", codes), ("scale", scale), ("zero_point", np.zeros(scale.shape, codes.dtype)))
    for index, (name, array) in enumerate(named):
        set_input(node, index, add_initializer(edit.graph, edit.names.fresh(f"{node.outputs[0].name}_{name}"), array))


_WIDER = 257  # 65535 / 255: how much wider an 8-bit step is than a 16-bit step over the same range


@dataclass(frozen=True)
class EightBits(NodeStep):
    """Activations of 16 bits to 8 bits of the same signedness and range."""

    nothing: ClassVar[str] = "it has no 16-bit codes between QuantizeLinear and DequantizeLinear."

    def _visit(self, edit: GraphEdit, node: ir.Node) -> str | None:
        if quantize_family(node) is None:
            return None
        readers = [use.node for use in node.outputs[0].uses()]
        params = [params_of(each) for each in (node, *readers) if quantize_family(each) or dequantize_family(each)]
        written = params[0]
        if written is None or written.dtype not in (np.uint16, np.int16):
            return None
        if len(params) <= len(readers) or any(each is None or not each.same_as(written) for each in params):
            return "other nodes read its codes, or with other scales"
        narrow = np.dtype(f"{written.dtype.kind}1")
        low, high = code_range(narrow)
        moved = np.rint((written.zero_point.astype(np.int64) - code_range(written.dtype)[0]) / _WIDER) + low
        zero_point, scale = moved.clip(low, high).astype(narrow), (written.scale * np.float32(_WIDER))
        for each in (node, *readers):
            for index, array in ((1, scale), (2, zero_point)):
                name = edit.names.fresh(f"{each.outputs[0].name}_{'scale' if index == 1 else 'zero_point'}")
                set_input(each, index, add_initializer(edit.graph, name, array))
        node.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(narrow))
        for use in (use for reader in readers for use in reader.outputs[0].uses()):
            _widen_bias(edit, use.node, use.idx)
        return edit.changed(node.outputs[0], f"codes are {narrow} now")


def _widen_bias(edit: GraphEdit, layer: ir.Node, index: int) -> None:
    """Let the 32-bit bias of a layer have the scale of its products again, after the scale of its input has grown."""
    # For other operators the last input: an Add behind a MatMul has its bias there.
    at = _BIAS_INPUT.get(layer.op_type, -1)
    bias = dequantized(made_by(input_at(layer, at))) if index == 0 else None
    if bias is None or bias.params is None or bias.stored is None or bias.stored.dtype != np.int32:
        return
    codes = np.rint(bias.stored.astype(np.float64) / _WIDER).astype(np.int32)
    _store_codes(edit, bias.node, codes, bias.params.scale * np.float32(_WIDER))
