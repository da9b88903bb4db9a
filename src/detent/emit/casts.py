"""Small floats in standard operators: Cast to the type and back, divided and multiplied by a scale if there is one.

float8 could be a QuantizeLinear, but onnxruntime would fuse that with a Conv to an operator that has no float8, and
then not load its own result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emit.scene import Scene
from detent.numerics.floats import FloatParams

TYPES = {
    "bfloat16": ir.DataType.BFLOAT16,
    "float16": ir.DataType.FLOAT16,
    "float8_e4m3": ir.DataType.FLOAT8E4M3FN,
    "float8_e5m2": ir.DataType.FLOAT8E5M2,
}


@dataclass(frozen=True, eq=False)
class CastPairs:
    """Writes pairs of Casts into a scene."""

    scene: Scene

    def activation(self, name: str, value: ir.Value, params: FloatParams) -> list[ir.Node]:
        """Divide, clip where that was asked for, cast, cast back, multiply."""
        nodes: list[ir.Node] = []
        result = value
        scale = self._scale(name, params)
        if scale is not None:
            nodes.append(self.scene.node("Div", [result, scale], f"{name}_Div"))
            result = _like(nodes[-1], value, value.dtype)
        if params.format.clip:
            largest = params.format.largest
            low, high = (
                self.scene.constant(f"{name}_{end}", np.array(bound, np.float32))
                for end, bound in (("lowest", -largest), ("highest", largest))
            )
            nodes.append(self.scene.node("Clip", [result, low, high], f"{name}_Clip"))
            result = _like(nodes[-1], value, value.dtype)
        small = TYPES[params.format.dtype]
        nodes.append(self.scene.node("Cast", [result], f"{name}_Round", to=int(small)))
        return [*nodes, *self._back(name, _like(nodes[-1], value, small), scale)]

    def constant(self, name: str, array: npt.NDArray[np.float32], params: FloatParams) -> list[ir.Node]:
        """The small numbers, cast to float."""
        stored = self.scene.constant(f"{name}_rounded", params.format.encode(array, params.scale))
        return self._back(name, stored, self._scale(name, params))

    def _back(self, name: str, small: ir.Value, scale: ir.Value | None) -> list[ir.Node]:
        cast = self.scene.node("Cast", [small], f"{name}_Cast", to=int(ir.DataType.FLOAT))
        if scale is None:
            return [cast]
        return [cast, self.scene.node("Mul", [_like(cast, small, ir.DataType.FLOAT), scale], f"{name}_Mul")]

    def _scale(self, name: str, params: FloatParams) -> ir.Value | None:
        return None if params.scale == 1.0 else self.scene.constant(f"{name}_scale", np.array(params.scale, np.float32))


def _like(node: ir.Node, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """The node's output, with the shape of a value and a type."""
    output = node.outputs[0]
    output.shape = value.shape
    if dtype is not None:
        output.type = ir.TensorType(dtype)
    return output
