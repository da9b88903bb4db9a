"""Infinite weights become large numbers.

Masks of attention are often built with infinities, which no quantized format holds and which turn into NaN when they
are multiplied by zero. Any number far below all others does the same to a Softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.convert.linear import largest_of
from detent.convert.step import Notes, Step
from detent.errors import UsageError
from detent.graph.values import is_standard

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class FiniteWeights(Step):
    """Replace inf by `value` and -inf by -`value` in initializers and Constant nodes. NaN is declined."""

    value: float = 10000.0
    nothing: ClassVar[str] = "no weight is infinite."

    def __post_init__(self) -> None:
        if not np.isfinite(self.value) or self.value <= 0:
            raise UsageError(f"finite-weights: value is {self.value}; give a positive number, such as 10000.")

    def apply(self, model: ir.Model, notes: Notes) -> ir.Model:
        """Look at every float constant."""
        for graph in model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None and value.const_value.dtype in _FLOATS:
                    new = self._finite(str(value.name), value.const_value, notes)
                    value.const_value = value.const_value if new is None else new
            for node in graph:
                attribute = node.attributes.get("value") if is_standard(node, "Constant", "ConstantOfShape") else None
                if attribute is None or attribute.is_ref() or attribute.as_tensor().dtype not in _FLOATS:
                    continue
                new = self._finite(str(node.outputs[0].name), attribute.as_tensor(), notes)
                if new is not None:
                    node.attributes["value"] = ir.AttrTensor("value", new)
        return model

    def _finite(self, name: str, tensor: ir.TensorProtocol, notes: Notes) -> ir.TensorProtocol | None:
        """The tensor without infinities, or None where it has none."""
        array: npt.NDArray[Any] = tensor.numpy()
        infinite = np.isinf(array)
        if np.isnan(array).any():
            notes.decline(name, f"{int(np.isnan(array).sum())} of its elements are NaN, which stays")
        if not infinite.any():
            return None
        largest = largest_of(array.dtype)
        if self.value > largest:
            raise UsageError(
                f"finite-weights: {self.value} does not fit into '{name}', whose type ends at {largest:g}."
            )
        bounded = np.where(infinite, np.sign(array.astype(np.float64)) * self.value, array.astype(np.float64))
        notes.changed(name, f"{int(infinite.sum())} infinite elements became {self.value:g} or {-self.value:g}")
        return ir.Tensor(bounded.astype(array.dtype), name=tensor.name)
