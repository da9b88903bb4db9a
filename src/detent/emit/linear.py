"""QuantizeLinear and DequantizeLinear: of the standard operators, of onnxruntime's twins, or of an NPU's own domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emit.functions import QUARK, VITIS
from detent.emit.scene import Scene
from detent.numerics.floats import FloatParams
from detent.numerics.formats import QuantParams

LinearParams = QuantParams | FloatParams

SMALL_OPSET = 21
"""The standard operators hold 4 and 16 bits from here on; before, onnxruntime's twins do."""

_OPERATORS = {
    QUARK: ("ExtendedQuantizeLinear", "ExtendedDequantizeLinear"),
    VITIS: ("VitisQuantizeLinear", "VitisDequantizeLinear"),
}
_SMALL_TYPES: dict[str, npt.DTypeLike] = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


@dataclass(frozen=True, eq=False)
class LinearPairs:
    """Writes pairs into a scene; without a domain, in standard operators as far as these hold the type."""

    scene: Scene
    domain: str = ""

    def activation(self, name: str, value: ir.Value, params: LinearParams) -> list[ir.Node]:
        """Quantize and dequantize `value`."""
        return self._pair(name, value, params, self._parameters(name, params))

    def constant(self, name: str, array: npt.NDArray[np.float32], params: LinearParams) -> list[ir.Node]:
        """The codes of a constant, dequantized."""
        codes = self.scene.constant(f"{name}_quantized", _encode(array, params))
        return [self._dequantize(name, codes, params, self._parameters(name, params))]

    def _pair(self, name: str, value: ir.Value, params: LinearParams, parameters: Sequence[ir.Value]) -> list[ir.Node]:
        quantizer = _OPERATORS.get(self.domain, ("QuantizeLinear", ""))[0]
        quantize = self._node(quantizer, f"{name}_QuantizeLinear", value, params, parameters)
        codes = quantize.outputs[0]
        codes.type, codes.shape = parameters[1].type, value.shape
        return [quantize, self._dequantize(name, codes, params, parameters)]

    def _dequantize(self, name: str, codes: ir.Value, params: LinearParams, parameters: Sequence[ir.Value]) -> ir.Node:
        dequantizer = _OPERATORS.get(self.domain, ("", "DequantizeLinear"))[1]
        return self._node(dequantizer, f"{name}_DequantizeLinear", codes, params, parameters)

    def _node(
        self, op_type: str, name: str, value: ir.Value, params: LinearParams, parameters: Sequence[ir.Value]
    ) -> ir.Node:
        attributes: dict[str, int] = {}
        if isinstance(params, QuantParams) and params.axis is not None:
            attributes["axis"] = params.axis % len(value.shape or (0,))
            if params.block:
                attributes["block_size"] = params.block
        return self.scene.node(op_type, [value, *parameters], name, self.domain or self._twin(params), **attributes)

    def _twin(self, params: LinearParams) -> str:
        """The domain of operators that hold the type at this opset."""
        if not isinstance(params, QuantParams) or self.scene.opset >= SMALL_OPSET:
            return ""
        return "com.microsoft" if params.format.bits in (4, 16) else ""

    def _parameters(self, name: str, params: LinearParams) -> list[ir.Value]:
        """The scale and zero point as initializers: scalars, or one number for each channel or block."""
        scale = np.asarray(params.scale, np.float32)
        zero_point = np.asarray(params.zero_point if isinstance(params, QuantParams) else np.zeros(scale.shape))
        return [
            self.scene.constant(f"{name}_scale", scale),
            self.scene.constant(f"{name}_zero_point", zero_point.astype(_code_type(params))),
        ]


def _encode(array: npt.NDArray[np.float32], params: LinearParams) -> npt.NDArray[Any]:
    if isinstance(params, QuantParams):
        return params.encode(array).astype(_code_type(params))
    return params.format.encode(array, params.scale)


def _code_type(params: LinearParams) -> npt.DTypeLike:
    if isinstance(params, FloatParams):
        return params.format.storage
    return _SMALL_TYPES.get(params.format.dtype, params.format.dtype)
