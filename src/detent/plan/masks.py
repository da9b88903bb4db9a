"""Attention masks, which stay float.

Attention adds 0 to the scores that count and -inf, -1e4 or the lowest float to those that do not, and Softmax turns the
latter into 0. On a grid that reaches so far down all scores that count would be one code, and -inf has no code at all.
So the scores are quantized before they are masked, and what Softmax makes of them after it: in between, the node that
masks them, the mask itself and Softmax's input stay float, which is exactly the function of the model.

A node masks scores where its result reaches a Softmax through nothing but reshaping and a factor, and it is

    Add, Sub, Where, Max    of scores and a mask: a constant with numbers beyond MASKING, or what is computed from the
                            model's inputs and constants with no layer in between, as (1 - input) * -1e4 is.

A bias of positions, which is a constant of ordinary numbers, masks nothing.

Where every score of a row is -inf, Softmax gives NaN, and exporters put Where(IsNaN(y), 0, y) behind it. Then it is the
result of that which is quantized, and not y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.graph.values import constant, constant_scalar, is_constant, is_standard

MASKING = 64.0
"""Scores that are so far apart are 0 and 1 after Softmax, to any number of bits: exp(-64) is 1.6e-28."""

SCORE_REASON = "masks attention scores: a grid that reaches the masked ones would lose the others"
MASK_REASON = "part of an attention mask: its numbers are too large for the grid of the scores"

_RESHAPING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast")
_SPREADING = ("Expand", "Slice", "Gather", "Tile", "Trilu", "Pad")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Min", "Max", "Concat")
_FLAGS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not", "And", "Or", "Shape", "Range", "IsNaN")


@dataclass(frozen=True)
class Masks:
    """Why nodes stay float, by name, and the values that no grid can hold: masked scores, and what may be NaN."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    masked: frozenset[str] = frozenset()


def find_masks(graph: ir.Graph) -> Masks:
    """The attention masks of a graph."""
    reasons: dict[str, str] = {}
    masked: set[str] = set()
    for node in graph:
        if is_standard(node, "Softmax"):
            _search(node.inputs[0], reasons, masked)
            masked.update(str(value.name) for value in node.outputs if _may_be_nan(value))
    return Masks(reasons, frozenset(masked))


def _may_be_nan(value: ir.Value) -> bool:
    return any(is_standard(use.node, "IsNaN") for use in value.uses())


def _search(value: ir.Value | None, reasons: dict[str, str], masked: set[str]) -> None:
    """Walk up from Softmax's input to the nodes that mask it; there may be several in a row."""
    between: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        if is_standard(node, *_RESHAPING) or _is_scaled(node):
            between.append(node)
            value = node.inputs[0]
            continue
        found = _masking(node)
        if found is None:
            return
        value, mask = found
        for each in (*between, node):
            reasons[str(each.name)] = SCORE_REASON
            masked.update(str(output.name) for output in each.outputs)
        reasons.update({str(each.name): MASK_REASON for each in mask})
        between = []


def _is_scaled(node: ir.Node) -> bool:
    return is_standard(node, "Mul", "Div") and constant_scalar(node, 1) is not None


def _masking(node: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    """The scores that a node masks, and the nodes that compute the mask; None where the node does not mask."""
    data = _data(node)
    if not is_standard(node, "Add", "Sub", "Where", "Max") or len(data) != 2:
        return None
    for mask, scores in (data[::-1], data):
        nodes = None if is_constant(scores) else _nodes_of_mask(mask)
        # What could be a mask as well is taken for the scores only beside a mask that is a constant.
        if nodes is not None and (is_constant(mask) or _nodes_of_mask(scores) is None):
            return scores, nodes
    return None


def _data(node: ir.Node) -> list[ir.Value]:
    """The inputs whose numbers reach the output: not a condition, a shape or an index."""
    if node.op_type == "Where":
        chosen = node.inputs[1:3]
    else:
        chosen = node.inputs if node.op_type in _ARITHMETIC else node.inputs[:1]
    return [value for value in chosen if value is not None]


def _nodes_of_mask(value: ir.Value) -> list[ir.Node] | None:
    """The nodes that compute a mask; None where the value is none.

    A mask is made of the model's inputs and of constants with no layer in between. How large the numbers of an input
    are, only the data could tell: large, or it would mask nothing. Where all is constant, one number has to be large.
    """
    found: dict[ir.Node, None] = {}
    masks, pending = False, [value]
    while pending:
        each = pending.pop()
        node = each.producer()
        if node is None:
            masks |= _is_large(constant(each)) if is_constant(each) else True
        elif node in found:
            continue
        elif is_standard(node, *_RESHAPING, *_SPREADING, *_ARITHMETIC, "Where"):
            found[node] = None
            pending += _data(node)
        elif is_standard(node, "ConstantOfShape"):
            filling = node.attributes.get_tensor("value")
            masks |= filling is not None and _is_large(filling.numpy())
        elif not is_standard(node, *_FLAGS):
            return None
    return list(found) if masks else None


def _is_large(array: npt.NDArray[Any] | None) -> bool:
    return array is not None and array.dtype.kind == "f" and bool((np.abs(array) >= MASKING).any())
