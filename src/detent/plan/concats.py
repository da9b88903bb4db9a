"""Concats whose operands are so different in size that one grid would lose the smaller ones.

A Concat copies codes, so all that it joins lives on one grid. Beside values of up to 2000, those of up to 4 get a
single code in 8 bits, here and wherever else they are read. That does no harm where what follows weighs all of them
alike. But a factor for each channel may follow, as a BatchNorm has one, which brings all to the same size again:

    y[c] = f[c] x[c]        with |f[c] x[c]| alike, however different |x[c]| are

Then the network was trained on what the grid would lose, and the Concat and the factor stay float: every operand keeps
a grid of its own, and the product, which is alike, gets one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, static_shape
from detent.numerics.formats import is_integer
from detent.observe.statistics import TensorStatistics
from detent.plan.layout import Layout, data_inputs

STEP = "float_concats"  # as `without` of a recipe calls it

LOST, SEEN = 2.0, 8.0  # codes above zero with which a value is lost, and with which it counts


def lossy_concats(model: ir.Model, layout: Layout, statistics: Mapping[str, TensorStatistics]) -> dict[str, str]:
    """Return the results of such Concats, each with what is to be said about it."""
    found = {}
    for node in model.graph:
        sizes = _sizes(node, layout, statistics) if node.op_type == "Concat" and layout.quantizes(node) else None
        if sizes is None or not (sizes > 0).any():
            continue
        codes = _codes(node, layout) / sizes.max() * sizes  # what each channel gets on a grid for all
        lost = (codes > 0) & (codes < LOST)
        factors = _factors(node, layout)
        if factors is None or not lost.any():
            continue
        scaled = sizes * np.abs(factors)
        if scaled.any() and (_codes(node, layout) / scaled.max() * scaled)[lost].max() >= SEEN:
            found[str(node.outputs[0].name)] = (
                f"joins values of up to {sizes.max():.3g} with others of up to {sizes[lost].max():.3g}, which one grid "
                "would lose, and a factor for each channel follows"
            )
    return found


def _codes(node: ir.Node, layout: Layout) -> float:
    """Return the number of codes above zero of a result; without end if it has no integers."""
    fmt = layout.formats.get(str(node.outputs[0].name))
    return float(fmt.levels[1]) if fmt is not None and is_integer(fmt) else np.inf


def _sizes(node: ir.Node, layout: Layout, statistics: Mapping[str, TensorStatistics]) -> npt.NDArray[np.float64] | None:
    """Return how large each channel that a Concat joins was, by its operand; None if that is not known."""
    sizes = []
    for value in data_inputs(node):
        seen, shape = statistics.get(layout.leader(str(value.name))), static_shape(value)
        axis = node.attributes.get_int("axis", 0)
        if seen is None or shape is None or not -len(shape) <= axis < len(shape) or shape[axis] is None:
            return None
        histogram = seen.histogram
        sizes.append(np.full(shape[axis] or 0, max(abs(histogram.minimum), abs(histogram.maximum))))
    return np.concatenate(sizes) if sizes and np.isfinite(_codes(node, layout)) else None


def _factors(node: ir.Node, layout: Layout) -> npt.NDArray[np.float64] | None:
    """Return the factor of each channel that is all that reads a Concat's result; None if there is none."""
    result = node.outputs[0]
    readers, shape = result.consumers(), static_shape(result)
    if len(readers) != 1 or result.is_graph_output() or shape is None or not layout.quantizes(readers[0]):
        return None
    factors = next(filter(lambda each: each is not None, map(constant, readers[0].inputs)), None)
    if readers[0].op_type != "Mul" or factors is None or factors.ndim > len(shape):
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    along = factors.reshape((1,) * (len(shape) - factors.ndim) + factors.shape)
    is_row = along.size == along.shape[axis] == shape[axis]
    return along.reshape(-1).astype(np.float64) if is_row else None
