"""Nodes that pass their input through are removed.

Identity copies its input. Dropout does the same at inference: only in training does it drop anything. So do x * 1,
x / 1, x + 0 and x - 0, which would cost a rounding each. Whoever read the copy reads the original.
"""

from __future__ import annotations

import onnx_ir as ir

from detent.graph.values import bypass, constant, input_at, is_standard, is_unused, rank
from detent.prepare.base import Pass

_NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}


class RemoveIdentity(Pass):
    """Remove Identity, Dropout in inference mode, and arithmetic with a neutral constant.

    Cases:
    - the result is an inner value: its readers read the input;
    - the result is a graph output: the input's producer takes over the output's name;
    - the input is a graph input, an initializer or itself a graph output, and the result is a graph output: both names
      are fixed, so the node stays;
    - Dropout stays when its mask is used, or when `training_mode` is true or not constant;
    - arithmetic goes when the constant is one neutral number, on the right, and does not raise the rank.
    """

    def run(self, model: ir.Model) -> None:
        """Look at every Identity and Dropout of the main graph, and at arithmetic with constants."""
        for node in model.graph:
            if not is_standard(node, "Identity", "Dropout") and not _is_neutral(node):
                continue
            reason = _why_trains(node) if node.op_type == "Dropout" else None
            if reason is None:
                reason = bypass(model.graph, node)
            if reason is None:
                self.replaced(node)
                self.changed(node, f"{node.op_type} removed")
            else:
                self.decline(node, reason)


def _is_neutral(node: ir.Node) -> bool:
    """Whether the node multiplies or divides by 1, or adds or subtracts 0, and leaves the shape alone."""
    if not is_standard(node, *_NEUTRAL) or node.inputs[0] is None:
        return False
    array, dims = constant(input_at(node, 1)), rank(node.inputs[0])
    if array is None or array.size != 1 or dims is None or array.ndim > dims:
        return False
    return bool(array.reshape(-1)[0] == _NEUTRAL[node.op_type])


def _why_trains(node: ir.Node) -> str | None:
    """Why a Dropout does more than pass its input on, or None."""
    if any(not is_unused(value) for value in node.outputs[1:]):
        return "the mask of Dropout is used"
    training = input_at(node, 2)
    if training is None:
        return None
    flag = constant(training)
    if flag is None:
        return "the training mode of Dropout is not constant"
    return "Dropout is in training mode" if bool(flag.reshape(-1)[0]) else None
