"""Where the channels of a value can be divided at no cost: in the constants of the nodes that compute it.

    LayerNormalization, MatMul, Gemm, Mul    divide a constant of theirs: the scale and bias, the columns, the factor
    Add, Sub                                 divide their constant, and what they are added to
    Relu, LeakyRelu, Gather, Identity        divide what is before them: a positive factor passes through

Channels lie along the last axis, and a Gather must pick along another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, input_at, is_standard, rank, sole_use, why_not_sole

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Division:
    """A constant input of a node, and its axis that the factors lie along; `spread`: one number may serve them all."""

    node: ir.Node
    index: int
    axis: int = -1
    spread: bool = False


def divide(division: Division, factors: Floats) -> None:
    """Divide a constant by the factors, in place. It becomes as wide as these where it was one number for all."""
    value = division.node.inputs[division.index]
    array = constant(value)
    assert value is not None and array is not None, "only constants are divided"
    along = np.moveaxis(array.astype(np.float64), division.axis, -1) if array.ndim else array.astype(np.float64)
    divided = along / factors
    result = np.ascontiguousarray(np.moveaxis(divided, -1, division.axis), np.float32)
    value.const_value = ir.tensor(result, name=value.name)
    value.shape = ir.Shape(result.shape)


def find_divisions(value: ir.Value, graph: ir.Graph, channels: int) -> list[Division] | str:
    """The constants to divide so that `value` is; or the reason why it cannot be divided there."""
    node = value.producer()
    if node is None:
        return f"'{value.name}' comes from outside"
    if is_standard(node, "LayerNormalization"):
        return _of_layer_norm(node, value, channels)
    if is_standard(node, "MatMul", "Gemm"):
        return _of_layer(node, channels)
    if is_standard(node, "Mul", "Add", "Sub"):
        return _of_arithmetic(node, graph, channels)
    if is_standard(node, "Relu", "LeakyRelu", "Identity", "Dropout") or _keeps_last_axis(node):
        return _before(node.inputs[0], graph, channels)
    return f"{node.op_type} '{node.name}' does not pass a factor for each channel on"


def _of_layer_norm(node: ir.Node, value: ir.Value, channels: int) -> list[Division] | str:
    axis, dims = node.attributes.get_int("axis", -1), rank(value)
    if value is not node.outputs[0] or axis not in (-1, None if dims is None else dims - 1):
        return f"LayerNormalization '{node.name}' normalizes several axes"
    return _constants(node, [Division(node, 1), Division(node, 2)], channels)


def _of_layer(node: ir.Node, channels: int) -> list[Division] | str:
    if rank(node.inputs[1]) == 1:
        return f"MatMul '{node.name}' has a single column"
    transposed = bool(node.attributes.get_int("transB", 0))
    return _constants(node, [Division(node, 1, 0 if transposed else -1), Division(node, 2, spread=True)], channels)


def _of_arithmetic(node: ir.Node, graph: ir.Graph, channels: int) -> list[Division] | str:
    known = [index for index in (0, 1) if constant(input_at(node, index)) is not None]
    if not known:
        return f"{node.op_type} '{node.name}' joins two computed values"
    own = _constants(node, [Division(node, known[0], spread=True)], channels)
    if node.op_type == "Mul" or isinstance(own, str):
        return own
    before = _before(node.inputs[1 - known[0]], graph, channels)
    return before if isinstance(before, str) else own + before


def _keeps_last_axis(node: ir.Node) -> bool:
    """Whether a node picks along other axes than the last one."""
    dims = rank(node.inputs[0]) if node.inputs else None
    if dims is None or not is_standard(node, "Gather"):
        return False
    return node.attributes.get_int("axis", 0) % dims != dims - 1


def _before(value: ir.Value | None, graph: ir.Graph, channels: int) -> list[Division] | str:
    if value is None:
        return "an input is missing"
    return why_not_sole(value) if sole_use(value, graph) is None else find_divisions(value, graph, channels)


def _constants(node: ir.Node, divisions: list[Division], channels: int) -> list[Division] | str:
    """Those of the divisions whose input is there; the reason where one is no constant that can be divided."""
    found = []
    for division in divisions:
        value = input_at(node, division.index)
        if value is None:
            continue
        array = constant(value)
        if array is None or array.dtype != np.float32:
            return f"'{value.name}' of {node.op_type} '{node.name}' is not a constant of float32"
        if len(value.uses()) > 1 or value.is_graph_output():
            return f"'{value.name}' of {node.op_type} '{node.name}' has several uses"
        size = array.shape[division.axis] if array.ndim else 1
        if size != channels and not (division.spread and size == 1):
            return f"'{value.name}' of {node.op_type} '{node.name}' has {size} channels and not {channels}"
        found.append(division)
    return found
