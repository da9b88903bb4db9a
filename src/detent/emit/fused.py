"""Rounding as one node: block formats, and FixNeuron.

A constant is stored as float, and a compiler that knows the node takes the format from it. Behind a FixNeuron it is
rounded already. In a block format it is not, because rounding twice is not the same as once: where an element of
MXINT8 becomes -2, the block has another exponent than before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.emit.functions import FIX_NEURON, QUARK, VITIS, VITIS_OF_QUARK
from detent.emit.scene import Scene
from detent.numerics.blocks import BlockParams
from detent.numerics.formats import QuantParams


@dataclass(frozen=True, eq=False)
class FusedBlocks:
    """Writes one node for each value in a block format."""

    scene: Scene
    domain: str = QUARK

    def activation(self, name: str, value: ir.Value, params: BlockParams) -> list[ir.Node]:
        """The node that rounds `value`."""
        op_type = params.format.op_type
        if self.domain == VITIS:
            op_type = VITIS_OF_QUARK[op_type]
        return [
            self.scene.node(op_type, [value], f"{name}_{op_type}", self.domain, **params.format.attributes(params.axis))
        ]

    def constant(self, name: str, array: npt.NDArray[np.float32], params: BlockParams) -> list[ir.Node]:
        """The constant, and the node that rounds it."""
        return self.activation(name, self.scene.constant(f"{name}_float", array), params)


@dataclass(frozen=True, eq=False)
class FixNeurons:
    """Writes one FixNeuron for each value of integers with a power-of-two scale."""

    scene: Scene

    def activation(self, name: str, value: ir.Value, params: QuantParams) -> list[ir.Node]:
        """The node that rounds `value`."""
        scale = self.scene.constant(f"{name}_scale", params.scale.astype(np.float32))
        zero_point = self.scene.constant(f"{name}_zero_point", params.zero_point.astype(params.format.dtype))
        attributes = {"bit_width": str(params.format.bits), "pos": str(params.position)}
        inputs = [value, scale, zero_point]
        return [self.scene.node(FIX_NEURON.name, inputs, f"{name}_FixNeuron", FIX_NEURON.domain, **attributes)]

    def constant(self, name: str, array: npt.NDArray[np.float32], params: QuantParams) -> list[ir.Node]:
        """The constant, rounded, and the node."""
        rounded = params.snap(array).astype(np.float32)
        return self.activation(name, self.scene.constant(f"{name}_rounded", rounded), params)
