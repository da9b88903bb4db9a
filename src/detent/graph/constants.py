"""Constants of a graph, read as numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


def constant_array(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The constant that `value` is, or None where it is computed or absent."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def constant_scalar(node: ir.Node, index: int) -> float | None:
    """The single number at input `index` of `node`, or None where there is none."""
    array = constant_array(node.inputs[index]) if index < len(node.inputs) else None
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def is_constant(value: ir.Value | None) -> bool:
    """Whether `value` is an initializer of the graph."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Whether a float array holds neither NaN nor infinity."""
    return bool(np.isfinite(array).all())
