"""A layer normalization that was written as a subgraph becomes one LayerNormalization.

With the mean over the last axes, the subgraph of `normalization` is what LayerNormalization computes, node by node. In
one node its intermediate values never exist as codes: the variance, above all, is a square, and would lose half of its
bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import is_standard, static_shape
from detent.prepare.base import Pass, main_opset
from detent.prepare.normalization import Normalization, match_normalization
from detent.prepare.patterns import replace_nodes, why_it_escapes

FIRST_OPSET = 17


class FuseLayerNorm(Pass):
    """Put LayerNormalization in the place of the subgraph.

    Cases:
    - the axes are the last ones, any number of them, and their sizes are known, from the input or from the scale;
    - scale and shift have the sizes of these axes, or are broadcast to them; a missing scale becomes ones;
    - declined: other axes, a scale or shift along other axes, a value inside that is used elsewhere, an input that is
      not float32, and an opset before 17, which has no such operator.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every division of the main graph."""
        for node in model.graph:
            found = match_normalization(node, model.graph) if is_standard(node, "Div", "Mul") else None
            if found is not None:
                reason = self._fuse(model, found)
                if reason is not None:
                    self.decline(node, reason)

    def _fuse(self, model: ir.Model, found: Normalization) -> str | None:
        if main_opset(model) < FIRST_OPSET:
            return f"LayerNormalization exists from opset {FIRST_OPSET} on, and the model has {main_opset(model)}"
        if found.source.dtype != ir.DataType.FLOAT:
            return f"'{found.source.name}' is not known to be float32"
        count = len(found.axes)
        if found.axes != tuple(range(-count, 0)):
            return f"it normalizes over axes {list(found.axes)}, which are not the last ones"
        shape = _normalized_shape(found)
        if shape is None:
            return f"the sizes of the last {count} axes of '{found.source.name}' are not known"
        ones = np.ones(1, np.float32)
        scale = _over(ones if found.scale is None else found.scale, shape)
        shift = None if found.shift is None else _over(found.shift, shape)
        if scale is None or (found.shift is not None and shift is None):
            return "its scale or shift does not lie along the normalized axes"
        reason = why_it_escapes(found.nodes, found.result)
        if reason is not None:
            return reason
        last = found.nodes[-1]
        inputs = [found.source, self.initializer(model, last, "scale", scale)]
        if shift is not None:
            inputs.append(self.initializer(model, last, "shift", shift))
        attributes = {"axis": -count, "epsilon": found.epsilon}
        replace_nodes(self, model, found.nodes, found.result, "LayerNormalization", inputs, attributes)
        return None


def _normalized_shape(found: Normalization) -> tuple[int, ...] | None:
    """The sizes of the normalized axes, from the input; or from the scale, which can only be as large."""
    count = len(found.axes)
    sizes = [size for size in (static_shape(found.source) or [])[-count:] if size is not None]
    if len(sizes) == count:
        return tuple(sizes)
    if found.scale is not None and found.scale.ndim >= count and 1 not in found.scale.shape[-count:]:
        return found.scale.shape[-count:]
    return None


def _over(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """The array spread over the normalized axes; None where it has others."""
    extra = max(0, array.ndim - len(shape))
    sizes = tuple(int(size) for size in array.shape)
    fits = all(size in (1, want) for size, want in zip(sizes[::-1], shape[::-1], strict=False))
    if any(size != 1 for size in sizes[:extra]) or not fits:
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(sizes[extra:]), shape))
