"""The grids of a quantized file: for each QuantizeLinear and DequantizeLinear its position and its range of integers.

A code stands for the integer code - zero_point, and that for (code - zero_point) * 2^-position. The device has 8-bit
operands around zero: int8 with zero point 0, and uint8 with zero point 128, are the same integers -128 .. 127. All
else is refused here, with the name of the tensor and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.errors import ModelError
from detent.numerics.power_of_two import HIGHEST_POSITION, LOWEST_POSITION
from detent.qdq.families import computes_on_codes, is_native_dequantize, is_native_quantize, is_quantizing
from detent.qdq.reader import dequantized, params_of

ADVICE = "The recipe XINT8 writes what the emulator runs: 8 bits and power-of-two scales, one for each tensor."
_ZERO_POINTS = {"int8": 0, "uint8": 128, "int32": 0}


@dataclass(frozen=True)
class Grid:
    """The integers of a tensor: codes of type `dtype`, of which `zero_point` stands for 0, in steps of 2^-position."""

    position: int
    dtype: np.dtype[Any]
    zero_point: int

    @property
    def low(self) -> int:
        """The least integer."""
        return int(np.iinfo(self.dtype).min) - self.zero_point

    @property
    def high(self) -> int:
        """The largest integer."""
        return int(np.iinfo(self.dtype).max) - self.zero_point

    def codes(self, integers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The codes of integers that lie on the grid."""
        return (np.asarray(integers).astype(np.int64) + self.zero_point).astype(self.dtype)

    def integers(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The integers of codes."""
        return codes.astype(np.int64) - self.zero_point


def check_form(model: ir.Model, where: str) -> None:
    """Raise ModelError unless the model is in QDQ form, as standard operators write it."""
    pairs = 0
    for node in model.graph.all_nodes():
        native = is_native_quantize(node) or is_native_dequantize(node)
        pairs += native
        if computes_on_codes(node):
            raise ModelError(
                f"{where} is in QOperator form (node '{node.name}' is a {node.op_type}), which does not say what the "
                "NPU computes. Emulate the QDQ form: quantize with --format qdq."
            )
        if is_quantizing(node) and not native:
            raise ModelError(
                f"{where} is written in {node.domain}::{node.op_type} (node '{node.name}'). Turn it into standard "
                "operators first: `detent convert MODEL OUTPUT --to qdq`."
            )
    if not pairs:
        raise ModelError(f"{where} is not quantized: it has no codes to compute with. {ADVICE}")


def grid_of(node: ir.Node) -> Grid:
    """The grid of a QuantizeLinear or DequantizeLinear; ModelError, naming the tensor, where the device has none."""
    tensor = _tensor_name(node)
    params = params_of(node)
    if params is None:
        raise ModelError(f"Tensor '{tensor}' has a scale or zero point that is computed while the model runs. {ADVICE}")
    if not params.per_tensor:
        raise ModelError(f"Tensor '{tensor}' has {params.scale.size} scales, one for each channel or block. {ADVICE}")
    number, position = float(params.scale.reshape(-1)[0]), params.position
    if position is None:
        raise ModelError(f"The scale {number:.7g} of tensor '{tensor}' is not a power of two. {ADVICE}")
    if not LOWEST_POSITION <= position <= HIGHEST_POSITION:
        raise ModelError(f"The scale {number:.7g} of tensor '{tensor}' is out of all range. Quantize the model again.")
    dtype, zero_point = params.dtype, int(params.zero_point.reshape(-1)[0])
    expected = _ZERO_POINTS.get(dtype.name)
    if expected is None:
        raise ModelError(f"Tensor '{tensor}' has codes of type {dtype.name}; the device has 8-bit operands. {ADVICE}")
    if zero_point != expected:
        raise ModelError(
            f"Tensor '{tensor}' has zero point {zero_point} where the device needs {expected} for {dtype.name}: "
            f"its operands are symmetric around zero. {ADVICE}"
        )
    return Grid(position, dtype, zero_point)


def _tensor_name(node: ir.Node) -> str:
    """Return the name of the tensor that the codes stand for, as a user knows it."""
    read = dequantized(node)
    source = node.inputs[0] if read is None else read.tensor
    return str(source.name if source is not None else node.name)
