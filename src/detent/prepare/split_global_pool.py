"""A GlobalAveragePool over a large image becomes two smaller pools.

With H = h1 * h2 and W = w1 * w2, the mean over H x W is the mean over h2 x w2 tiles of the means over the h1 x w1
entries of each, because all tiles have the same size. An NPU sums at most 512 entries at a time, so each of the two
parts has to stay within that.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from detent.graph.values import is_standard, static_shape
from detent.prepare.base import Pass

LIMIT = 512
"""The largest number of entries that one pool may average over."""


class SplitGlobalPool(Pass):
    """Put an AveragePool in front of a GlobalAveragePool over more than 512 entries.

    Cases:
    - kernel and stride of the AveragePool are (h1, w1): the largest divisors of H and W that are at most their roots;
    - declined: a height or width that is not known, neither of them divisible, a part that is still larger than 512;
    - GlobalAveragePool over other than two dimensions is left alone.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every GlobalAveragePool of the main graph."""
        for node in model.graph:
            if is_standard(node, "GlobalAveragePool"):
                reason = self._split(model, node)
                if reason is not None:
                    self.decline(node, reason)

    def _split(self, model: ir.Model, node: ir.Node) -> str | None:
        source = node.inputs[0]
        shape = static_shape(source)
        if source is None or shape is None:
            return "the shape of its input is not known"
        if len(shape) != 4:
            return None
        height, width = shape[2:]
        if height is None or width is None:
            return "the height or width of its input is not known"
        if height * width <= LIMIT:
            return None
        h1, w1 = _divisor(height), _divisor(width)
        if h1 * w1 == 1:
            return f"{height}x{width} cannot be divided into tiles"
        rest = height * width // (h1 * w1)
        if h1 * w1 > LIMIT or rest > LIMIT:
            return f"{height}x{width} would leave {rest} tiles of {h1 * w1}, and {LIMIT} is the limit"
        kernel = [h1, w1]
        name = self.fresh(model, node, "tiles")
        attributes = [ir.AttrInt64s("kernel_shape", kernel), ir.AttrInt64s("strides", kernel)]
        pool = ir.Node("", "AveragePool", [source], attributes, name=name)
        pool.outputs[0].name = self.fresh(model, node, "tile_means")
        pool.outputs[0].type = source.type
        if source.shape is not None:
            pool.outputs[0].shape = ir.Shape([*source.shape[:2], height // h1, width // w1])
        model.graph.insert_before(node, pool)
        node.replace_input_with(0, pool.outputs[0])
        self.replaced(node, pool, node)
        self.changed(node, f"{height}x{width} averaged over tiles of {h1}x{w1} first")
        return None


def _divisor(size: int) -> int:
    """The largest divisor that is at most the square root."""
    return next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
