"""An instance normalization that was written as a subgraph becomes one InstanceNormalization.

With the mean over all axes behind the channels, and scale and shift one number per channel, the subgraph of
`normalization` is what InstanceNormalization computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import is_standard, static_shape
from detent.prepare.base import Pass
from detent.prepare.fold_affine import per_channel
from detent.prepare.normalization import Normalization, match_normalization
from detent.prepare.patterns import replace_nodes, why_it_escapes


class FuseInstanceNorm(Pass):
    """Put InstanceNormalization in the place of the subgraph.

    Cases:
    - the axes are all from the third on, of an input with three dimensions or more; scale and shift are constants along
      axis 1, or one number for all; a missing one becomes ones or zeros;
    - left alone without a note: other axes, and one axis of three with no scale along axis 1, which are layer
      normalizations;
    - declined: a scale or shift along other axes, an unknown number of channels, a value inside that is used elsewhere.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every division of the main graph."""
        for node in model.graph:
            found = match_normalization(node, model.graph) if is_standard(node, "Div", "Mul") else None
            shape = None if found is None else static_shape(found.source)
            if found is None or shape is None or not _is_spatial(found, len(shape)):
                continue
            reason = self._fuse(model, found, shape)
            if reason is not None:
                self.decline(node, reason)

    def _fuse(self, model: ir.Model, found: Normalization, shape: list[int | None]) -> str | None:
        channels = shape[1]
        if channels is None or found.source.dtype != ir.DataType.FLOAT:
            return f"the channels of '{found.source.name}' are not known, or not float32"
        scale = _vector(found.scale, 1.0, len(shape), channels)
        shift = _vector(found.shift, 0.0, len(shape), channels)
        if scale is None or shift is None:
            return "its scale or shift is not one number per channel"
        reason = why_it_escapes(found.nodes, found.result)
        if reason is not None:
            return reason
        last = found.nodes[-1]
        parameters = [
            self.initializer(model, last, role, array) for role, array in (("scale", scale), ("shift", shift))
        ]
        replace_nodes(
            self,
            model,
            found.nodes,
            found.result,
            "InstanceNormalization",
            [found.source, *parameters],
            {"epsilon": found.epsilon},
        )
        return None


def _is_spatial(found: Normalization, dims: int) -> bool:
    """Whether the axes are all those behind the channels, and it cannot be a layer normalization."""
    if dims < 3 or found.axes != tuple(range(2 - dims, 0)):
        return False
    along = [array for array in (found.scale, found.shift) if array is not None and array.size > 1]
    return all(per_channel(array, dims) is not None for array in along) and (bool(along) or dims > 3)


def _vector(array: npt.NDArray[Any] | None, missing: float, dims: int, channels: int) -> npt.NDArray[Any] | None:
    """One number per channel; None where the array is along other axes."""
    if array is None:
        return np.full(channels, missing, np.float32)
    found = per_channel(array, dims)
    if found is None or found.size not in (1, channels):
        return None
    return np.ascontiguousarray(np.broadcast_to(found, (channels,)), np.float32)
