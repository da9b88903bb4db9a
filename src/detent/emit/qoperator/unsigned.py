"""Signed codes of activations become unsigned ones: the same numbers, all codes and zero points moved by 128.

    (code - zero_point) * scale = ((code + 128) - (zero_point + 128)) * scale

Both types saturate at the same numbers, so nothing that the model computes changes. It is for x64 processors: there
onnxruntime computes with unsigned activations and signed weights several times as fast as with both signed.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.emit.qoperator.codes import Constant, DeclinedError, grid_of, is_dequantize, is_quantize
from detent.graph.values import set_input
from detent.prepare.base import Pass


class UnsignedCodes(Pass):
    """Give the int8 activations of a QDQ model uint8 codes. To be run before `to_qoperator`.

    Cases:
    - QuantizeLinear and all DequantizeLinear nodes behind it get the moved zero point;
    - declined: codes that are a graph output or are read by anything else, which would see other codes.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every QuantizeLinear of the main graph; weights are codes already and have none."""
        for node in model.graph:
            if not is_quantize(node) or node.outputs[0].dtype not in (None, ir.DataType.INT8):
                continue
            try:
                self._move(model, node)
            except DeclinedError as reason:
                self.decline(node, str(reason))

    def _move(self, model: ir.Model, node: ir.Node) -> None:
        codes, grid = node.outputs[0], grid_of(node)
        if grid.dtype != ir.DataType.INT8:
            return
        readers = codes.consumers()
        if codes.is_graph_output() or any(not is_dequantize(reader) for reader in readers):
            raise DeclinedError(f"its codes '{codes.name}' are not only dequantized")
        if any(not grid_of(reader).equals(grid) for reader in readers) or "output_dtype" in node.attributes:
            raise DeclinedError(f"its codes '{codes.name}' are dequantized with other parameters")
        moved = grid.as_type(ir.DataType.UINT8).operands[1]
        assert isinstance(moved, Constant), "a moved zero point is new"
        zero_point = self.initializer(model, node, moved.role, moved.array)
        for each in (node, *readers):
            set_input(each, 2, zero_point)
        codes.type = ir.TensorType(ir.DataType.UINT8)
        self.changed(node, "int8 codes became uint8 ones")
