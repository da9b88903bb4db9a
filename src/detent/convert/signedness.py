"""Unsigned codes to signed ones of the same width, and back.

With h half the range (128 or 32768), uint code c at zero point z and int code c - h at zero point z - h stand for the
same number, and saturate at the same numbers: all codes map one to one, the lowest included. So the results are the
same to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.linear import code_range
from detent.convert.operators import dequantize_family, quantize_family
from detent.convert.step import Notes, Step
from detent.graph.names import Names
from detent.graph.values import add_initializer, constant, drop_if_unused, input_at

_OTHER = {"int8": "uint8", "uint8": "int8", "int16": "uint16", "uint16": "int16"}


@dataclass(frozen=True)
class ToSignedness(Step):
    """Codes of the other signedness become `dtype`: activations, and with `weights` symmetric constants as well."""

    dtype: str = "int8"
    weights: bool = True
    nothing: ClassVar[str] = "it has no codes of the other signedness between QuantizeLinear and DequantizeLinear."

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Convert every value that holds codes of the other type."""
        work = _Shift(model, self, notes)
        for graph in tuple(model.graphs()):
            for node in tuple(graph):
                if quantize_family(node):
                    work.activation(graph, node)
            for value in tuple(graph.initializers.values()):
                if value.const_value is not None and value.const_value.dtype == work.old:
                    work.weight(graph, value)
        if work.weights_left:
            notes.decline(
                "model", f"{work.weights_left} constants stay {work.old.name}; weights=true converts them too"
            )
        return model


class _Shift:
    def __init__(self, model: ir.Model, step: ToSignedness, notes: Notes) -> None:
        self.old = ir.DataType.from_numpy(np.dtype(_OTHER[step.dtype]))
        self.weights_left = 0
        self._new = np.dtype(step.dtype)
        self._weights = step.weights
        self._notes = notes
        self._names = Names(model)
        self._moved: dict[ir.Value, ir.Value] = {}

    def activation(self, graph: ir.Graph, quantize: ir.Node) -> None:
        """Convert what a QuantizeLinear writes, where only DequantizeLinear reads it."""
        codes, zero_point = quantize.outputs[0], constant(input_at(quantize, 2))
        if zero_point is None and input_at(quantize, 2) is not None:
            self._notes.decline(quantize, "its zero point is not constant")
            return
        standard_default = (
            zero_point is None and self.old == ir.DataType.UINT8 and "output_dtype" not in quantize.attributes
        )
        if not standard_default and (zero_point is None or zero_point.dtype != self.old.numpy()):
            return
        if not self._only_dequantized(codes):
            return
        for node in (quantize, *(use.node for use in codes.uses())):
            self._shift_zero_point(graph, node)
        codes.type = ir.TensorType(ir.DataType.from_numpy(self._new))
        self._notes.changed(codes, f"codes are {self._new} now")

    def weight(self, graph: ir.Graph, value: ir.Value) -> None:
        """Convert constant codes, where only DequantizeLinear reads them and zero is the middle code."""
        readers = [use.node for use in value.uses()]
        if not readers or not all(dequantize_family(use.node) and use.idx == 0 for use in value.uses()):
            return  # a zero point, or no codes at all
        if not self._weights:
            self.weights_left += 1
            return
        array, middle = constant(value), self._half() if self.old.numpy().kind == "u" else 0
        points = [constant(input_at(node, 2)) for node in readers]
        if array is None or any(point is None or (point != middle).any() for point in points):
            self._notes.decline(value, f"its zero point is not {middle}: it is not symmetric")
            return
        shifted = add_initializer(graph, self._names.fresh(f"{value.name}_{self._new}"), self._shifted(array))
        for node in readers:
            self._shift_zero_point(graph, node)
            node.replace_input_with(0, shifted)
        drop_if_unused(value)
        self._notes.changed(value, f"codes are {self._new} now")

    def _only_dequantized(self, codes: ir.Value) -> bool:
        """Whether only DequantizeLinear with constant zero points reads the codes; a reason is noted where not."""
        others = {use.node.op_type for use in codes.uses() if not dequantize_family(use.node)}
        others |= {"a graph output"} if codes.is_graph_output() else set()
        points = [input_at(use.node, 2) for use in codes.uses()]
        if others:
            self._notes.decline(codes, f"its codes are read by {', '.join(sorted(others))} as well")
        elif any(point is not None and constant(point) is None for point in points):
            self._notes.decline(codes, "the zero point of its DequantizeLinear is not constant")
        else:
            return True
        return False

    def _shift_zero_point(self, graph: ir.Graph, node: ir.Node) -> None:
        old = input_at(node, 2)
        if old is None:
            node.resize_inputs(3)
            name = self._names.fresh(f"{node.outputs[0].name}_zero_point")
            node.replace_input_with(2, add_initializer(graph, name, self._shifted(self._zeros(node))))
            return
        if old not in self._moved:
            array = constant(old)
            assert array is not None
            self._moved[old] = add_initializer(
                graph, self._names.fresh(f"{old.name}_{self._new}"), self._shifted(array)
            )
        node.replace_input_with(2, self._moved[old])
        drop_if_unused(old)

    def _zeros(self, node: ir.Node) -> npt.NDArray[Any]:
        scale = constant(input_at(node, 1))
        return np.zeros(() if scale is None else scale.shape, self.old.numpy())

    def _half(self) -> int:
        return 1 << (8 * self._new.itemsize - 1)

    def _shifted(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Codes of the old type as codes of the new one."""
        low, _ = code_range(self._new)
        offset = low if low else self._half()
        return (array.astype(np.int64) + offset).astype(self._new)
