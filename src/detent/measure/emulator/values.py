"""An emulated model that is asked for numbers by the names that they have in the file, as a `Runner` is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.session import Feeds
from detent.measure.emulator.emulator import Emulator
from detent.measure.emulator.grids import grid_of, is_dequantize
from detent.measure.emulator.rounding import EmulatedRounding

Array = npt.NDArray[Any]


class EmulatedValues:
    """Outputs, and what DequantizeLinear makes of codes, of a model in memory, which is left as it is."""

    def __init__(self, model: ir.Model, rounding: EmulatedRounding) -> None:
        """Compile `model`; ModelError where the emulator does not take it."""
        self._emulator = Emulator(ir.to_proto(model), rounding=rounding)
        self._grids = {
            str(node.outputs[0].name): (str(node.inputs[0].name), grid_of(node))
            for node in model.graph
            if is_dequantize(node) and node.inputs[0] is not None
        }

    def __call__(self, feeds: Feeds, origin: str, names: Sequence[str]) -> list[Array]:
        """The numbers under these names."""
        outputs = set(self._emulator.outputs)
        asked = [name if name in outputs else self._grids[name][0] for name in names]
        found = self._emulator(feeds, origin, asked)
        return [
            array if name in outputs else self._decoded(name, array) for name, array in zip(names, found, strict=True)
        ]

    def _decoded(self, name: str, codes: Array) -> Array:
        grid = self._grids[name][1]
        return np.ldexp(grid.integers(codes).astype(np.float32), -grid.position)
